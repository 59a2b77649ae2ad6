"""The last step of a preset: the image as it goes into the batch, written straight into the batch's memory."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import batch_memory
from lit_loader.transforms.flat_target import flat_targets

__all__ = ["ToFloat32", "ToUInt8"]

_LARGEST: Final = 255


class ToFloat32(v2.ToDtype):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``ToDtype(torch.float32, scale=True)``, the same bits, made where the batch will lie.

    A uint8 image on the CPU becomes a contiguous float32 one in [0, 1] in memory of the batch, see
    `lit_loader.batch_memory`. Everything else goes torchvision's way.

    Determinism: no randomness.
    """

    def __init__(self) -> None:
        super().__init__(torch.float32, scale=True)

    def forward(self, *inputs: Any) -> Any:
        """Convert a sample: an image, or one with a target."""
        return _through(self, inputs) if _is_alone(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Convert one leaf of the sample."""
        if not _is_image(inpt):
            return super().transform(inpt, params)
        out = batch_memory.empty(inpt.shape, torch.float32)
        out.copy_(inpt.as_subclass(Tensor)).mul_(1.0 / _LARGEST)
        return _like(inpt, out)


class ToUInt8(v2.Transform):  # type: ignore[misc] # torchvision is untyped
    """Keep a uint8 image's values, and put it where the batch will lie.

    Everything but uint8 images on the CPU passes as it is, and so does an image in the wanted order where the batch
    has no memory of its own.

    Determinism: no randomness.

    Args:
        planes: The image becomes contiguous, its channels planes one after the other, as images that are stacked
            should be. False: an image whose three values of a pixel lie side by side, as a resize leaves them, stays
            so, which takes a quarter of the time; for images that are batched as a list.
    """

    def __init__(self, *, planes: bool = True) -> None:
        super().__init__()
        self.planes = planes

    def forward(self, *inputs: Any) -> Any:
        """Place a sample: an image, or one with a target."""
        return _through(self, inputs) if _is_alone(inputs) else super().forward(*inputs)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Place one leaf of the sample."""
        if not _is_image(inpt):
            return inpt
        plain = inpt.as_subclass(Tensor)
        side_by_side = not self.planes and plain.ndim == 3 and plain.permute(1, 2, 0).is_contiguous()
        if batch_memory.current() is None and (side_by_side or plain.is_contiguous()):
            return inpt
        if side_by_side:
            channels, height, width = plain.shape
            out = batch_memory.empty((height, width, channels), torch.uint8).permute(2, 0, 1)
        else:
            out = batch_memory.empty(plain.shape, torch.uint8)
        out.copy_(plain)
        return _like(inpt, out)


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


def _like(image: Tensor, out: Tensor) -> Tensor:
    return tv_tensors.wrap(out, like=image) if isinstance(image, tv_tensors.TVTensor) else out
