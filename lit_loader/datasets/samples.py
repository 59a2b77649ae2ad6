"""What is a sample: tables of whole images to tables with one row for each sample of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import image_labels
from lit_loader.datasets.targets import check_keypoints
from lit_loader.errors import SettingError

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable

__all__ = [
    "SampleTable",
    "SampleUnit",
    "check_sample_unit",
    "every_sample",
    "labelled_samples",
    "landmark_samples",
]

SampleUnit: TypeAlias = Literal["object", "image"]
"""Whether a sample is one object, cut out of its image, or a whole image."""


class SampleTable(NamedTuple):
    """A table with one image row for each sample, so that samplers and summaries work on it unchanged.

    Attributes:
        table: The samples.
        num_left_out: Objects (or, for whole images, images) of the given table that are no sample.
    """

    table: AnnotationTable
    num_left_out: int


def every_sample(table: AnnotationTable, *, sample_unit: SampleUnit = "image") -> SampleTable:
    """Return every image, or every object, whatever is known of it: the samples of prediction.

    Args:
        table: The annotations; with what this function gave, the result is that again.
        sample_unit: ``"image"``: one sample an image, ``"object"``: one sample an object.

    Raises:
        ValueError: ``objects`` is outside its choices.
    """
    check_sample_unit(sample_unit)
    if sample_unit == "image":
        return SampleTable(table, 0)
    return _one_row_each(table, np.ones(table.num_objects, dtype=np.bool_), needed="any")


def landmark_samples(
    table: AnnotationTable, *, sample_unit: SampleUnit = "object", min_points: int = 1
) -> SampleTable:
    """Return the samples of landmark training.

    Args:
        table: The annotations; with what this function gave, the result is that again.
        sample_unit: ``"object"``: one sample an object that has an area inside its image; ``"image"``: images with at
            least one such object, which keep their other objects.
        min_points: Fewest points of an object that are not absent.

    Raises:
        ValueError: An argument is out of range, the table has no points, or no sample is left.
    """
    check_sample_unit(sample_unit)
    check_keypoints(table)
    if table.visibility is None or not 0 <= min_points <= len(table.keypoint_names):
        raise ValueError(
            f"min_points={min_points} must lie in [0, {len(table.keypoint_names)}], the points of an object."
        )
    enough = (table.visibility > 0).sum(axis=1) >= min_points
    if sample_unit == "object":
        needed = f"at least min_points={min_points} points and an area inside its image"
        return _one_row_each(table, enough & _can_be_cut(table), needed=needed)
    if min_points == 0:
        return SampleTable(table, 0)
    wanted = np.bincount(table.image_of_object()[enough], minlength=table.num_images) > 0
    return _images(table, wanted, needed=f"an object with at least min_points={min_points} points")


def labelled_samples(
    table: AnnotationTable,
    *,
    label_attribute: str | None = None,
    multi_label: bool = False,
    sample_unit: SampleUnit = "image",
) -> SampleTable:
    """Return the samples of classification: those whose label is known.

    Args:
        table: The annotations; with what this function gave, the result is that again.
        label_attribute: The attribute that labels, or None for the class.
        multi_label: An image may have several labels or, without any object, none.
        sample_unit: ``"image"``: one sample an image, ``"object"``: one sample an object that has an area inside its
            image.

    Raises:
        ValueError: An argument is out of range, an image has several labels without ``multi_label``, or no
            sample is left.
    """
    check_sample_unit(sample_unit, multi_label=multi_label)
    needed = "a class" if label_attribute is None else f"the attribute {label_attribute!r}"
    if sample_unit == "object":
        ids, _ = table.labels_of(label_attribute)
        wanted = (ids >= 0) & _can_be_cut(table)
        return _one_row_each(table, wanted, needed=f"{needed} and an area inside its image")
    num_labels = np.diff(image_labels(table, by=label_attribute)[0])
    if not multi_label and num_labels.size and num_labels.max() > 1:
        several = np.flatnonzero(num_labels > 1)
        first_path = table.image_path(int(several[0]))
        rule = f"but {len(several)} images have objects with different labels, the first being {first_path}"
        alternatives = {"multi_label": True, "sample_unit": "object"}
        raise SettingError("multi_label", False, rule, settings=alternatives)
    known = num_labels > 0
    if multi_label:  # nothing there is a label too; an object whose value nobody wrote down is not
        known |= np.diff(table.offsets) == 0
    return _images(table, known, needed=needed)


def check_sample_unit(sample_unit: str, *, multi_label: bool = False) -> None:
    """Check an argument ``sample_unit``.

    Raises:
        ValueError: It is outside its choices, or does not go with ``multi_label``.
    """
    if sample_unit not in get_args(SampleUnit):
        raise ValueError(f"sample_unit={sample_unit!r} is not one of {list(get_args(SampleUnit))}.")
    if multi_label and sample_unit == "object":
        raise ValueError(
            "multi_label=True and sample_unit='object': one object has one label; leave one of them out."
        )


def _can_be_cut(table: AnnotationTable) -> npt.NDArray[np.bool_]:
    """Return which objects have an area inside their image; a crop of any other shows a pixel of its rim.

    Sizes may be those of the upright image and boxes those of the stored one, so an object that fits the sides
    exchanged counts too, as does one of an image of unknown size.
    """
    images = table.image_of_object()
    sizes = np.stack([table.widths, table.heights], axis=1)[images].astype(np.float32)
    sizes[sizes == 0] = np.inf
    low = np.maximum(table.boxes[:, :2], 0)
    upright, turned = np.minimum(table.boxes[:, 2:], sizes), np.minimum(table.boxes[:, 2:], sizes[:, ::-1])
    return np.asarray((upright > low).all(axis=1) | (turned > low).all(axis=1), dtype=np.bool_)


def _one_row_each(table: AnnotationTable, wanted: npt.NDArray[np.bool_], *, needed: str) -> SampleTable:
    _check_some(table, wanted, needed=f"object has {needed}")
    if wanted.all() and table.num_images == table.num_objects and (np.diff(table.offsets) == 1).all():
        return SampleTable(table, 0)
    return SampleTable(table.per_object(np.flatnonzero(wanted)), int((~wanted).sum()))


def _images(table: AnnotationTable, wanted: npt.NDArray[np.bool_], *, needed: str) -> SampleTable:
    _check_some(table, wanted, needed=f"image has {needed}")
    if wanted.all():
        return SampleTable(table, 0)
    return SampleTable(table.select(np.flatnonzero(wanted)), int((~wanted).sum()))


def _check_some(table: AnnotationTable, wanted: npt.NDArray[np.bool_], *, needed: str) -> None:
    if wanted.size and not wanted.any():
        raise ValueError(f"no sample is left of {table!r}: no {needed}.")
