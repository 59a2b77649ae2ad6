"""The landmark preset: crops of one object, augmented as landmark training wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn
from torchvision.transforms import v2

from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FLIP_REMEDY, FlipPairs, RandomHorizontalFlip
from lit_loader.transforms.preset_checks import check_chances, check_fill
from lit_loader.transforms.reading import DecodeAwareCompose

__all__ = ["landmark_transforms"]


def landmark_transforms(
    train: bool,
    *,
    size: int,
    margin: float = 0.25,
    around: Literal["box", "points"] = "box",
    shift: float = 0.0,
    scale: Sequence[float] = (1.0, 1.0),
    rotation: float = 0.0,
    perspective: float = 0.0,
    hflip: float = 0.5,
    flip_pairs: FlipPairs | None = None,
    photometric: float = 0.0,
    fill: float = 0,
    to_float: bool = True,
) -> nn.Module:
    """Compose a square crop of a sample's one object with augmentation for its points.

    In this order: the crop, moved, sized, turned and bent at random in training only (see
    ``CropToObjects``: the pixels come from the image in one go); horizontal flip and photometric distortion,
    in training only; conversion to float32 in [0, 1]. With ``train=False`` nothing is random, so that one set
    of arguments serves both splits.

    Objects are never dropped: the target keeps its one row, and points that leave the crop get visibility 0.

    Determinism: every draw comes from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: Height and width of the result, in pixels.
        margin: Share of the box's width and height added on each side.
        around: ``"box"``, or ``"points"`` for the box of the present points (the object's box where fewer than
            two are present).
        shift: Largest move of the crop along x and y, as a share of its side.
        scale: Smallest and largest factor for the crop's side; above 1 shows more around the object.
        rotation: Largest turn to either side, in degrees.
        perspective: Largest move of each corner along x and y, as a share of the side, at most 0.25.
        hflip: Probability of a horizontal flip.
        flip_pairs: Positions of points that exchange their places in a flip, ``[]`` if there are none;
            needed for training with ``hflip`` above 0.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue,
            channel order).
        fill: Value of pixels beyond the image, 0..255.
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8.

    Returns:
        A picklable module, called as ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range, or flips are asked for without ``flip_pairs``.
    """
    check_chances(hflip=hflip, photometric=photometric)
    check_fill(fill)
    if train and hflip > 0 and flip_pairs is None:
        raise ValueError(
            f"hflip={hflip} names left points right unless flip_pairs says which exchange their places; {FLIP_REMEDY}."
        )
    if around not in ("box", "points"):
        raise ValueError(f"around={around!r} is not 'box' or 'points'.")
    # Made for evaluation too, so that a wrong argument is found in either split.
    augmented = CropToObjects(
        size=size,
        margin=margin,
        around=around,
        shift=shift,
        scale=scale,
        rotation=rotation,
        perspective=perspective,
        fill=fill,
    )
    flip = RandomHorizontalFlip(p=hflip, flip_pairs=flip_pairs)
    plain = CropToObjects(size=size, margin=margin, around=around, fill=fill)
    parts: list[Any] = [augmented if train else plain]
    if train and hflip > 0:
        parts.append(flip)
    if train and photometric > 0:
        parts.append(v2.RandomPhotometricDistort(p=photometric))
    parts.append(ToFloat32() if to_float else ToUInt8())
    return DecodeAwareCompose(parts)
