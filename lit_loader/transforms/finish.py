"""Final steps of the presets: convert the image, and write it directly to the memory of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.images.lazy_image import LazyImage
from lit_loader.memory import batch_memory
from lit_loader.memory.batch_memory import is_channels_last
from lit_loader.transforms.moving import flat_targets, wrap

__all__ = ["ToFloat32", "ToUInt8"]

_UINT8_MAX: Final = 255


class ToFloat32(v2.ToDtype):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``ToDtype(torch.float32, scale=True)`` with the same bits, written to the memory of the batch.

    A uint8 image on the CPU becomes float32 in [0, 1] in memory from `lit_loader.memory.batch_memory`. torchvision
    converts everything else.

    Determinism: no randomness.

    Args:
        planes: True makes the image contiguous, one plane per channel, which suits stacking. False keeps an image with
            adjacent channels, such as the result of a resize, in that order, which takes half the time and suits
            batches that are lists of images.
    """

    def __init__(self, *, planes: bool = True) -> None:
        super().__init__(torch.float32, scale=True)
        self.planes = planes

    def forward(self, *inputs: Any) -> Any:
        """Convert a sample: an image, or one with a target."""
        if isinstance(inputs[0], LazyImage):
            return (self.transform(inputs[0].image(), {}), *inputs[1:])
        return _transform_image(self, inputs) if _has_flat_targets(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Convert one leaf of the sample."""
        if not _is_image(inpt):
            return super().transform(inpt, params)
        image = inpt.as_subclass(Tensor)
        # The copy below converts while it writes, which saves a pass over the pixels.
        keep_order = not self.planes and image.ndim == 3 and is_channels_last(image)
        empty = _empty_channels_last if keep_order else batch_memory.empty
        return wrap(empty(image.shape, torch.float32).copy_(image).mul_(1.0 / _UINT8_MAX), like=inpt)


class ToUInt8(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Write a uint8 image to the memory of the batch, channels last, without changing its values.

    A resize produces this memory order, and convolutions are fastest with it. The shape does not change. This package's
    collate functions for tasks stack such images to a channels-last batch (``torch.channels_last``); default collation,
    torch's or this package's, makes planes.

    Values other than uint8 images ``(C, H, W)`` on the CPU are unchanged, and so is a channels-last image if the batch
    has no memory of its own.

    Determinism: no randomness.
    """

    def forward(self, *inputs: Any) -> Any:
        """Place a sample: an image, or one with a target."""
        if isinstance(inputs[0], LazyImage):
            # The last decode or resize writes to the batch directly, which saves a copy.
            image = inputs[0].read_into(batch_memory.empty).as_subclass(tv_tensors.Image)
            return (image, *inputs[1:])
        return _transform_image(self, inputs) if _has_flat_targets(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Place one leaf of the sample."""
        if not _is_image(inpt) or inpt.ndim != 3:
            return inpt
        image = inpt.as_subclass(Tensor)
        if batch_memory.current() is None and is_channels_last(image):
            return inpt
        return wrap(_empty_channels_last(image.shape, torch.uint8).copy_(image), like=inpt)


def _empty_channels_last(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Allocate batch memory for a channels-last image of shape ``(C, H, W)``."""
    num_channels, height, width = shape
    # With one channel both orders are the same, and torch calls the plain one contiguous.
    if num_channels == 1:
        return batch_memory.empty(shape, dtype)
    return batch_memory.empty((height, width, num_channels), dtype).permute(2, 0, 1)


def _has_flat_targets(inputs: tuple[Any, ...]) -> bool:
    """Return True if the image is the only value in a sample that a conversion changes."""
    image, *targets = inputs
    return isinstance(image, Tensor) and flat_targets(targets, size=tuple(image.shape[-2:]))


def _transform_image(transform: Any, inputs: tuple[Any, ...]) -> Any:
    """Transform only the image of a sample, which saves torchvision's traversal of the target."""
    image = transform.transform(inputs[0], {})
    return (image, *inputs[1:]) if len(inputs) > 1 else image


def _is_image(value: Any) -> bool:
    # torchvision also accepts plain tensors as images, but not masks and other tv_tensors.
    is_other = isinstance(value, tv_tensors.TVTensor) and not isinstance(value, tv_tensors.Image)
    return isinstance(value, Tensor) and not is_other and value.dtype == torch.uint8 and value.is_cpu
