"""A composition that may be handed an image before it is decoded, and has it read at the size it needs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flat_target import flat_targets, moved_targets
from lit_loader.transforms.flips import RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox
from lit_loader.transforms.pending import ImageSource, LazyImage, nothing_to_move
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["DecodeAwareCompose", "needs_target"]

# Exact types: a subclass may look at pixels.
_UNDERSTAND: Final = (
    CropToObjects,
    Letterbox,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    SanitizeObjects,
    UpdateVisibility,
)
_RESIZES: Final = (v2.RandomShortestSize, v2.Resize)
_IMAGE_ALONE: Final = (
    *_RESIZES,
    v2.RandomPhotometricDistort,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    ToUInt8,
    ToFloat32,
    v2.RandomResizedCrop,
)


class DecodeAwareCompose(v2.Compose):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``Compose`` for data sets with ``decode="fast"``: the first resize or crop reads the image.

    Called with ``(image, target)`` of a decoded image it is ``v2.Compose``. A data set with ``decode="fast"``
    hands it an image of which only the header is read. The first of ``v2.Resize``, ``v2.RandomShortestSize``,
    ``v2.RandomResizedCrop``, `Letterbox` and `CropToObjects` then has just the pixels decoded that it shows, no larger
    than it needs; of a JPEG that is 1/2, 1/4 or 1/8 of its size, and the rows down to the lowest one shown. Flips of
    ours and ``v2.RandomPhotometricDistort`` may stand before it: they draw what they draw, and are made on the pixels
    read. `SanitizeObjects` and `UpdateVisibility` need no pixels. Any other transform that comes first, such as
    ``v2.RandomZoomOut``, `RandomObjectCrop` or one of the user's, gets the image decoded in full.

    Random draws, boxes, points, masks and labels are those of the decoded image; but a random crop of a JPEG that is
    decoded at 1/2, 1/4 or 1/8 has its sides moved to the nearest multiples of 2, 4 or 8, at most half a pixel of the
    result, and boxes, points and masks go with it. Pixels are within the bound that
    `lit_loader.datasets.EncodedImage` states; where nothing is shrunk to half or less and no step was put off, they
    are the same.

    Determinism: that of the transforms.

    Args:
        transforms: Called one after the other.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(list(transforms))

    def read(self, image: ImageSource, target: Any) -> Any:
        """Transform a sample whose image is not decoded yet.

        Args:
            image: The source of its pixels.
            target: Boxes, points and masks in pixels of the whole, upright image.

        Returns:
            What ``self(image, target)`` gives for the decoded image.
        """
        sample: Any = (LazyImage(image), target)
        for transform in self.transforms:
            sample = _step(transform, sample)
        first, *rest = sample if isinstance(sample, tuple) else (sample,)
        return (first.read(), *rest) if isinstance(first, LazyImage) else sample


def needs_target(transform: Any) -> bool:
    """Return whether what a transform makes of an image may depend on the target."""
    kind = type(transform)
    if kind in (v2.Compose, DecodeAwareCompose):
        return any(needs_target(part) for part in transform.transforms)
    if kind is CropToObjects:
        return bool(transform.around != "image")
    return kind not in _IMAGE_ALONE


def _step(transform: Any, sample: Any) -> Any:
    image = sample[0] if isinstance(sample, tuple) and sample else None
    if not isinstance(image, LazyImage):
        return transform(*sample) if isinstance(sample, tuple) else transform(sample)
    kind = type(transform)
    if kind in _UNDERSTAND:
        return transform(*sample)
    if kind in (v2.Compose, DecodeAwareCompose):
        for part in transform.transforms:
            sample = _step(part, sample)
        return sample
    rest = list(sample[1:])
    if kind in _RESIZES and not _is_unlike_reading(transform):
        shape = image.placeholder()
        if flat_targets(rest, size=image.size):
            draws = kind is v2.RandomShortestSize
            height, width = transform.make_params([shape])["size"] if draws else transform(shape).shape[-2:]
            moved = moved_targets(rest, partial(functional.resize, size=[height, width]))
        else:
            shape, *moved = transform(shape, *rest)
            height, width = shape.shape[-2:]
        return (image.resized((height, width)), *moved)
    if kind is v2.RandomResizedCrop and not _is_unlike_reading(transform):
        params = transform.make_params([image.placeholder()])
        left, top = params["left"], params["top"]
        drawn = (left, top, left + params["width"], top + params["height"])
        height, width = transform.size
        pixels, (left, top, right, bottom) = image.cropped(drawn, (height, width))
        if not nothing_to_move(rest):
            params = {"top": top, "left": left, "height": bottom - top, "width": right - left}
            mover = copy.copy(transform)
            # torchvision draws and moves in one call; this one only moves
            mover.make_params = lambda _: params
            _, *rest = mover(image.placeholder(), *rest)
        return (pixels, *rest)
    if kind is v2.RandomPhotometricDistort:
        params = transform.make_params([image.placeholder(channels=3)])
        return (image.then(partial(transform.transform, params=params)), *rest)
    return transform(image.read(), *rest)


def _is_unlike_reading(resize: Any) -> bool:
    """Return whether a resize is not the bilinear one with antialiasing that reading makes."""
    mode = resize.interpolation  # a string, or an enumeration's member
    return getattr(mode, "value", mode) != "bilinear" or not resize.antialias
