"""Normalise the uint8 images of a batch to float32 on the batch's device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NormalizeBatch"]


class NormalizeBatch(nn.Module):
    """Converts the uint8 images of a batch to contiguous float32: ``(image / 255 - mean) / std``.

    Collating, storing and copying uint8 takes a quarter of the bytes, and the device does the arithmetic. Pass it as
    ``batch_transforms`` and ``eval_batch_transforms`` to a data module whose transforms return uint8
    (``to_float=False``).

    A batch is a tuple, list or named tuple that starts with its images, a named tuple, dataclass or mapping with
    ``images``, or the images themselves. Images are one tensor ``(B, C, H, W)`` or a list of ``(C, H, W)``. The rest of
    the batch is unchanged. Padded pixels are normalised like all others: ``pad_value=0`` is black and becomes
    ``-mean / std``.

    Determinism: no randomness.

    Args:
        mean: Mean of each channel, in [0, 1] units, or one number for all channels.
        std: Standard deviation of each channel, in [0, 1] units, or one number for all channels. With the defaults,
            images are in [0, 1].

    Raises:
        ValueError: A number is not finite, a ``std`` is not positive, or the lengths differ.
    """

    def __init__(self, mean: Sequence[float] | float = 0.0, std: Sequence[float] | float = 1.0) -> None:
        super().__init__()
        self.mean = _as_tuple(mean)
        self.std = _as_tuple(std)
        if not self.mean or not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError(f"mean={mean!r} and std={std!r} must be finite numbers, std above 0")
        if len({len(self.mean), len(self.std)} - {1}) > 1:
            raise ValueError(f"mean={mean!r} and std={std!r} have different lengths; give one number for each channel")
        # (x / 255 - mean) / std as one multiplication and one addition; float64 avoids rounding the constants twice.
        means = torch.tensor(self.mean).double()
        stds = torch.tensor(self.std).double()
        for name, values in (("scale", 1 / (255 * stds)), ("shift", -means / stds)):
            # Not persistent: they are computed from the arguments, so a checkpoint need not contain them.
            self.register_buffer(name, values.float().view(-1, 1, 1), persistent=False)
        # Inside a `v2.Compose`, which registers no modules, the buffers stay on the CPU. Copying them for every image
        # would synchronize with the device each time, so there is one copy per device.
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, batch: Any) -> Any:
        """Return the batch with normalised images.

        Args:
            batch: See the class.

        Raises:
            TypeError: The batch has no images in the expected place, or they are not uint8.
            ValueError: Images do not have the channels of ``mean`` and ``std``, or not three or four dimensions.
        """
        if isinstance(batch, Tensor):
            return self._normalize(batch)
        if is_dataclass(batch) and hasattr(batch, "images") and not isinstance(batch, type):
            return replace(batch, images=self._normalize_all(batch.images))
        if isinstance(batch, Mapping) and "images" in batch:
            return {**batch, "images": self._normalize_all(batch["images"])}
        if not isinstance(batch, tuple | list) or not batch:
            expected = "a batch (images, ...), or a named tuple, dataclass or mapping with 'images'"
            raise TypeError(f"expected {expected}, got a {type(batch).__name__}")
        if names := getattr(batch, "_fields", ()):
            fields = dict(zip(names, batch, strict=True))
            name = "images" if "images" in fields else names[0]
            return type(batch)(**{**fields, name: self._normalize_all(fields[name])})
        # A list of images without targets.
        if all(isinstance(part, Tensor) and part.ndim == 3 for part in batch):
            return self._normalize_all(batch)
        return type(batch)((self._normalize_all(batch[0]), *batch[1:]))

    def _normalize_all(self, images: Any) -> Any:
        is_list = isinstance(images, tuple | list)
        return [self._normalize(image) for image in images] if is_list else self._normalize(images)

    def _normalize(self, image: Any) -> Tensor:
        if not isinstance(image, Tensor):
            raise TypeError(f"expected images as a tensor or a list of tensors, got a {type(image).__name__}")
        if image.dtype != torch.uint8:
            remedy = "let the data module's transforms keep uint8 (to_float=False), or remove NormalizeBatch"
            raise TypeError(f"expected uint8 images, got {image.dtype}; {remedy}")
        scale, shift = self._constants(image.device)
        num_channels = max(len(scale), len(shift))
        if image.ndim not in (3, 4) or num_channels not in (1, image.shape[-3]):
            problem = f"images of shape {tuple(image.shape)} do not fit {num_channels} channels of mean and std"
            raise ValueError(f"{problem}; expected (C, H, W) or (B, C, H, W)")
        # The conversion allocates the result, and the arithmetic reuses its memory.
        floats = image.as_subclass(Tensor).to(torch.float32, memory_format=torch.contiguous_format)
        return floats.mul_(scale).add_(shift)

    def _constants(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return scale and shift on a device."""
        scale = self.get_buffer("scale")
        shift = self.get_buffer("shift")
        if scale.device == device:
            return scale, shift
        if device not in self._copies:
            self._copies[device] = (scale.to(device), shift.to(device))
        return self._copies[device]

    def __getstate__(self) -> dict[str, Any]:
        # A process that unpickles this may lack the devices.
        return {**self.__dict__, "_copies": {}}

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"mean={self.mean}, std={self.std}"


def _as_tuple(values: Sequence[float] | float) -> tuple[float, ...]:
    return (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
