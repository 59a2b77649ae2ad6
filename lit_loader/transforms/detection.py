"""The detection preset: one function from plain numbers to a composed transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox, RandomObjectCrop
from lit_loader.transforms.preset_checks import check_chances, check_fill
from lit_loader.transforms.sanitize import SanitizeObjects
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["detection_transforms"]


def detection_transforms(
    train: bool,
    *,
    size: int | Sequence[int] | None = None,
    max_size: int | None = None,
    shorter_sides: Sequence[int] | None = None,
    letterbox: bool = False,
    fill: float = 0,
    hflip: float = 0.5,
    vflip: float = 0.0,
    photometric: float = 0.0,
    zoom_out: float = 0.0,
    iou_crop: float = 0.0,
    rotation: float = 0.0,
    flip_pairs: FlipPairs | None = None,
    min_box_size: float = 1.0,
    min_box_area: float = 1.0,
    per_object: Sequence[str] = (),
    per_image: Sequence[str] = (),
    to_float: bool = True,
) -> nn.Module:
    """Compose torchvision's v2 transforms for ``(image, target)`` samples, with or without points.

    In this order: photometric distortion, zoom out, IoU crop, rotation, flips (all in training only), resize,
    ``SanitizeObjects``, conversion to float32 in [0, 1]. With ``train=False`` nothing is random, and the
    probabilities are without effect, so that one set of arguments serves both splits. Points that leave the
    image get visibility 0; objects are dropped by their boxes alone.

    Determinism: every draw comes from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: ``None`` keeps the size; an int is the length of the shorter side, the aspect ratio kept; a
            pair is (height, width), stretched to unless ``letterbox``. In pixels.
        max_size: Longest side allowed, for an int ``size``, ``shorter_sides`` or neither: then the longer side
            becomes ``max_size``. In pixels.
        shorter_sides: Lengths of the shorter side of which one is drawn for every image, in place of ``size``;
            without ``train`` it is the largest of them. In pixels.
        letterbox: Keep the aspect ratio for a pair ``size`` and pad the rest.
        fill: Value of padded pixels (zoom out, rotation, letterbox), 0..255.
        hflip: Probability of a horizontal flip.
        vflip: Probability of a vertical flip.
        photometric: Probability of each photometric distortion (brightness, contrast, saturation, hue,
            channel order).
        zoom_out: Probability of putting the image on a canvas up to 4 times as large.
        iou_crop: Probability of a crop around objects.
        rotation: Largest turn about the image's centre to either side, in degrees, drawn for every image. A
            box becomes the one that encloses it turned, so it is looser than before.
        flip_pairs: Positions of points that exchange their places in a flip (left and right eye); ``[]`` if
            there are none. ``None`` declares nothing: a flip of a target with points is refused.
        min_box_size: Smallest side of a box kept, in pixels of the result.
        min_box_area: Smallest area of a box kept, in square pixels of the result.
        per_object: Further per-object fields of the target, see ``SanitizeObjects``.
        per_image: Further per-image fields of the target.
        to_float: Convert the image to float32 in [0, 1], channels last in memory if it comes so; ``False`` keeps uint8,
            channels last in memory.

    Returns:
        A picklable module, called as ``transform(image, target)``.

    Raises:
        ValueError: A probability is outside [0, 1], the sizes do not go together, ``fill`` has nothing to
            fill, ``rotation`` is not from 0 to 180, or ``flip_pairs`` are not disjoint pairs.
    """
    check_chances(hflip=hflip, vflip=vflip, photometric=photometric, zoom_out=zoom_out, iou_crop=iou_crop)
    check_fill(fill)
    if not 0 <= rotation <= 180:
        raise ValueError(f"rotation={rotation} must be from 0 to 180 degrees.")
    if fill != 0 and not letterbox and zoom_out == 0 and rotation == 0:
        raise ValueError(
            f"fill={fill} has no effect without letterbox=True, zoom_out or rotation above 0; leave it out."
        )
    pad = {tv_tensors.Mask: 0, "others": fill}
    bilinear = v2.InterpolationMode.BILINEAR
    # What enlarges the canvas comes after an update: a point beside the image must not land on the padding.
    parts: list[Any] = [UpdateVisibility()]
    random_parts = (
        (photometric, v2.RandomPhotometricDistort(p=photometric)),
        (zoom_out, v2.RandomZoomOut(fill=pad, p=zoom_out)),
        (iou_crop, v2.Compose([RandomObjectCrop(p=iou_crop), UpdateVisibility()])),
        (rotation, v2.Compose([v2.RandomRotation(rotation, bilinear, fill=pad), UpdateVisibility()])),
        (hflip, RandomHorizontalFlip(p=hflip, flip_pairs=flip_pairs)),
        (vflip, RandomVerticalFlip(p=vflip, flip_pairs=flip_pairs)),
    )
    if train:
        parts += [part for chance, part in random_parts if chance > 0]
    if shorter_sides is None:
        parts += _resize(size=size, max_size=max_size, letterbox=letterbox, fill=fill)
    else:
        if size is not None or letterbox:
            raise ValueError(
                f"shorter_sides={list(shorter_sides)} has no meaning beside size={size} and letterbox={letterbox}; "
                "leave them out, or shorter_sides."
            )
        parts.append(_drawn_resize(shorter_sides, max_size=max_size, train=train))
    parts.append(
        SanitizeObjects(
            min_size=min_box_size, min_area=min_box_area, per_object=per_object, per_image=per_image
        )
    )
    parts.append(ToFloat32(planes=False) if to_float else ToUInt8())
    return DecodeAwareCompose(parts)


def _drawn_resize(shorter_sides: Sequence[int], *, max_size: int | None, train: bool) -> nn.Module:
    sides = list(shorter_sides)
    if not sides:
        raise ValueError("shorter_sides=[] gives nothing to draw from; give lengths in pixels, or None.")
    checked = [_resize(size=side, max_size=max_size, letterbox=False, fill=0)[0] for side in sides]
    if not train:  # one size for all, and the finest
        return checked[sides.index(max(sides))]
    drawn: nn.Module = v2.RandomShortestSize([int(side) for side in sides], max_size=max_size)
    return drawn


def _resize(
    *, size: int | Sequence[int] | None, max_size: int | None, letterbox: bool, fill: float
) -> list[nn.Module]:
    sides = [] if size is None else [size] if isinstance(size, int) else list(size)
    sides += [] if max_size is None else [max_size]
    if any(isinstance(side, bool) or side != int(side) or side < 1 for side in sides):
        raise ValueError(f"size={size} and max_size={max_size} must be whole numbers of pixels, at least 1.")
    is_pair = size is not None and not isinstance(size, int)
    if letterbox and not is_pair:
        raise ValueError(f"letterbox=True needs size=(height, width), got size={size}.")
    if is_pair and max_size is not None:
        raise ValueError(f"max_size={max_size} has no meaning beside size={size}; give one of them.")
    if size is None:
        return [] if max_size is None else [v2.Resize(None, max_size=max_size)]
    if isinstance(size, int):
        return [v2.Resize(size, max_size=max_size)]
    if len(size) != 2:
        raise ValueError(f"size={list(size)} is not (height, width) in pixels.")
    return [Letterbox(size, fill=fill) if letterbox else v2.Resize([int(side) for side in size])]
