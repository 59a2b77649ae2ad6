"""uint8 images of a whole batch to normalised floats, on the device that the batch is on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NormalizeBatch"]


class NormalizeBatch(nn.Module):
    """Turns the uint8 images of a batch into contiguous float32: ``(image / 255 - mean) / std``.

    A quarter of the bytes is collated, kept and copied that way, and the arithmetic is done where it is cheap. Give
    it as ``batch_transforms`` and as ``eval_batch_transforms`` of a data module whose own transforms keep uint8
    (``to_float=False``).

    A batch is a tuple, list or named tuple that begins with its images, a named tuple, dataclass or mapping with
    ``images``, or the images themselves; images are one tensor ``(B, C, H, W)`` or a list of ``(C, H, W)``. All else in
    the batch is passed on. Padded pixels are normalised as any other: ``pad_value=0`` is black, and becomes
    ``-mean / std``.

    Determinism: no randomness.

    Args:
        mean: Of each channel, in [0, 1] units, or one for all.
        std: Of each channel, in [0, 1] units, or one for all; without both, images are in [0, 1].

    Raises:
        ValueError: A number is not finite, a ``std`` not positive, or their lengths differ.
    """

    def __init__(self, mean: Sequence[float] | float = 0.0, std: Sequence[float] | float = 1.0) -> None:
        super().__init__()
        self.mean, self.std = _numbers(mean), _numbers(std)
        if not self.mean or not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean={mean!r} and std={std!r} must be finite numbers, std above 0")
        if len({len(self.mean), len(self.std)} - {1}) > 1:
            raise ValueError(
                f"mean={mean!r} has {len(self.mean)} channels and std={std!r} has {len(self.std)}; give one number for "
                "each channel, or one for all"
            )
        means, stds = torch.tensor(self.mean).double(), torch.tensor(self.std).double()
        for name, values in (("scale", 1 / (255 * stds)), ("shift", -means / stds)):
            # not persistent: the arguments make them, so a checkpoint need not hold them
            self.register_buffer(name, values.float().view(-1, 1, 1), persistent=False)
        # Copies of both by device: inside a `v2.Compose`, which registers no modules, the buffers stay on the CPU, and
        # to copy them for each image would wait for the device.
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, batch: Any) -> Any:
        """Return the batch with normalised images.

        Args:
            batch: See the class.

        Raises:
            TypeError: There are no images where they should be, or they are not uint8.
            ValueError: Images have another number of channels, or no three or four dimensions.
        """
        if isinstance(batch, Tensor):
            return self._normalised(batch)
        if is_dataclass(batch) and hasattr(batch, "images") and not isinstance(batch, type):
            return replace(batch, images=self._images(batch.images))
        if isinstance(batch, Mapping) and "images" in batch:
            return {**batch, "images": self._images(batch["images"])}
        if not isinstance(batch, tuple | list) or not batch:
            raise TypeError(
                f"a batch is a {type(batch).__name__}; expected (images, ...), or a named tuple, dataclass or mapping "
                "with 'images'"
            )
        if names := getattr(batch, "_fields", ()):
            parts = dict(zip(names, batch, strict=True))
            name = "images" if "images" in parts else names[0]
            return type(batch)(**{**parts, name: self._images(parts[name])})
        if all(isinstance(part, Tensor) and part.ndim == 3 for part in batch):  # images, and no targets
            return self._images(batch)
        return type(batch)((self._images(batch[0]), *batch[1:]))

    def _images(self, images: Any) -> Any:
        if isinstance(images, tuple | list):
            return [self._normalised(image) for image in images]
        return self._normalised(images)

    def _normalised(self, image: Any) -> Tensor:
        if not isinstance(image, Tensor):
            raise TypeError(f"images are a {type(image).__name__}; expected a tensor or a list of tensors")
        if image.dtype != torch.uint8:
            raise TypeError(
                f"images are {image.dtype}, and NormalizeBatch takes uint8; let the data module's transforms keep that "
                "(to_float=False), or leave NormalizeBatch out"
            )
        scale, shift = self._constants(image.device)
        channels = max(len(scale), len(shift))
        if image.ndim not in (3, 4) or channels not in (1, image.shape[-3]):
            raise ValueError(
                f"images of shape {tuple(image.shape)} do not fit {channels} channels of mean and std; expected "
                "(C, H, W) or (B, C, H, W)"
            )
        floats = image.as_subclass(Tensor).to(torch.float32, memory_format=torch.contiguous_format)
        return floats.mul_(scale).add_(shift)

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return scale and shift on a device."""
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        if scale.device == device:
            return scale, shift
        if device not in self._copies:
            self._copies[device] = (scale.to(device), shift.to(device))
        return self._copies[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}}  # the process that loads a copy may lack the device

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"mean={self.mean}, std={self.std}"


def _numbers(given: Sequence[float] | float) -> tuple[float, ...]:
    return (float(given),) if isinstance(given, int | float) else tuple(map(float, given))
