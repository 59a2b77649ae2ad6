"""Convert an image table to a table with one row per sample of a task."""

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
    "keypoint_samples",
    "labelled_samples",
    "landmark_samples",
]

SampleUnit: TypeAlias = Literal["object", "image"]
"""A sample is one object, cut out of its image, or a whole image."""


class SampleTable(NamedTuple):
    """A table with one image row per sample, for samplers and summaries.

    Attributes:
        table: The samples.
        num_left_out: Objects (or, for whole images, images) of the original table that are not samples.
    """

    table: AnnotationTable
    num_left_out: int


def every_sample(table: AnnotationTable, *, sample_unit: SampleUnit = "image") -> SampleTable:
    """Return the samples of prediction: every image, or every object, labelled or not.

    Args:
        table: The annotations. A table that this function returned is returned unchanged.
        sample_unit: ``"image"``: one sample per image, ``"object"``: one sample per object.

    Raises:
        ValueError: ``sample_unit`` is not one of its choices.
    """
    check_sample_unit(sample_unit)
    num_samples = table.num_images if sample_unit == "image" else table.num_objects
    return _select(table, np.ones(num_samples, dtype=np.bool_), sample_unit=sample_unit, requirement="any")


def landmark_samples(table: AnnotationTable, *, sample_unit: SampleUnit = "object", min_points: int = 1) -> SampleTable:
    """Return the samples of landmark training.

    Args:
        table: The annotations. A table that this function returned is returned unchanged.
        sample_unit: ``"object"``: one sample per object with an area inside its image; ``"image"``: images with at
            least one object with enough points, including their other objects.
        min_points: Smallest number of points of an object that are not absent.

    Raises:
        ValueError: An argument is out of range, the table has no points, or no sample is left.
    """
    check_sample_unit(sample_unit)
    has_points = _has_points(table, min_points)
    requirement = f"at least min_points={min_points} points"
    if sample_unit == "object":
        selected = has_points & _can_be_cropped(table)
        return _select(table, selected, sample_unit="object", requirement=f"{requirement} and an area inside its image")
    # minlength: the last images may have no such object. With min_points=0, images without objects qualify as well.
    num_objects = np.bincount(table.image_of_object()[has_points], minlength=table.num_images)
    selected = (num_objects > 0) | (min_points == 0)
    return _select(table, selected, sample_unit="image", requirement=f"an object with {requirement}")


def keypoint_samples(table: AnnotationTable, *, min_points: int = 0) -> SampleTable:
    """Return the samples of keypoint detection: images, without their objects that have too few points.

    Images that had only such objects are left out; images without any object, and crowd regions, stay.

    Args:
        table: The annotations.
        min_points: Smallest number of points of an object that are not absent.

    Returns:
        The images; ``num_left_out`` counts objects.

    Raises:
        ValueError: ``min_points`` is out of range, the table has no points, or no object is left.
    """
    has_points = _has_points(table, min_points)
    is_dropped = ~has_points & ~table.crowd
    if table.num_objects and is_dropped.all():
        raise ValueError(f"no object is left of {table!r}: no object has at least min_points={min_points} points.")
    return SampleTable(table.without_objects(is_dropped), int(is_dropped.sum()))


def labelled_samples(
    table: AnnotationTable,
    *,
    label_attribute: str | None = None,
    multi_label: bool = False,
    sample_unit: SampleUnit = "image",
) -> SampleTable:
    """Return the samples of classification: images or objects with a known label.

    Args:
        table: The annotations. A table that this function returned is returned unchanged.
        label_attribute: The attribute to use as label, or None for the class.
        multi_label: An image may have several labels or, without any object, none.
        sample_unit: ``"image"``: one sample per image, ``"object"``: one sample per object with an area inside its
            image.

    Raises:
        ValueError: An argument is out of range, an image has several labels without ``multi_label``, or no
            sample is left.
    """
    check_sample_unit(sample_unit, multi_label=multi_label)
    requirement = "a class" if label_attribute is None else f"the attribute {label_attribute!r}"
    if sample_unit == "object":
        label_ids, _ = table.labels_of(label_attribute)
        selected = (label_ids >= 0) & _can_be_cropped(table)
        return _select(table, selected, sample_unit="object", requirement=f"{requirement} and an area inside its image")
    # Distinct labels of each image: several objects of one class count once.
    num_labels = np.diff(image_labels(table, by=label_attribute)[0])
    if not multi_label and num_labels.size and num_labels.max() > 1:
        ambiguous_rows = np.flatnonzero(num_labels > 1)
        first_path = table.image_path(int(ambiguous_rows[0]))
        rule = f"but {len(ambiguous_rows)} images have objects with different labels, the first being {first_path}"
        alternatives = {"multi_label": True, "sample_unit": "object"}
        raise SettingError("multi_label", False, rule, settings=alternatives)
    has_label = num_labels > 0
    if multi_label:
        # An image without objects has the empty set of labels. An image whose objects lack the attribute is unknown.
        has_label |= np.diff(table.offsets) == 0
    return _select(table, has_label, sample_unit="image", requirement=requirement)


def check_sample_unit(sample_unit: str, *, multi_label: bool = False) -> None:
    """Check an argument ``sample_unit``.

    Raises:
        ValueError: It is not one of its choices, or contradicts ``multi_label``.
    """
    if sample_unit not in get_args(SampleUnit):
        raise ValueError(f"sample_unit={sample_unit!r} is not one of {list(get_args(SampleUnit))}.")
    if multi_label and sample_unit == "object":
        raise ValueError("multi_label=True contradicts sample_unit='object': one object has one label; leave one out.")


def _has_points(table: AnnotationTable, min_points: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the objects with at least ``min_points`` points that are not absent."""
    check_keypoints(table)
    if table.visibility is None or not 0 <= min_points <= len(table.keypoint_names):
        raise ValueError(f"min_points={min_points} must be in [0, {len(table.keypoint_names)}], the number of points.")
    return np.asarray((table.visibility > 0).sum(axis=1) >= min_points, dtype=np.bool_)


def _can_be_cropped(table: AnnotationTable) -> npt.NDArray[np.bool_]:
    """Return a mask of the objects with an area inside their image; a crop of any other shows an edge pixel."""
    # An unknown size of 0 excludes no object.
    sizes = np.stack([table.widths, table.heights], axis=1)[table.image_of_object()].astype(np.float32)
    sizes[sizes == 0] = np.inf
    top_left = np.maximum(table.boxes[:, :2], 0)
    bottom_right = table.boxes[:, 2:]
    fits = (np.minimum(bottom_right, sizes) > top_left).all(axis=1)
    # The annotated size may be upright while the boxes refer to the stored image, whose sides are exchanged.
    fits_turned = (np.minimum(bottom_right, sizes[:, ::-1]) > top_left).all(axis=1)
    return np.asarray(fits | fits_turned, dtype=np.bool_)


def _select(
    table: AnnotationTable, selected: npt.NDArray[np.bool_], *, sample_unit: SampleUnit, requirement: str
) -> SampleTable:
    """Return the selected images, or one row for each selected object; refuse to leave none.

    Args:
        table: The annotations.
        selected: One value per image, or per object.
        sample_unit: The unit of ``selected`` and of the samples.
        requirement: Property of the selected ones, for the error message.
    """
    # An empty table is allowed: it has no samples to begin with.
    if selected.size and not selected.any():
        raise ValueError(f"no sample is left of {table!r}: no {sample_unit} has {requirement}.")
    # An unchanged table keeps its cache key, and copies nothing.
    if selected.all() and (sample_unit == "image" or (np.diff(table.offsets) == 1).all()):
        return SampleTable(table, 0)
    rows = np.flatnonzero(selected)
    samples = table.select(rows) if sample_unit == "image" else table.per_object(rows)
    return SampleTable(samples, len(selected) - len(rows))
