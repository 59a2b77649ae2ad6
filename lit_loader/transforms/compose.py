"""Compose transforms that can take an image before it is decoded, and read only the pixels they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.errors import SettingError
from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.extra_transform import ExtraTransform
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox
from lit_loader.transforms.moving import flat_targets, moved_targets, resized
from lit_loader.transforms.oriented import apply_transform, has_oriented
from lit_loader.transforms.resized_crop import RandomResizedCrop
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.scheduled import ScheduledTransform, current_transform
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["DecodeAwareCompose", "needs_target"]

# These sets compare exact types, because a subclass may use pixels.
_FLIPS: Final = (RandomHorizontalFlip, RandomVerticalFlip)
_FINAL_STEPS: Final = (ToUInt8, ToFloat32)
_RESIZES: Final = (v2.RandomShortestSize, v2.Resize)
_CROPS: Final = (v2.RandomResizedCrop, RandomResizedCrop)
_ACCEPT_LAZY: Final = (*_FLIPS, *_FINAL_STEPS, CropToObjects, Letterbox, SanitizeObjects, UpdateVisibility)
_IGNORE_TARGET: Final = (*_FLIPS, *_FINAL_STEPS, *_RESIZES, *_CROPS, v2.RandomPhotometricDistort)
_RGB_PIXEL: Final = tv_tensors.Image(torch.zeros((3, 1, 1), dtype=torch.uint8, device="cpu"))


class DecodeAwareCompose(v2.Compose):  # type: ignore[misc] # torchvision is untyped
    """torchvision's ``Compose`` with on-demand decoding: the first resize or crop determines the pixels to decode.

    For a decoded image, the result has the bits of ``v2.Compose``, in less time. A dataset with ``decode="fast"``
    passes a JPEG before it is decoded. The first of ``v2.Resize``, ``v2.RandomShortestSize``, ``v2.RandomResizedCrop``,
    `RandomResizedCrop`, `Letterbox` and `CropToObjects` then decodes only the part that it shows, at 1/2, 1/4 or 1/8
    size if that is enough. This package's flips and ``v2.RandomPhotometricDistort`` may precede it: they draw their
    parameters in order, and are applied to the pixels once read. `SanitizeObjects` and `UpdateVisibility` need no
    pixels. A `ScheduledTransform` counts as its transform of the epoch. Any other transform in front, such as
    ``v2.RandomZoomOut``, `RandomObjectCrop` or your own, gets the fully decoded image.

    Random draws, boxes, points, masks and labels are the same as for the decoded image. Pixels are within the bound of
    `lit_loader.images.EncodedImage`; they are the same if nothing is shrunk to half or less and no step was postponed.

    Forward hooks of the transforms named here are not called.

    Determinism: depends on the transforms.

    Args:
        transforms: Called in order; a nested ``Compose`` is replaced by its transforms.
        before_mixing: Number of leading entries of ``transforms`` that change each image of a mixed sample, before the
            images are mixed; the others change the mixed image. It has no effect without mixing.

    Attributes:
        before_mixing: The same number, of the entries of the attribute ``transforms``.

    Raises:
        SettingError: ``before_mixing`` is negative, or larger than the number of ``transforms``.
    """

    def __init__(self, transforms: Sequence[Any], *, before_mixing: int = 0) -> None:
        if not 0 <= before_mixing <= len(transforms):
            raise SettingError("before_mixing", before_mixing, f"is not in 0 to {len(transforms)}, the transforms")
        # Flat, so that the first resize or crop is found even if it is in a nested composition.
        first_transforms = list(_flatten(transforms[:before_mixing]))
        self.before_mixing = len(first_transforms)
        super().__init__([*first_transforms, *_flatten(transforms[before_mixing:])])
        self._is_scheduled = any(isinstance(transform, ScheduledTransform) for transform in self.transforms)

    def forward(self, *inputs: Any) -> Any:
        """Transform ``image, target``, one tuple of them, or an image alone."""
        if len(inputs) > 1 and (image := _lazy_image(inputs[0])) is not None:
            return self.read(image, *inputs[1:])
        sample = inputs if len(inputs) > 1 else inputs[0]
        if isinstance(sample, tuple | list) and has_oriented(sample[1:]):
            return _apply(self._steps(self.transforms), sample)
        return super().forward(*inputs)

    def read(self, image: LazyImage, target: Any, *more_targets: Any) -> Any:
        """Transform a sample whose image may not be decoded yet.

        Args:
            image: The image.
            target: Target with boxes, points and masks in pixels of the whole, upright image.
            more_targets: Further targets.

        Returns:
            The result of ``self(image, target, *more_targets)`` for the decoded image.
        """
        return _decoded(_apply(self._steps(self.transforms), (image, target, *more_targets)))

    def read_first(self, image: LazyImage, target: Any) -> Any:
        """Apply the first ``before_mixing`` transforms to one image of a mixed sample.

        Args:
            image: The image.
            target: Target in pixels of the whole, upright image.

        Returns:
            ``(image, target)``. The image is lazy if these transforms needed no pixels, otherwise a tensor.
        """
        return _apply(self._steps(self.transforms[: self.before_mixing]), (image, target))

    def read_rest(self, image: Any, target: Any) -> Any:
        """Apply the transforms that `read_first` did not apply.

        Args:
            image: A lazy image, or a ``tv_tensors.Image``.
            target: Target in pixels of the image.

        Returns:
            The transformed sample, as `read` returns it. With the result of `read_first` it is the sample of `read`.
        """
        if not isinstance(image, LazyImage) and (lazy_image := _lazy_image(image)) is not None:
            image = lazy_image
        return _decoded(_apply(self._steps(self.transforms[self.before_mixing :]), (image, target)))

    def _steps(self, transforms: Sequence[Any]) -> Sequence[Any]:
        """Replace scheduled transforms by their transforms for the sample that is being made."""
        if not self._is_scheduled:
            return transforms
        return list(_flatten([step for step in map(current_transform, transforms) if step is not None]))


def needs_target(transform: Any) -> bool:
    """Return True if the image that a transform returns may depend on the target."""
    kind = type(transform)
    if kind in (v2.Compose, DecodeAwareCompose):
        return any(map(needs_target, transform.transforms))
    if kind is ExtraTransform:
        return not transform.image_only
    if kind is ScheduledTransform:
        return any(map(needs_target, transform.examples()))
    # A crop around an object moves with its box.
    return transform.around != "image" if kind is CropToObjects else kind not in _IGNORE_TARGET


def _flatten(transforms: Sequence[Any]) -> Iterator[Any]:
    for transform in transforms:
        if type(transform) in (v2.Compose, DecodeAwareCompose):
            yield from _flatten(transform.transforms)
        else:
            yield transform


def _apply(transforms: Sequence[Any], sample: Any) -> Any:
    """Apply transforms to a sample with a lazy or decoded image; a lazy image stays lazy as long as possible."""
    # Only torchvision traverses nested targets.
    if _is_lazy(sample) and not flat_targets(sample[1:], size=sample[0].size):
        sample = _decoded(sample)
    # A transform that decodes the image ends the lazy part; the others are called as torchvision does.
    for transform in transforms:
        sample = _transform_lazy(transform, *sample) if _is_lazy(sample) else apply_transform(transform, sample)
    return sample


def _decoded(sample: Any) -> Any:
    return (sample[0].image(), *sample[1:]) if _is_lazy(sample) else sample


def _lazy_image(image: Any) -> DecodedImage | None:
    """Return a decoded image as a lazy one, or None if it is not uint8 RGB on the CPU, as lazy images are."""
    if type(image) is not tv_tensors.Image:
        return None
    plain = image.as_subclass(torch.Tensor)
    is_rgb = plain.dtype is torch.uint8 and plain.is_cpu and plain.ndim == 3 and len(plain) == 3
    return DecodedImage(plain) if is_rgb else None


def _is_lazy(sample: Any) -> bool:
    return type(sample) is tuple and len(sample) > 0 and isinstance(sample[0], LazyImage)


def _transform_lazy(transform: Any, image: LazyImage, *targets: Any) -> Any:
    """Apply a transform to a lazy image and its flat targets."""
    kind = type(transform)
    # `forward` instead of a call: a user's forward hooks expect decoded images.
    if kind in _ACCEPT_LAZY:
        return transform.forward(image, *targets)
    if kind in _RESIZES and _uses_default_resize(transform):
        if kind is v2.Resize:
            placeholder = functional.resize(_empty_image(image), transform.size, max_size=transform.max_size)
            size = tuple(placeholder.shape[-2:])
        else:
            size = tuple(transform.make_params([_empty_image(image)])["size"])
        return (image.resized(size), *moved_targets(targets, partial(resized, size=size)))
    if kind in _CROPS and _uses_default_resize(transform):
        # RandomResizedCrop of this package needs only the size, and skips making an image for torchvision.
        skips_image = kind is RandomResizedCrop
        crop = transform.crop(image.size) if skips_image else transform.make_params([_empty_image(image)])
        part = crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]
        move = partial(functional.resized_crop, **crop, size=list(transform.size))
        return (image.part(part, tuple(transform.size)), *moved_targets(targets, move))
    if kind is v2.RandomPhotometricDistort:
        # Draw now, so that draws have the same order as for a decoded image; apply when the pixels are read.
        params = transform.make_params([_RGB_PIXEL])
        return (image.changed(partial(transform.transform, params=params)), *targets)
    # Any other transform may use pixels outside the region that is shown in the end.
    return apply_transform(transform, (image.image(), *targets))


def _empty_image(image: LazyImage) -> tv_tensors.Image:
    """Return an image of the same size without channels, so without memory, for torchvision to measure."""
    return torch.empty((0, *image.size), dtype=torch.uint8, device="cpu").as_subclass(tv_tensors.Image)


def _uses_default_resize(transform: Any) -> bool:
    """Return True if a transform resizes bilinearly with antialiasing, as lazy images do."""
    # torchvision accepts the name as well as the enumeration member.
    mode = transform.interpolation
    return getattr(mode, "value", mode) == "bilinear" and bool(transform.antialias)
