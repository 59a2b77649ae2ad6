"""Presets for classification and landmarks: whole images or crops of objects, at one size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn
from torchvision.transforms import v2

from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.crops import Around, CropToObjects, Fit
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FLIP_REMEDY, FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.preset_checks import check_chances, check_fill
from lit_loader.transforms.resized_crop import RandomResizedCrop

__all__ = ["classification_transforms", "landmark_transforms"]

_AREA = (0.08, 1.0)
_SHOWN = 0.875  # 224 of 256


def classification_transforms(
    train: bool,
    *,
    size: int | Sequence[int] = 224,
    resize: Fit | None = None,
    area: Sequence[float] | None = None,
    crop: bool = False,
    margin: float = 0.0,
    shift: float = 0.0,
    scale: Sequence[float] = (1.0, 1.0),
    rotation: float = 0.0,
    hflip: float = 0.5,
    vflip: float = 0.0,
    flip_pairs: FlipPairs | None = None,
    photometric: float = 0.0,
    fill: float = 0,
    to_float: bool = True,
) -> nn.Module:
    """Compose a transform for an image, or for ``(image, target)``, that gives images of one size.

    Whole images are shown as models of ImageNet are trained: in training a random part (`RandomResizedCrop`), else
    the middle 7/8 of the shorter side. With ``resize``, ``margin``, ``shift``, ``scale``, ``rotation`` or ``fill``, and
    for crops of objects, it is one view, moved, sized and turned at random in training only (see `CropToObjects`).
    Flips and photometric distortion follow, in training only, and conversion to float32 in [0, 1]. With ``train=False``
    nothing is random, so that one set of arguments serves both splits. Without ``crop`` the target may be anything (a
    label passes as it is); boxes, points and masks in it move along.

    Determinism: every draw comes from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: (height, width) of the result, in pixels, or one number for both.
        resize: How an image or object of another shape gets that of ``size``: ``"crop"`` cuts its longer
            side about the middle, ``"letterbox"`` shows all of it and what lies around (``fill`` beyond
            the image), ``"stretch"`` stretches it. None is ``"letterbox"`` with ``crop``, else ``"crop"``.
        area: Smallest and largest share of the image's area that a random part shows; None is (0.08, 1). For whole
            images that are shown as ImageNet's.
        crop: Show the target's one object instead of the whole image.
        margin: Share of width and height added on each side.
        shift: Largest move of the view along x and y, as a share of its width and height.
        scale: Smallest and largest factor for the view's sides; below 1 zooms in, above 1 out.
        rotation: Largest turn to either side, in degrees.
        hflip: Probability of a horizontal flip.
        vflip: Probability of a vertical flip.
        flip_pairs: Positions of points that exchange their places in a flip, for targets with points.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue,
            channel order).
        fill: Value of pixels beyond the image, 0..255.
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8, channels last in memory.

    Returns:
        A picklable module, called as ``transform(image)`` or ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range, or has no effect beside the others.

    Source:
        torchvision's references/classification: RandomResizedCrop(224) and a flip; Resize(256), CenterCrop(224).
    """
    is_view = bool(resize or crop or margin or shift or rotation or fill or tuple(scale) != (1.0, 1.0))
    if area is not None and is_view:
        raise ValueError(
            f"area={area} is for whole images without resize, margin, shift, scale, rotation and fill; leave it out, "
            "or those."
        )
    low, high = _AREA if area is None else area
    if not 0 < low <= high <= 1:
        raise ValueError(f"area={area} is not (smallest, largest) with 0 < smallest <= largest <= 1.")
    view = partial(
        CropToObjects,
        size=size,
        margin=margin,
        around="box" if crop else "image",
        fit=resize or ("letterbox" if crop else "crop"),
        fill=fill,
    )
    plain = view() if is_view else view(scale=(_SHOWN, _SHOWN))
    moved = (
        view(shift=shift, scale=scale, rotation=rotation)
        if is_view
        else RandomResizedCrop(plain.size, scale=(low, high))
    )
    chances = {"hflip": hflip, "vflip": vflip, "photometric": photometric}
    return _composed(
        moved if train else plain, train, flip_pairs=flip_pairs, fill=fill, to_float=to_float, **chances
    )


def landmark_transforms(
    train: bool,
    *,
    size: int = 256,
    margin: float = 0.25,
    around: Around = "box",
    shift: float = 0.0,
    scale: Sequence[float] = (1.0, 1.0),
    rotation: float = 0.0,
    hflip: float = 0.5,
    flip_pairs: FlipPairs | None = None,
    photometric: float = 0.0,
    fill: float = 0,
    to_float: bool = True,
) -> nn.Module:
    """Compose a square crop of a sample's one object with augmentation for its points.

    In this order: the crop, moved, sized and turned at random in training only (see `CropToObjects`: the pixels come
    from the image in one go); horizontal flip and photometric distortion, in training only; conversion to float32 in
    [0, 1]. With ``train=False`` nothing is random, so that one set of arguments serves both splits. HRNet's training
    of faces is ``scale=(0.75, 1.25), rotation=30``.

    Objects are never dropped: the target keeps its one row, and points that leave the crop get visibility 0.

    Determinism: every draw comes from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: Height and width of the result, in pixels.
        margin: Share of the box's width and height added on each side.
        around: ``"box"``; ``"points"`` for the box of the present points (the object's box where fewer than
            two are present); or ``"image"`` for the whole image, which ``margin`` grows too.
        shift: Largest move of the crop along x and y, as a share of its side.
        scale: Smallest and largest factor for the crop's side; above 1 shows more around the object.
        rotation: Largest turn to either side, in degrees.
        hflip: Probability of a horizontal flip.
        flip_pairs: Positions of points that exchange their places in a flip, ``[]`` if every point keeps its name;
            needed for training with ``hflip`` above 0.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue,
            channel order).
        fill: Value of pixels beyond the image, 0..255.
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8, channels last in memory.

    Returns:
        A picklable module, called as ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range, or flips are asked for without ``flip_pairs``.

    Source:
        Sun et al. 2019, High-Resolution Representations for Labeling Pixels and Regions, section 4.4 (256 x 256).
    """
    if train and hflip > 0 and flip_pairs is None:
        raise ValueError(
            f"hflip={hflip} names left points right unless flip_pairs says which exchange their places; {FLIP_REMEDY}."
        )
    view = partial(CropToObjects, size=size, margin=margin, around=around, fill=fill)
    plain, moved = view(), view(shift=shift, scale=scale, rotation=rotation)
    chances = {"hflip": hflip, "photometric": photometric}
    return _composed(
        moved if train else plain, train, flip_pairs=flip_pairs, fill=fill, to_float=to_float, **chances
    )


def _composed(
    first: nn.Module,
    train: bool,
    *,
    flip_pairs: FlipPairs | None,
    fill: float,
    to_float: bool,
    hflip: float,
    photometric: float,
    vflip: float = 0.0,
) -> nn.Module:
    """Compose a preset; everything is made for either split, so that a wrong argument is found in both."""
    check_chances(hflip=hflip, vflip=vflip, photometric=photometric)
    check_fill(fill)
    random_parts = (
        (hflip, RandomHorizontalFlip(hflip, flip_pairs=flip_pairs)),
        (vflip, RandomVerticalFlip(vflip, flip_pairs=flip_pairs)),
        (photometric, v2.RandomPhotometricDistort(p=photometric)),
    )
    parts = [part for chance, part in random_parts if train and chance > 0]
    return DecodeAwareCompose([first, *parts, ToFloat32() if to_float else ToUInt8()])
