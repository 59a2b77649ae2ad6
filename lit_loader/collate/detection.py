"""Collation of detection samples: images of one size or several, with any number of boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_loader.collate.default import default_collate
from lit_loader.collate.samples import pad_images, plain_images, stack_images, transpose_samples
from lit_loader.errors import SettingError

_CLASSIC_COLUMNS = 5  # x1, y1, x2, y2, class

_ONE_SIZE = 'resize them in the dataset\'s transforms, or collate with images="list" or images="pad"'


class PaddedBatch(NamedTuple):
    """A batch of images of different sizes, padded to one tensor.

    It starts with ``images, targets`` like the batches of the other modes. Images are at the top left, so boxes stay
    the same; their ``canvas_size`` is still the size of the image without padding.

    Attributes:
        images: ``(B, C, H, W)``.
        targets: One target per sample, as in the other modes.
        mask: bool ``(B, H, W)``, True for pixels of an image, False for padding. DETR's masks are ``~mask``.
        sizes: int64 ``(B, 2)``, height and width of each image in pixels.
        extras: Further elements of the samples, each collated by `default_collate`.
    """

    images: Tensor
    targets: list[Any]
    mask: Tensor
    sizes: Tensor
    extras: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DetectionCollate:
    """A collate function for ``(image, target, ...)`` samples; picklable for every start method of workers.

    Images are ``(C, H, W)`` tensors and are returned as plain tensors, because ``torch.stack`` cannot keep the type
    ``tv_tensors.Image``. Targets are returned as a list, one per sample: dicts unchanged, with their
    ``tv_tensors.BoundingBoxes`` and all other fields; rows of numbers (``N x 5`` lists, arrays, tensors) as float32
    ``(N, 5)`` tensors. N may be 0, also as an empty list.

    - ``stack``: ``(images (B, C, H, W), targets, *extras)``, for images of one size.
    - ``list``: ``(list of (C, H, W), targets, *extras)``, for torchvision's detectors.
    - ``pad``: ``PaddedBatch(images, targets, mask, sizes, extras)``, for models that take one tensor.

    The structure of the result depends only on the arguments, not on the contents of a batch.

    Runs in: workers and the main process. Determinism: no randomness.

    Args:
        images: How images are combined: ``stack``, ``list`` or ``pad``.
        size_divisor: Round the batch's height and width up to a multiple (``pad`` only).
        pad_value: Value of padded pixels, in the images' own units (``pad`` only).

    Raises:
        ValueError: If an argument has no such choice, or has no effect with this ``images``.
    """

    images: Literal["stack", "list", "pad"] = "stack"
    size_divisor: int = 1
    pad_value: float = 0

    def __post_init__(self) -> None:
        if self.images not in ("stack", "list", "pad"):
            raise ValueError(f'expected images to be "stack", "list" or "pad", got images={self.images!r}.')
        if self.size_divisor < 1:
            raise ValueError(f"expected size_divisor >= 1, got size_divisor={self.size_divisor}.")
        # Ignoring the arguments would hide a forgotten images="pad".
        if self.images != "pad" and (self.size_divisor != 1 or self.pad_value != 0):
            rule = f"leaves size_divisor={self.size_divisor} and pad_value={self.pad_value} without effect"
            raise SettingError("images", self.images, rule, "leave them out", settings={"images": "pad"})

    def __call__(self, batch: Sequence[Any]) -> tuple[Any, ...]:
        """Collate one batch.

        Args:
            batch: Samples ``(image, target, ...)``, all of the same length.

        Returns:
            The tuple of the mode: see the class.

        Raises:
            TypeError: If a sample is not a tuple or list, or an image not a tensor.
            ValueError: If the batch is empty, images cannot be combined, or a target has no rows of numbers.
        """
        images, raw_targets, *columns = transpose_samples(batch)
        targets = _convert_targets(raw_targets)
        # Not torch's function, which would put them into shared memory of its own.
        extras = tuple(map(default_collate, columns))
        if self.images == "pad":
            padded, mask, sizes = pad_images(images, size_divisor=self.size_divisor, pad_value=self.pad_value)
            return PaddedBatch(padded, targets, mask, sizes, extras)
        if self.images == "stack":
            return (stack_images(images, remedy=_ONE_SIZE), targets, *extras)
        return (plain_images(images), targets, *extras)


def detection_collate(batch: Sequence[Any], **settings: Any) -> tuple[Any, ...]:
    """Collate detection samples to stacked images and a list of targets.

    For other modes, pass ``collate_fn=DetectionCollate(images="list")`` to a loader; this function calls it.

    Args:
        batch: Samples ``(image, target, ...)``.
        settings: Arguments of `DetectionCollate`.

    Returns:
        The tuple that `DetectionCollate` returns.

    Raises:
        TypeError, ValueError: As `DetectionCollate`.
    """
    return DetectionCollate(**settings)(batch)


def _convert_targets(targets: Sequence[Any]) -> list[Any]:
    """Return one target per sample: dicts unchanged, rows of numbers as float32 tensors ``(N, K)``.

    An empty list becomes ``(0, K)``, with K of the batch's other targets, or 5.
    """
    rows = [target if isinstance(target, Mapping) else _as_rows(target) for target in targets]
    # All targets of a batch get one width, so that code for the batch can concatenate them.
    widths = [len(row[0]) for row in rows if isinstance(row, Tensor) and row.ndim == 2 and len(row)]
    width = widths[0] if widths else _CLASSIC_COLUMNS
    # An empty list has become a tensor of one dimension.
    return [
        row.reshape(0, width) if isinstance(row, Tensor) and row.ndim == 1 and not len(row) else row for row in rows
    ]


def _as_rows(target: Any) -> Tensor:
    if isinstance(target, Tensor):
        # Rows with a column for the class are no longer BoundingBoxes.
        rows = target.as_subclass(Tensor).to(torch.float32)
    else:
        # np.array copies: the batch must not share memory with an array that the dataset keeps.
        rows = torch.from_numpy(np.array(target, dtype=np.float32))
    if rows.ndim != 2 and rows.shape != (0,):
        raise ValueError(
            f"expected a target to be a dict or N x K numbers, one row per object, got shape {tuple(rows.shape)}; for "
            "one label per image use default_collate."
        )
    return rows
