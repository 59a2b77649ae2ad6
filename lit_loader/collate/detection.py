"""Collation of detection samples: images of equal or unequal sizes, any number of boxes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_loader.collate.default import default_collate
from lit_loader.collate.samples import (
    pad_images,
    plain_images,
    stack_images,
    transpose_samples,
)

_CLASSIC_COLUMNS = 5  # x1, y1, x2, y2, class

_ONE_SIZE = 'resize them in the dataset\'s transforms, or collate with images="list" or images="pad"'


class PaddedBatch(NamedTuple):
    """A batch of images of different sizes in one tensor; starts with ``images, targets`` as every mode.

    Boxes need no change, since images stand at the top left; their ``canvas_size`` stays that of the image.

    Attributes:
        images: ``(B, C, H, W)``.
        targets: As in the other modes.
        mask: bool ``(B, H, W)``, True on real pixels. DETR's masks are the inverse, ``~mask``.
        sizes: int64 ``(B, 2)``, height and width of each image in pixels.
        extras: What the samples hold beyond image and target, one entry an element, collated by `default_collate`.
    """

    images: Tensor
    targets: list[Any]
    mask: Tensor
    sizes: Tensor
    extras: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DetectionCollate:
    """A collate function for ``(image, target, ...)`` samples; picklable, so any start method of workers can be used.

    Images are ``(C, H, W)`` tensors and come out as plain tensors: ``torch.stack`` cannot keep the type
    ``tv_tensors.Image``. Targets are kept whole, one per sample: a dict stays the dict it is, with its
    ``tv_tensors.BoundingBoxes`` and every further field, per object or per image; rows of numbers (``N x 5``
    lists, arrays, tensors) become float32 ``(N, 5)`` tensors. N may be 0, an empty list included.

    - ``stack``: ``(images (B, C, H, W), targets, *extras)``, for equal sizes; the classic function.
    - ``list``: ``(list of (C, H, W), targets, *extras)``, for torchvision's detectors.
    - ``pad``: ``PaddedBatch(images, targets, mask, sizes, extras)``, for models that take one tensor.

    The shape of the result depends on the arguments and not on the contents of a batch.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        images: How images are put together: ``stack``, ``list`` or ``pad``.
        size_divisor: Round the batch's height and width up to a multiple (``pad`` only).
        pad_value: Value of padded pixels, in the images' own units (``pad`` only).

    Raises:
        ValueError: An argument is outside its choices or has no effect with this ``images``.
    """

    images: Literal["stack", "list", "pad"] = "stack"
    size_divisor: int = 1
    pad_value: float = 0

    def __post_init__(self) -> None:
        if self.images not in ("stack", "list", "pad"):
            raise ValueError(f'images={self.images!r} is not one of "stack", "list", "pad".')
        if self.size_divisor < 1:
            raise ValueError(f"size_divisor={self.size_divisor} must be at least 1.")
        if self.images != "pad" and (self.size_divisor != 1 or self.pad_value != 0):
            raise ValueError(
                f"size_divisor={self.size_divisor} and pad_value={self.pad_value} have no effect with "
                f'images={self.images!r}; leave them out or give images="pad".'
            )

    def __call__(self, batch: Sequence[Any]) -> tuple[Any, ...]:
        """Collate one batch.

        Args:
            batch: Samples ``(image, target, ...)``, all of the same length.

        Returns:
            See the class.

        Raises:
            TypeError: If a sample is not a tuple or list, an image not a tensor, or a field to pad not a tensor.
            ValueError: If the batch is empty, its images cannot be put together, or its targets cannot be padded.
        """
        pixels, given, *further = transpose_samples(batch)
        targets = _convert_targets(given)
        extras = tuple(map(default_collate, further))
        if self.images == "pad":
            padded, mask, sizes = pad_images(pixels, size_divisor=self.size_divisor, pad_value=self.pad_value)
            return PaddedBatch(padded, targets, mask, sizes, extras)
        images = stack_images(pixels, remedy=_ONE_SIZE) if self.images == "stack" else plain_images(pixels)
        return (images, targets, *extras)


def detection_collate(batch: Sequence[Any], **settings: Any) -> tuple[Any, ...]:
    """Collate detection samples; without settings the classic function: stacked images and a list of targets.

    As a ``collate_fn`` with settings use ``DetectionCollate(images="list")`` and so on, which this calls.

    Args:
        batch: Samples ``(image, target, ...)``.
        settings: Arguments of `DetectionCollate`; any others are refused.

    Returns:
        See ``DetectionCollate``.

    Raises:
        TypeError, ValueError: As ``DetectionCollate``.
    """
    return DetectionCollate(**settings)(batch)


def _convert_targets(targets: Sequence[Any]) -> list[Any]:
    """Return one target per sample: dicts as they are, rows of numbers as float32 tensors ``(N, K)``.

    An empty list has K columns too, as many as the batch's other targets, or 5.
    """
    rows = [target if isinstance(target, Mapping) else _as_rows(target) for target in targets]
    widths = [len(row[0]) for row in rows if isinstance(row, Tensor) and row.ndim == 2 and len(row)]
    width = widths[0] if widths else _CLASSIC_COLUMNS
    return [
        row.reshape(0, width) if isinstance(row, Tensor) and row.ndim == 1 and not len(row) else row
        for row in rows
    ]


def _as_rows(target: Any) -> Tensor:
    if isinstance(target, Tensor):
        rows = target.as_subclass(Tensor).to(torch.float32)
    else:  # np.array copies: the batch must not share memory with an array that the data set keeps
        rows = torch.from_numpy(np.array(target, dtype=np.float32))
    if rows.ndim != 2 and rows.shape != (0,):
        raise ValueError(
            f"a target has shape {tuple(rows.shape)}; expected N x K numbers, one row per object, or a "
            "dict. For one label per image use torch's default_collate."
        )
    return rows
