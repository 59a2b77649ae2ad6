"""The detection preset: a function that composes transforms from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.schedules import Scheduled, ScheduledInt
from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox, RandomObjectCrop
from lit_loader.transforms.preset_checks import check_chances, check_fill, check_rotation, whole_pixels
from lit_loader.transforms.preset_extras import ExtraRules
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.scheduled import scheduled_keywords, scheduled_preset
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["detection_transforms"]

_SMALLEST_SIDE = 1e-3  # in pixels
_ONLY_TRAINING: Final = ("hflip", "vflip", "photometric", "zoom_out", "iou_crop", "rotation")


def detection_transforms(
    train: bool,
    *,
    size: ScheduledInt | Sequence[ScheduledInt] | None = None,
    max_size: ScheduledInt | None = None,
    shorter_sides: Sequence[ScheduledInt] | None = None,
    letterbox: bool = False,
    fill: Scheduled = 0,
    hflip: Scheduled = 0.5,
    vflip: Scheduled = 0.0,
    photometric: Scheduled = 0.0,
    zoom_out: Scheduled = 0.0,
    iou_crop: Scheduled = 0.0,
    rotation: Scheduled = 0.0,
    flip_pairs: FlipPairs | None = None,
    min_box_size: Scheduled = 1.0,
    min_box_area: Scheduled = 1.0,
    per_object: Sequence[str] = (),
    per_image: Sequence[str] = (),
    extra_before: Sequence[Any] = (),
    extra_after: Sequence[Any] = (),
    to_float: bool = True,
) -> nn.Module:
    """Compose torchvision's v2 transforms for ``(image, target)`` samples, with or without points.

    The order is: ``extra_before``; photometric distortion, zoom out, IoU crop, rotation, flips (all in training only);
    resize; ``extra_after``; ``SanitizeObjects``; conversion to float32 in [0, 1]. With ``train=False`` only the extra
    transforms can be random, so both splits can use the same arguments. Points that leave the image get visibility 0;
    only the boxes decide which objects are removed.

    Every number may be a schedule, or a mapping that describes one such as ``{"points": {0: 0.5, 10: 0.0}}``, also in
    lists, and sizes may be choices for each batch (``{"choices": [320, 384]}``); see `lit_loader.schedules`. The result
    is then a `ScheduledTransform`, with the transform of these values in each epoch. With ``train=False`` a schedule
    has its final value, and a choice its largest.

    Determinism: draws only from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: None keeps the size; an int is the length of the shorter side, with the same aspect ratio; a pair is
            (height, width), stretched unless ``letterbox`` is True. In pixels.
        max_size: Longest side allowed with an int ``size`` or ``shorter_sides``; without both, the length of the longer
            side. In pixels.
        shorter_sides: Lengths of the shorter side, instead of ``size``: one is drawn for every image, or with
            ``train=False`` the largest is used. In pixels.
        letterbox: For a pair ``size``, keep the aspect ratio and pad the rest.
        fill: Value of padded pixels (zoom out, rotation, letterbox), 0..255.
        hflip: Probability of a horizontal flip.
        vflip: Probability of a vertical flip.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue, channel order).
        zoom_out: Probability of placing the image on a canvas up to 4 times as large.
        iou_crop: Probability of a crop around objects.
        rotation: Largest rotation about the image's centre in either direction, in degrees; an angle is drawn for every
            image. A box becomes the box around the rotated box, which is looser.
        flip_pairs: Pairs of positions of points that a flip swaps (left and right eye); ``[]`` if there are none. With
            ``None``, a flip of a target with points is refused.
        min_box_size: Smallest allowed side of a box, in pixels of the result.
        min_box_area: Smallest allowed area of a box, in square pixels of the result.
        per_object: Further per-object fields of the target, see ``SanitizeObjects``.
        per_image: Further per-image fields of the target.
        extra_before: Your own transforms of ``(image, target)``, with or without ``train``, before all others.
        extra_after: The same after the resize, with the uint8 image in its final size.
        to_float: Convert the image to float32 in [0, 1] in its memory order; ``False`` keeps uint8, channels last.

    Returns:
        A picklable module, called as ``transform(image, target)``.

    Raises:
        ValueError: A number is outside its range, the sizes contradict each other, ``fill`` has no effect,
            ``flip_pairs`` are not disjoint pairs, or an extra transform would move pixels without boxes.
    """
    keywords = scheduled_keywords({name: value for name, value in locals().items() if name != "train"})
    transforms = scheduled_preset(_detection_compose, train, keywords, only_training=_ONLY_TRAINING)
    _check_padding(keywords)
    return transforms


def _detection_compose(
    train: bool,
    *,
    size: int | Sequence[int] | None,
    max_size: int | None,
    shorter_sides: Sequence[int] | None,
    letterbox: bool,
    fill: float,
    hflip: float,
    vflip: float,
    photometric: float,
    zoom_out: float,
    iou_crop: float,
    rotation: float,
    flip_pairs: FlipPairs | None,
    min_box_size: float,
    min_box_area: float,
    per_object: Sequence[str],
    per_image: Sequence[str],
    extra_before: Sequence[Any],
    extra_after: Sequence[Any],
    to_float: bool,
) -> nn.Module:
    """Return the preset's transforms for values without schedules."""
    check_chances(hflip=hflip, vflip=vflip, photometric=photometric, zoom_out=zoom_out, iou_crop=iou_crop)
    check_fill(fill)
    check_rotation(rotation)
    # Padding of a mask is background, whatever the fill of the image.
    padding_fill = {tv_tensors.Mask: 0, "others": fill}
    bilinear = v2.InterpolationMode.BILINEAR
    # All are made in either split, so that both refuse a wrong argument.
    random_transforms = (
        (photometric, v2.RandomPhotometricDistort(p=photometric)),
        (zoom_out, v2.RandomZoomOut(fill=padding_fill, p=zoom_out)),
        # Crops and rotations move points off the canvas, and a later zoom out or rotation could bring them back.
        (iou_crop, v2.Compose([RandomObjectCrop(p=iou_crop), UpdateVisibility()])),
        (rotation, v2.Compose([v2.RandomRotation(rotation, bilinear, fill=padding_fill), UpdateVisibility()])),
        (hflip, RandomHorizontalFlip(p=hflip, flip_pairs=flip_pairs)),
        (vflip, RandomVerticalFlip(p=vflip, flip_pairs=flip_pairs)),
    )
    fields = {"per_object": per_object, "per_image": per_image}
    # Only boxes without area are removed early; the final sizes are checked after the resize.
    sanitize = SanitizeObjects(min_size=_SMALLEST_SIDE, min_area=0, **fields)
    rules = ExtraRules("detection", flip_pairs, sanitize=sanitize)
    # Update visibility before the canvas grows: a point outside the image must not become a point on the padding.
    transforms: list[Any] = [UpdateVisibility(), *rules.steps("extra_before", extra_before)]
    before_mixing = len(transforms)
    if train:
        transforms += [transform for amount, transform in random_transforms if amount > 0]
    resize: dict[str, Any] = {"size": size, "max_size": max_size, "letterbox": letterbox, "fill": fill}
    transforms += _resize(**resize) if shorter_sides is None else _random_resize(shorter_sides, train=train, **resize)
    transforms += [
        *rules.steps("extra_after", extra_after),
        # After the resize, because the smallest sizes are in pixels of the result.
        SanitizeObjects(min_size=min_box_size, min_area=min_box_area, **fields),
        # Detection images differ in size and are batched as a list, which needs no planes.
        ToFloat32(planes=False) if to_float else ToUInt8(),
    ]
    return DecodeAwareCompose(transforms, before_mixing=before_mixing)


def _check_padding(keywords: Mapping[str, Any]) -> None:
    """Refuse a fill that has no effect in any epoch; one in epochs with padding may be constant."""
    fill = keywords["fill"]
    if fill != 0 and not keywords["letterbox"] and keywords["zoom_out"] == 0 and keywords["rotation"] == 0:
        raise ValueError(f"fill={fill} has no effect without letterbox=True, zoom_out or rotation; leave it out.")


def _random_resize(
    sides: Sequence[int],
    *,
    train: bool,
    size: int | Sequence[int] | None,
    max_size: int | None,
    letterbox: bool,
    fill: float,
) -> list[nn.Module]:
    if size is not None or letterbox or not sides:
        rule = f"must be lengths in pixels, without size={size} and letterbox={letterbox}"
        raise ValueError(f"shorter_sides={list(sides)} {rule}; remove it, or them.")
    # Making every resize checks every length, in either split.
    resizes = {side: _resize(size=side, max_size=max_size, letterbox=False, fill=fill) for side in sides}
    if not train:
        return resizes[max(sides)]
    return [v2.RandomShortestSize(whole_pixels("shorter_sides", sides), max_size=whole_pixels("max_size", max_size))]


def _resize(*, size: int | Sequence[int] | None, max_size: int | None, letterbox: bool, fill: float) -> list[nn.Module]:
    size = whole_pixels("size", size)
    max_size = whole_pixels("max_size", max_size)
    pair = size if isinstance(size, list) else None
    if pair is not None and max_size is not None:
        raise ValueError(f"max_size={max_size} cannot be combined with size={size}; give one of them.")
    if pair is None and letterbox:
        raise ValueError(f"letterbox=True needs size=(height, width), got size={size}.")
    if pair is not None and len(pair) != 2:
        raise ValueError(f"size={pair} is not (height, width) in pixels.")
    if pair is not None and letterbox:
        return [Letterbox(pair, fill=fill)]
    if size is None and max_size is None:
        return []
    return [v2.Resize(size, max_size=max_size)]
