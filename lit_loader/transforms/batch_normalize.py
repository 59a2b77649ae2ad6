"""uint8 images of a whole batch to normalised floats, on the device that the batch is on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NormalizeBatch"]


class NormalizeBatch(nn.Module):
    """Turns the uint8 images of a batch into float32: ``(image / 255 - mean) / std``.

    A quarter of the bytes is collated, kept and copied that way, and the arithmetic is done where it is cheap. Give
    it as ``batch_transforms`` and as ``eval_batch_transforms`` of a data module whose own transforms keep uint8
    (``to_float=False``).

    A batch is a tuple, list or named tuple that begins with its images, a named tuple or mapping with ``images``, or
    the images themselves; images are one tensor ``(B, C, H, W)`` or a list of ``(C, H, W)``. All else in the batch is
    passed on. Padded pixels are normalised as any other: ``pad_value=0`` is black, and becomes ``-mean / std``.

    Determinism: no randomness.

    Args:
        mean: Of each channel, in [0, 1] units, or one for all; None: 0.
        std: Of each channel, in [0, 1] units, or one for all; None: 1, so that without both images are in [0, 1].

    Raises:
        ValueError: A number is not finite, a ``std`` not positive, or their lengths differ.
    """

    def __init__(
        self, mean: Sequence[float] | float | None = None, std: Sequence[float] | float | None = None
    ) -> None:
        super().__init__()
        means, stds = _numbers(mean, 0.0), _numbers(std, 1.0)
        if (
            not all(math.isfinite(value) for value in (*means, *stds))
            or min(stds, default=0.0) <= 0
            or not means
        ):
            raise ValueError(f"mean={mean!r} and std={std!r} must be finite numbers, std above 0")
        if len({len(means), len(stds)} - {1}) > 1:
            raise ValueError(
                f"mean={mean!r} has {len(means)} channels and std={std!r} has {len(stds)}; give one number for each "
                "channel, or one for all"
            )
        channels = max(len(means), len(stds))
        self.mean, self.std = _repeated(means, channels), _repeated(stds, channels)
        self._factors: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, batch: Any) -> Any:
        """Return the batch with normalised images.

        Args:
            batch: See the class.

        Raises:
            TypeError: There are no images where they should be, or they are not uint8.
            ValueError: Images have another number of channels, or no three or four dimensions.
        """
        if isinstance(batch, Tensor):
            return self._images(batch)
        names: tuple[str, ...] = getattr(batch, "_fields", ())
        if isinstance(batch, tuple) and names:
            named: Any = batch
            name = "images" if "images" in names else names[0]
            return named._replace(**{name: self._images(getattr(batch, name))})
        if isinstance(batch, Mapping) and "images" in batch:
            return {**batch, "images": self._images(batch["images"])}
        if isinstance(batch, tuple | list) and len(batch) > 0:
            if all(isinstance(part, Tensor) and part.ndim == 3 for part in batch):  # images, and no targets
                return self._images(batch)
            return type(batch)((self._images(batch[0]), *batch[1:]))
        raise TypeError(
            f"a batch is a {type(batch).__name__}; the rule is (images, ...), or a named tuple or mapping with 'images'"
        )

    def _images(self, images: Any) -> Any:
        if isinstance(images, tuple | list):
            return [self._normalised(image) for image in images]
        if isinstance(images, Tensor):
            return self._normalised(images)
        raise TypeError(f"images are a {type(images).__name__}; the rule is a tensor or a list of tensors")

    def _normalised(self, image: Tensor) -> Tensor:
        if image.dtype != torch.uint8:
            raise TypeError(
                f"images are {image.dtype}, and NormalizeBatch takes uint8; let the data module's transforms keep that "
                "(to_float=False), or leave NormalizeBatch out"
            )
        if image.ndim not in (3, 4) or (len(self.mean) > 1 and image.shape[-3] != len(self.mean)):
            raise ValueError(
                f"images of shape {tuple(image.shape)} do not fit {len(self.mean)} channels of mean and std; the rule "
                "is (C, H, W) or (B, C, H, W)"
            )
        scale, shift = self._factors_on(image.device)
        return image.as_subclass(Tensor).to(torch.float32).mul_(scale).add_(shift)

    def _factors_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return ``1 / (255 std)`` and ``-mean / std``, each ``(C, 1, 1)``."""
        if device not in self._factors:
            scale = [1 / (255 * std) for std in self.std]
            shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
            made = (
                torch.tensor(values, dtype=torch.float32).to(device).view(-1, 1, 1)
                for values in (scale, shift)
            )
            first, second = made
            self._factors[device] = (first, second)
        return self._factors[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_factors": {}}

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"mean={self.mean}, std={self.std}"


def _numbers(given: Sequence[float] | float | None, default: float) -> tuple[float, ...]:
    if given is None:
        return (default,)
    return (float(given),) if isinstance(given, int | float) else tuple(float(value) for value in given)


def _repeated(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values * channels if len(values) == 1 else values
