"""A composition that may be handed an image before it is decoded, and has it read at the size it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox
from lit_loader.transforms.moving import flat_targets, moved_targets, resized
from lit_loader.transforms.resized_crop import RandomResizedCrop
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["DecodeAwareCompose", "needs_target"]

# Exact types: a subclass may look at pixels.
_FLIPS: Final = (RandomHorizontalFlip, RandomVerticalFlip)
_LAST: Final = (ToUInt8, ToFloat32)
_TAKE_LAZY: Final = (*_FLIPS, *_LAST, CropToObjects, Letterbox, SanitizeObjects, UpdateVisibility)
_RESIZES: Final = (v2.RandomShortestSize, v2.Resize)
_CROPS: Final = (v2.RandomResizedCrop, RandomResizedCrop)
_THREE_CHANNELS: Final = tv_tensors.Image(torch.zeros((3, 1, 1), dtype=torch.uint8, device="cpu"))
_IMAGE_ALONE: Final = (*_FLIPS, *_LAST, *_RESIZES, *_CROPS, v2.RandomPhotometricDistort)


class DecodeAwareCompose(v2.Compose):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``Compose`` for the data sets here: the first resize or crop says which pixels it needs.

    Called with ``(image, target)`` of a decoded image it gives what ``v2.Compose`` gives, the same bits in less time. A
    data set with ``decode="fast"`` hands it a JPEG before it is decoded. The first of ``v2.Resize``,
    ``v2.RandomShortestSize``, ``v2.RandomResizedCrop``, `RandomResizedCrop`, `Letterbox` and `CropToObjects` then has
    just the part decoded that it shows, no larger than it needs: at 1/2, 1/4 or 1/8 of its size. Flips of this package
    and ``v2.RandomPhotometricDistort`` may stand before it: they draw what they draw, and are made on the pixels read.
    `SanitizeObjects` and `UpdateVisibility` need no pixels. Any other transform that comes first, such as
    ``v2.RandomZoomOut``, `RandomObjectCrop` or one of the user's, gets the image decoded in full.

    Random draws, boxes, points, masks and labels are those of the decoded image. Pixels are within the bound that
    `lit_loader.images.EncodedImage` states; where nothing is shrunk to half or less and no step was put off, they
    are the same.

    Forward hooks of the transforms named here are not called.

    Determinism: that of the transforms.

    Args:
        transforms: Called one after the other; those of a ``Compose`` among them stand in its place.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(list(_one_by_one(transforms)))

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone."""
        image = inputs[0] if len(inputs) > 1 else None
        if image is not None and type(image) is tv_tensors.Image:
            plain = image.as_subclass(torch.Tensor)
            if plain.dtype is torch.uint8 and plain.is_cpu and plain.ndim == 3 and len(plain) == 3:
                return self.read(DecodedImage(plain), *inputs[1:])
        return super().forward(*inputs)

    def read(self, image: LazyImage, target: Any, *others: Any) -> Any:
        """Transform a sample whose image need not be decoded yet.

        Args:
            image: The image.
            target: With boxes, points and masks in pixels of the whole, upright image.
            others: More targets.

        Returns:
            What ``self(image, target, *others)`` gives for the decoded image.
        """
        sample: Any = (image, target, *others)
        if not flat_targets(sample[1:], size=image.size):
            return super().forward(image.image(), *sample[1:])
        for transform in self.transforms:
            sample = _step(transform, *sample) if _is_lazy(sample) else transform(*sample)
        return (sample[0].image(), *sample[1:]) if _is_lazy(sample) else sample


def needs_target(transform: Any) -> bool:
    """Return whether what a transform makes of an image may depend on the target."""
    kind = type(transform)
    if kind in (v2.Compose, DecodeAwareCompose):
        return any(needs_target(part) for part in transform.transforms)
    if kind is CropToObjects:
        return bool(transform.around != "image")
    return kind not in _IMAGE_ALONE


def _one_by_one(transforms: Sequence[Any]) -> Iterator[Any]:
    for transform in transforms:
        if type(transform) in (v2.Compose, DecodeAwareCompose):
            yield from _one_by_one(transform.transforms)
        else:
            yield transform


def _is_lazy(sample: Any) -> bool:
    return type(sample) is tuple and len(sample) > 0 and isinstance(sample[0], LazyImage)


def _step(transform: Any, image: LazyImage, *rest: Any) -> Any:
    """Return the sample after a transform; what comes with the image is flat targets."""
    kind = type(transform)
    if kind in _TAKE_LAZY:
        return transform.forward(image, *rest)
    if kind in _RESIZES and _is_as_read(transform):
        if kind is v2.Resize:
            shape = functional.resize(
                _without_pixels(image), transform.size, max_size=transform.max_size
            ).shape
        else:
            shape = transform.make_params([_without_pixels(image)])["size"]
        size = (shape[-2], shape[-1])
        return (image.resized(size), *moved_targets(rest, partial(resized, size=size)))
    if kind in _CROPS and _is_as_read(transform):
        ours = kind is RandomResizedCrop  # the size is enough for it: no image has to be made
        crop = transform.crop(image.size) if ours else transform.make_params([_without_pixels(image)])
        part = crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]
        move = partial(functional.resized_crop, **crop, size=list(transform.size))
        return (image.part(part, tuple(transform.size)), *moved_targets(rest, move))
    if kind is v2.RandomPhotometricDistort:
        params = transform.make_params([_THREE_CHANNELS])
        return (image.changed(partial(transform.transform, params=params)), *rest)
    return transform(image.image(), *rest)


def _without_pixels(image: LazyImage) -> tv_tensors.Image:
    """Return an image of this size that takes no memory, for torchvision."""
    return torch.empty((0, *image.size), dtype=torch.uint8, device="cpu").as_subclass(tv_tensors.Image)


def _is_as_read(resize: Any) -> bool:
    """Return whether a resize is the bilinear one with antialiasing that reading makes."""
    mode = resize.interpolation  # a string, or an enumeration's member
    return getattr(mode, "value", mode) == "bilinear" and bool(resize.antialias)
