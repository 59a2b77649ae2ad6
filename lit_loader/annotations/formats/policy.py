"""What the readers do with annotations that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

__all__ = ["ReadPolicy"]


@dataclass(frozen=True, kw_only=True)
class ReadPolicy:
    """One action for each kind of problem; every action but ``"raise"`` is counted in the table's report.

    ``"raise"`` raises an AnnotationError that names file and line. Checks run in the order of the
    attributes below, each on what the ones before have left. A path that leads out of the root is always
    an UnsafePathError, and a file that cannot be read as its format at all is always an AnnotationError.

    Attributes:
        duplicate_id: A list of a split names an image twice, or it has two annotation files. ``"drop"`` reads it once.
        missing_annotation: A list of a split names an image without an annotation file. ``"empty"`` keeps it as an
            image without objects, ``"drop"`` drops it.
        malformed: A line, row or entry is not as its format asks: a number is missing or not a
            number, a name is empty or longer than 256 characters. ``"drop"`` drops it.
        schema_mismatch: A file lists other points, attribute values or classes than a file before. ``"unite"`` appends
            what is new. Points are not compared if ``schema`` is given, classes not if ``class_names`` are.
        bad_size: The size of an image as the annotations have it is not two whole numbers from 1 to
            2**31 - 1. ``"unknown"`` reads it from the image's header, as where the annotations have none.
        missing_image: There is no image file at the path. ``"keep"`` keeps the path and what is in the
            image; its size is unknown unless the annotations have it.
        wrong_filename: The annotation of an image that was found by its id names another file. The id wins:
            ``"report"`` uses it, ``"drop"`` drops the image.
        turned_image: EXIF turns the image onto its side, and the annotations state the size of the stored
            pixels, so boxes and points do not fit the upright image. ``"drop"`` drops the image. ``"keep"``
            leaves it, for data sets with ``exif_orientation=False``.
        unreadable_image: The annotations do not have the image's size, and its header cannot be read.
            ``"keep"`` keeps it with size 0, so that nothing is compared with it.
        unknown_class: An object's class is not among the ``class_names`` that were given. ``"drop"`` drops
            the object.
        invalid_keypoint: A coordinate of a point that is not absent is NaN or beyond float32. ``"absent"`` makes
            the point absent, ``"drop"`` drops the object.
        keypoint_outside: A point lies below 0 or beyond width or height (one exactly at width or height does
            not). ``"keep"`` leaves it, ``"absent"`` makes it absent.
        non_finite: A corner of a box is NaN or beyond float32. ``"drop"`` drops the object.
        swapped: xmin > xmax or ymin > ymax. ``"fix"`` exchanges them.
        out_of_image: A box that the annotations give reaches below 0 or beyond width or height (one that
            ends exactly at width or height does not). ``"keep"`` leaves it, since `DetectionDataset` cuts
            boxes to the decoded image. ``"clip"`` cuts it to the image, ``"drop"`` drops the object. A box
            put around points is cut with the others and never reported: its points are.
        degenerate: A box has no width or no height, as written or after clipping, or an object without a box has
            no point. ``"drop"`` drops the object, ``"keep"`` leaves it.

    Raises:
        ValueError: If an action is not one of those that the attribute knows.
    """

    duplicate_id: Literal["drop", "raise"] = "drop"
    missing_annotation: Literal["raise", "drop", "empty"] = "raise"
    malformed: Literal["raise", "drop"] = "raise"
    schema_mismatch: Literal["raise", "unite"] = "raise"
    bad_size: Literal["unknown", "raise"] = "unknown"
    missing_image: Literal["raise", "drop", "keep"] = "raise"
    wrong_filename: Literal["report", "drop", "raise"] = "report"
    turned_image: Literal["raise", "drop", "keep"] = "raise"
    unreadable_image: Literal["raise", "drop", "keep"] = "raise"
    unknown_class: Literal["raise", "drop"] = "raise"
    invalid_keypoint: Literal["absent", "drop", "raise"] = "absent"
    keypoint_outside: Literal["keep", "absent", "raise"] = "keep"
    non_finite: Literal["drop", "raise"] = "drop"
    swapped: Literal["fix", "drop", "raise"] = "fix"
    out_of_image: Literal["keep", "clip", "drop", "raise"] = "keep"
    degenerate: Literal["drop", "keep", "raise"] = "drop"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, known = getattr(self, name), get_args(hint)
            if value not in known:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, known))}")
