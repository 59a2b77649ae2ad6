"""The classification preset: whole images or crops of objects, at one size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torchvision.transforms import v2

from lit_loader.transforms.crops import Around, CropToObjects, Fit
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import FlipPairs, RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.preset_checks import check_chances, check_fill
from lit_loader.transforms.reading import DecodeAwareCompose

__all__ = ["classification_transforms"]


def classification_transforms(
    train: bool,
    *,
    size: int | Sequence[int],
    resize: Fit | None = None,
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

    In this order: the view of the image or object, moved, sized and turned at random in training only (see
    ``CropToObjects``); flips and photometric distortion, in training only; conversion to float32 in [0, 1].
    With ``train=False`` nothing is random, so that one set of arguments serves both splits. Without
    ``crop`` the target may be anything (a label passes as it is); boxes, points and masks in it move along.

    Determinism: every draw comes from torch's global generator.

    Args:
        train: Apply the random transforms.
        size: (height, width) of the result, in pixels, or one number for both.
        resize: How an image or object of another shape gets that of ``size``: ``"crop"`` cuts its longer
            side about the middle, ``"letterbox"`` shows all of it and what lies around (``fill`` beyond
            the image), ``"stretch"`` stretches it. ``None``: ``"crop"``, or ``"letterbox"`` with ``crop``.
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
        to_float: Convert the image to float32 in [0, 1]; ``False`` keeps uint8.

    Returns:
        A picklable module, called as ``transform(image)`` or ``transform(image, target)``.

    Raises:
        ValueError: An argument is outside its range.
    """
    check_chances(hflip=hflip, vflip=vflip, photometric=photometric)
    check_fill(fill)
    fit: Fit = resize or ("letterbox" if crop else "crop")
    around: Around = "box" if crop else "image"
    # Made for evaluation too, so that a wrong argument is found in either split.
    augmented = CropToObjects(
        size=size,
        margin=margin,
        around=around,
        fit=fit,
        shift=shift,
        scale=scale,
        rotation=rotation,
        fill=fill,
    )
    flips = [
        RandomHorizontalFlip(p=hflip, flip_pairs=flip_pairs),
        RandomVerticalFlip(p=vflip, flip_pairs=flip_pairs),
    ]
    plain = CropToObjects(size=size, margin=margin, around=around, fit=fit, fill=fill)
    parts: list[Any] = [augmented if train else plain]
    if train:
        parts += [flip for flip in flips if flip.p > 0]
        parts += [v2.RandomPhotometricDistort(p=photometric)] if photometric > 0 else []
    parts.append(ToFloat32() if to_float else ToUInt8())
    return DecodeAwareCompose(parts)
