"""Presets for classification and landmarks: whole images or crops of objects, at one size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from torch import nn
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.schedules import Scheduled, ScheduledInt
from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.crops import Around, CropToObjects, Fit
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FLIP_REMEDY, FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.preset_checks import check_chances, check_fill, whole_pixels
from lit_loader.transforms.preset_extras import ExtraRules
from lit_loader.transforms.resized_crop import RandomResizedCrop
from lit_loader.transforms.scheduled import scheduled_keywords, scheduled_preset
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["classification_transforms", "landmark_transforms"]

_ONLY_TRAINING: Final = ("area", "shift", "scale", "rotation", "hflip", "vflip", "photometric")
_DEFAULT_AREA = (0.08, 1.0)
# Evaluation on ImageNet resizes to 256 and crops 224.
_CENTER_CROP = 224 / 256


def classification_transforms(
    train: bool,
    *,
    size: ScheduledInt | Sequence[ScheduledInt] = 224,
    resize: Fit | None = None,
    area: Sequence[Scheduled] | None = None,
    crop: bool = False,
    margin: Scheduled = 0.0,
    shift: Scheduled = 0.0,
    scale: Sequence[Scheduled] = (1.0, 1.0),
    rotation: Scheduled = 0.0,
    hflip: Scheduled = 0.5,
    vflip: Scheduled = 0.0,
    flip_pairs: FlipPairs | None = None,
    photometric: Scheduled = 0.0,
    fill: Scheduled = 0,
    extra_before: Sequence[Any] = (),
    extra_after: Sequence[Any] = (),
    to_float: bool = True,
) -> nn.Module:
    """Compose a transform for images, or for ``(image, target)`` samples, that returns images of one size.

    By default, whole images are shown as in ImageNet training: a random part (`RandomResizedCrop`) in training, and the
    central 7/8 of the shorter side in evaluation. With ``resize``, ``margin``, ``shift``, ``scale``, ``rotation`` or
    ``fill``, and for crops of objects, the image is shown by one view instead, which is shifted, scaled and rotated at
    random in training only (see `CropToObjects`). Then follow flips and photometric distortion, in training only, and
    conversion to float32 in [0, 1]. With ``train=False`` only the extra transforms can be random, so both splits can
    use the same arguments. Without ``crop`` the target may be anything: a label is unchanged, and boxes,
    points and masks are transformed.

    Every number may be a schedule, or a mapping that describes one, also in lists, as in `detection_transforms`. A
    scheduled ``margin``, ``shift``, ``scale``, ``rotation`` or ``fill`` means one view in every epoch, also where its
    value is 0.

    Determinism: draws only from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: (height, width) of the result, in pixels, or one number for both.
        resize: How to adapt an image or object to the aspect ratio of ``size``: ``"crop"`` cuts its longer side around
            the centre, ``"letterbox"`` shows all of it and its surroundings (``fill`` beyond the image), ``"stretch"``
            stretches it. None means ``"letterbox"`` with ``crop``, otherwise ``"crop"``.
        area: Smallest and largest fraction of the image's area that a random part shows; None means (0.08, 1). Only for
            whole images shown as in ImageNet training.
        crop: Show the target's only object instead of the whole image.
        margin: Fraction of width and height to add on each side.
        shift: Largest shift of the view along x and y, as a fraction of its width and height.
        scale: Smallest and largest factor for the view's sides; below 1 zooms in, above 1 zooms out.
        rotation: Largest rotation in either direction, in degrees.
        hflip: Probability of a horizontal flip.
        vflip: Probability of a vertical flip.
        flip_pairs: Pairs of positions of points that a flip swaps, for targets with points.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue, channel order).
        fill: Value of pixels beyond the image, 0..255.
        extra_before: Your own transforms of ``(image, target)`` or of an image, with or without ``train``, before all
            others. With ``crop`` they must move boxes with the pixels.
        extra_after: The same before the conversion, with the uint8 image in its final size.
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8, channels last in memory.

    Returns:
        A picklable module, called as ``transform(image)`` or ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range, or has no effect with the others.

    Source:
        torchvision's references/classification: RandomResizedCrop(224) and a flip; Resize(256), CenterCrop(224).
    """
    keywords = scheduled_keywords({name: value for name, value in locals().items() if name != "train"})
    # RandomResizedCrop knows none of these arguments, so any of them needs the view of `CropToObjects`. A schedule is
    # true also in epochs where its value is 0, so the kind of view never changes within a run.
    use_view = any(keywords[name] for name in ("resize", "crop", "margin", "shift", "rotation", "fill"))
    scale = keywords["scale"]
    keywords["use_view"] = use_view or not isinstance(scale, Sequence) or tuple(scale) != (1.0, 1.0)
    return scheduled_preset(_classification_compose, train, keywords, only_training=_ONLY_TRAINING)


def _classification_compose(
    train: bool,
    *,
    use_view: bool,
    size: int | Sequence[int],
    resize: Fit | None,
    area: Sequence[float] | None,
    crop: bool,
    margin: float,
    shift: float,
    scale: Sequence[float],
    rotation: float,
    hflip: float,
    vflip: float,
    flip_pairs: FlipPairs | None,
    photometric: float,
    fill: float,
    extra_before: Sequence[Any],
    extra_after: Sequence[Any],
    to_float: bool,
) -> nn.Module:
    """Return the preset's transforms for values without schedules."""
    area_range = _area_range(area, use_view)
    around: Around = "box" if crop else "image"
    fit: Fit = resize or ("letterbox" if crop else "crop")
    make_view = partial(
        CropToObjects, size=whole_pixels("size", size), margin=margin, around=around, fit=fit, fill=fill
    )
    # Both views are made in either split, so that both refuse a wrong argument.
    if use_view:
        views = {True: make_view(shift=shift, scale=scale, rotation=rotation), False: make_view()}
    else:
        central_view = make_view(scale=(_CENTER_CROP, _CENTER_CROP))
        views = {True: RandomResizedCrop(central_view.size, scale=area_range), False: central_view}
    task = "classification of crops" if crop else "classification"
    # A crop needs the object's box, and nothing after it does.
    first_steps = ExtraRules(task, flip_pairs, needs_objects=crop).steps("extra_before", extra_before)
    last_steps = ExtraRules(task, flip_pairs, needs_objects=False).steps("extra_after", extra_after)
    settings: Any = {"flip_pairs": flip_pairs, "photometric": photometric, "fill": fill, "to_float": to_float}
    return _compose(views[train], train, [first_steps, last_steps], hflip=hflip, vflip=vflip, **settings)


def _area_range(area: Sequence[float] | None, use_view: bool) -> tuple[float, float]:
    """Return the smallest and largest fraction of an image's area that a random part shows."""
    if area is not None and use_view:
        rule = "is for whole images without resize, margin, shift, scale, rotation and fill"
        raise ValueError(f"area={area} {rule}; remove area or those arguments.")
    min_area, max_area = _DEFAULT_AREA if area is None else area
    if not 0 < min_area <= max_area <= 1:
        raise ValueError(f"area={area} is not (smallest, largest) with 0 < smallest <= largest <= 1.")
    return min_area, max_area


def landmark_transforms(
    train: bool,
    *,
    size: ScheduledInt = 256,
    margin: Scheduled = 0.25,
    around: Around = "box",
    shift: Scheduled = 0.0,
    scale: Sequence[Scheduled] = (1.0, 1.0),
    rotation: Scheduled = 0.0,
    hflip: Scheduled = 0.5,
    flip_pairs: FlipPairs | None = None,
    photometric: Scheduled = 0.0,
    fill: Scheduled = 0,
    extra_before: Sequence[Any] = (),
    extra_after: Sequence[Any] = (),
    to_float: bool = True,
) -> nn.Module:
    """Compose a square crop to a sample's only object with augmentations for its points.

    The order is: ``extra_before``; the crop (`CropToObjects`); horizontal flip and photometric distortion, in training
    only; ``extra_after``; conversion to float32. With ``train=False`` only the extra transforms can be random. The
    object is never removed: the target always has one row, and points that leave the crop get visibility 0.

    Every number may be a schedule, or a mapping that describes one, also in lists, as in `detection_transforms`.

    Determinism: draws only from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: Height and width of the result, in pixels.
        margin: Fraction of the box's width and height to add on each side.
        around: ``"box"``; ``"points"`` for the box of the present points (the object's box if fewer than two are
            present); or ``"image"`` for the whole image, plus ``margin``.
        shift: Largest shift of the crop along x and y, as a fraction of its side.
        scale: Smallest and largest factor for the crop's side; above 1 shows more around the object.
        rotation: Largest rotation in either direction, in degrees.
        hflip: Probability of a horizontal flip.
        flip_pairs: Pairs of positions of points that a flip swaps, ``[]`` for none; training with ``hflip`` needs them.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue, channel order).
        fill: Value of pixels beyond the image, 0..255.
        extra_before: Your own transforms of ``(image, target)``, with or without ``train``, before all others.
        extra_after: The same after the photometric distortion, with the uint8 crop in its final size.
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8, channels last in memory.

    Returns:
        A picklable module, called as ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range, or ``hflip`` is above 0 in training without ``flip_pairs``.

    Source:
        Sun et al. 2019, HRNet, section 4.4: 256 x 256, on faces ``scale=(0.75, 1.25)`` and ``rotation=30``.
    """
    keywords = scheduled_keywords({name: value for name, value in locals().items() if name != "train"})
    return scheduled_preset(_landmark_compose, train, keywords, only_training=_ONLY_TRAINING)


def _landmark_compose(
    train: bool,
    *,
    size: int,
    margin: float,
    around: Around,
    shift: float,
    scale: Sequence[float],
    rotation: float,
    hflip: float,
    flip_pairs: FlipPairs | None,
    photometric: float,
    fill: float,
    extra_before: Sequence[Any],
    extra_after: Sequence[Any],
    to_float: bool,
) -> nn.Module:
    """Return the preset's transforms for values without schedules."""
    # The flip would only refuse the first batch; a landmark dataset always has points, so refuse now.
    if train and hflip > 0 and flip_pairs is None:
        rule = "would label left points as right without flip_pairs"
        raise SettingError("hflip", hflip, rule, FLIP_REMEDY, settings={"hflip": 0})
    make_view = partial(CropToObjects, size=whole_pixels("size", size), margin=margin, around=around, fill=fill)
    views = {True: make_view(shift=shift, scale=scale, rotation=rotation), False: make_view()}
    rules = ExtraRules("landmarks", flip_pairs)
    extras = [rules.steps("extra_before", extra_before), rules.steps("extra_after", extra_after)]
    settings: Any = {"flip_pairs": flip_pairs, "photometric": photometric, "fill": fill, "to_float": to_float}
    return _compose(views[train], train, extras, hflip=hflip, **settings)


def _compose(
    view: nn.Module,
    train: bool,
    extras: Sequence[list[nn.Module]],
    *,
    hflip: float,
    flip_pairs: FlipPairs | None,
    photometric: float,
    fill: float,
    to_float: bool,
    vflip: float = 0.0,
) -> nn.Module:
    """Compose a view with the random transforms of training, a user's transforms, and the conversion of the image."""
    check_chances(hflip=hflip, vflip=vflip, photometric=photometric)
    check_fill(fill)
    # All are made in either split, so that both refuse a wrong argument.
    random_transforms = (
        (hflip, RandomHorizontalFlip(hflip, flip_pairs=flip_pairs)),
        (vflip, RandomVerticalFlip(vflip, flip_pairs=flip_pairs)),
        (photometric, v2.RandomPhotometricDistort(p=photometric)),
    )
    transforms = [transform for chance, transform in random_transforms if train and chance > 0]
    first_steps, last_steps = extras
    # A point outside the image must be absent before a transform moves it.
    steps = [UpdateVisibility(), *first_steps] if first_steps else []
    steps += [view, *transforms, *last_steps]
    return DecodeAwareCompose([*steps, ToFloat32() if to_float else ToUInt8()])
