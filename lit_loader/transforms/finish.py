"""The last step of a preset: the image as it goes into the batch, written straight into the batch's memory."""

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

_LARGEST: Final = 255


class ToFloat32(v2.ToDtype):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``ToDtype(torch.float32, scale=True)``, the same bits, made where the batch will lie.

    A uint8 image on the CPU becomes a float32 one in [0, 1] in memory of the batch, see
    `lit_loader.memory.batch_memory`. Everything else goes torchvision's way.

    Determinism: no randomness.

    Args:
        planes: The image becomes contiguous, its channels planes one after the other, as images that are stacked
            should be. False: an image whose three values of a pixel lie side by side, as a resize leaves them, stays
            so, which takes half of the time; for images that are batched as a list.
    """

    def __init__(self, *, planes: bool = True) -> None:
        super().__init__(torch.float32, scale=True)
        self.planes = planes

    def forward(self, *inputs: Any) -> Any:
        """Convert a sample: an image, or one with a target."""
        if isinstance(inputs[0], LazyImage):
            return (self.transform(inputs[0].image(), {}), *inputs[1:])
        return _through(self, inputs) if _is_alone(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Convert one leaf of the sample."""
        if not _is_image(inpt):
            return super().transform(inpt, params)
        plain = inpt.as_subclass(Tensor)
        stays = not self.planes and plain.ndim == 3 and is_channels_last(plain)
        empty = _empty_channels_last if stays else batch_memory.empty
        return wrap(empty(plain.shape, torch.float32).copy_(plain).mul_(1.0 / _LARGEST), like=inpt)


class ToUInt8(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Keep a uint8 image's values, channels last in memory, and put it where the batch will lie.

    The order in which a resize leaves pixels and convolutions are fastest. Shapes are the same as ever. Stacked by one
    of this package's collate functions of a task the batch is channels last too (``torch.channels_last``); torch's
    default collation, and ours in its place, makes planes.

    Everything but uint8 images ``(C, H, W)`` on the CPU passes as it is, and so does an image of that order where the
    batch has no memory of its own.

    Determinism: no randomness.
    """

    def forward(self, *inputs: Any) -> Any:
        """Place a sample: an image, or one with a target."""
        if isinstance(inputs[0], LazyImage):
            image = inputs[0].read_into(batch_memory.empty).as_subclass(tv_tensors.Image)
            return (image, *inputs[1:])
        return _through(self, inputs) if _is_alone(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Place one leaf of the sample."""
        if not _is_image(inpt) or inpt.ndim != 3:
            return inpt
        plain = inpt.as_subclass(Tensor)
        if batch_memory.current() is None and is_channels_last(plain):
            return inpt
        return wrap(_empty_channels_last(plain.shape, torch.uint8).copy_(plain), like=inpt)


def _empty_channels_last(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory of the batch for an image of shape ``(C, H, W)``."""
    channels, height, width = shape
    if channels == 1:  # both orders are the same
        return batch_memory.empty(shape, dtype)
    return batch_memory.empty((height, width, channels), dtype).permute(2, 0, 1)


def _is_alone(inputs: tuple[Any, ...]) -> bool:
    """Return whether the sample is an image with nothing beside it that torchvision would change too."""
    image, *others = inputs
    return isinstance(image, Tensor) and flat_targets(others, size=tuple(image.shape[-2:]))


def _through(step: Any, inputs: tuple[Any, ...]) -> Any:
    image = step.transform(inputs[0], {})
    return (image, *inputs[1:]) if len(inputs) > 1 else image


def _is_image(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and (isinstance(value, tv_tensors.Image) or not isinstance(value, tv_tensors.TVTensor))
        and value.dtype == torch.uint8
        and value.device.type == "cpu"
    )
