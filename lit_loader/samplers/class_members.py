"""`ClassMembers`: which images contain which class, from any of the forms that labels come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lit_loader.samplers.checks import checked_integers
from lit_loader.types import IndexArray

__all__ = ["ClassMembers", "Labels", "class_members"]

Labels = (
    Sequence[int]
    | npt.NDArray[Any]
    | torch.Tensor
    | tuple[npt.NDArray[Any] | torch.Tensor, npt.NDArray[Any] | torch.Tensor]
    | Sequence[Sequence[int]]
)

_LARGEST_ID = 1_000_000  # or ten ids an image


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMembers:
    """The images of each class, ascending, class after class; images without a class come last.

    Attributes:
        num_images: Number of images.
        num_classes: Largest class id plus one.
        counts: int64 ``(num_classes + 1,)``, images that contain each class; the last entry counts the
            images that contain none.
        starts: int64 ``(num_classes + 2,)``; class c is ``members[starts[c] : starts[c + 1]]``.
        members: int64 image indices.
    """

    num_images: int
    num_classes: int
    counts: IndexArray
    starts: IndexArray
    members: IndexArray

    def largest(self, values: npt.NDArray[np.float64], *, empty: float) -> npt.NDArray[np.float64]:
        """Return for each image the largest value of its classes.

        Args:
            values: float64 ``(num_classes,)``, one for each class, not negative.
            empty: Value of an image without a class.

        Returns:
            float64 ``(num_images,)``.
        """
        result = np.zeros(self.num_images)
        with_class = self.members[: self.starts[-2]]
        np.maximum.at(result, with_class, np.repeat(values, self.counts[:-1]))
        result[self.members[self.starts[-2] :]] = empty
        return result


def class_members(labels: Labels) -> ClassMembers:
    """Return the images of each class.

    Args:
        labels: One class id an image, shape ``(num_images,)``, -1 for none; or a tuple
            ``(offsets, classes)``, where image i has ``classes[offsets[i] : offsets[i + 1]]``; or one
            sequence of class ids an image. A class that an image names twice counts once.

    Raises:
        TypeError: If the labels are not integers.
        ValueError: If there are no images, offsets do not fit, or a class id is negative (the first
            is named) or so large that most ids below it must be unused.
    """
    images, classes, num_images = _pairs(labels)
    if num_images == 0:
        raise ValueError("`labels` names no images; an order of images needs at least one")
    num_classes = int(classes.max(initial=-1)) + 1
    largest = max(_LARGEST_ID, 10 * num_images)
    if num_classes - 1 > largest:
        raise ValueError(
            f"class id {num_classes - 1} exceeds {largest}, and every id up to the largest costs memory; "
            "renumber the classes from 0, for instance by np.unique(classes, return_inverse=True)"
        )
    # One number a pair sorts by class and image. (np.unique does this too, ten times slower.)
    pairs = np.sort(classes * num_images + images)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # what an image names twice counts once
    members = pairs % num_images
    filled = np.zeros(num_images, dtype=np.bool_)
    filled[members] = True
    empty = np.flatnonzero(~filled)
    counts = np.bincount(pairs // num_images, minlength=num_classes).astype(np.int64)
    counts = np.append(counts, len(empty))
    return ClassMembers(
        num_images=num_images,
        num_classes=num_classes,
        counts=counts,
        starts=np.append(0, np.cumsum(counts)),
        members=np.concatenate([members, empty]),
    )


def _pairs(labels: Labels) -> tuple[IndexArray, IndexArray, int]:
    """Return (image, class) pairs in the images' order, and the number of images."""
    if isinstance(labels, tuple) and len(labels) == 2 and not isinstance(labels[0], int | np.integer):
        offsets, classes = (
            checked_integers(name, part) for part, name in zip(labels, ("offsets", "classes"), strict=True)
        )
        _check_offsets(offsets, len(classes))
    elif isinstance(labels, np.ndarray | torch.Tensor) or all(
        isinstance(label, int | np.integer) for label in labels
    ):
        single = checked_integers("labels", labels)
        _check_classes(single, minimum=-1, name="labels")
        images = np.flatnonzero(single >= 0)
        return images, single[images], len(single)
    else:
        rows = [checked_integers(f"labels[{i}]", row) for i, row in enumerate(labels)]
        offsets = np.cumsum([0] + [len(row) for row in rows])
        classes = np.concatenate(rows)
    _check_classes(classes, minimum=0, name="classes")
    num_images = len(offsets) - 1
    return np.repeat(np.arange(num_images), np.diff(offsets)), classes, num_images


def _check_offsets(offsets: IndexArray, num_objects: int) -> None:
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != num_objects or (np.diff(offsets) < 0).any():
        ends = "nothing" if len(offsets) == 0 else f"{offsets[0]} to {offsets[-1]}"
        raise ValueError(
            f"`offsets` must rise from 0 to len(classes)={num_objects} without falling, got {ends}; a tuple of two "
            "is (offsets, classes), so give one sequence of ids an image as a list"
        )


def _check_classes(classes: IndexArray, *, minimum: int, name: str) -> None:
    wrong = classes < minimum
    if wrong.any():
        first = int(wrong.argmax())
        none = " (-1 for none)" if minimum < 0 else ""
        raise ValueError(f"class ids count from 0{none}, got {name}[{first}]={classes[first]}")
