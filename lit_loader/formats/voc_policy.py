"""What the VOC reader does with annotations that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_loader.formats.policy import check_actions

__all__ = ["VocPolicy"]


@dataclass(frozen=True, kw_only=True)
class VocPolicy:
    """One action for each kind of problem; every action but ``"raise"`` is counted in the table's report.

    ``"raise"`` raises an AnnotationError that names file and line. Checks run in the order of the
    attributes below, each on what the ones before have left; an object is looked at after its image.

    Attributes:
        duplicate_id: The split file names an image twice. ``"keep"`` keeps both rows.
        missing_annotation: The split file names an image without XML. ``"empty"`` keeps the image as one
            without objects.
        malformed: The XML cannot be parsed, is too large, is hostile, or its root is not ``<annotation>``:
            ``"drop"`` drops the image. An ``<object>`` has no name or no four numbers: ``"drop"`` drops
            the object.
        missing_image: No image file belongs to the id. ``"keep"`` keeps the path where it would be.
        wrong_filename: ``<filename>`` names another file than the one found by the id. The id wins:
            ``"report"`` uses it, ``"drop"`` drops the image.
        bad_size: ``<size>`` is absent or not positive. ``"unknown"`` keeps the image with size 0, so that
            its boxes are not compared with it. Images are not opened, so a size that merely differs from
            the image's own is not seen here.
        schema_mismatch: ``<schema>`` says otherwise of the points, of an attribute's values, or of the classes
            than a file before. ``"unite"`` appends what is new. The points are not compared when ``schema``
            is given, the classes not when ``class_names`` are.
        unknown_class: An object's class is not among the ``class_names`` that were given. ``"drop"`` drops
            the object.
        bad_point: A coordinate of a point is NaN or beyond float32. ``"absent"`` makes the point absent,
            ``"drop"`` drops the object.
        point_outside: A point lies below 0 or beyond width or height (one exactly at width or height does
            not). ``"keep"`` leaves it, ``"absent"`` makes it absent.
        non_finite: A corner is NaN or beyond float32. ``"drop"`` drops the object.
        swapped: xmin > xmax or ymin > ymax. ``"fix"`` exchanges them.
        out_of_image: A box reaches below 0 or beyond width or height (a box that ends exactly at width or
            height does not). ``"keep"`` leaves it, since ``<size>`` may be what is wrong: `DetectionDataset`
            cuts boxes to the decoded image. ``"clip"`` cuts it to ``<size>``, ``"drop"`` drops the object. A
            box put around points is cut with the others and not judged here: its points are.
        degenerate: A box has no width or no height, as written, after clipping, or around the points of an
            object without a box. ``"drop"`` drops the object, ``"keep"`` leaves it.

    Raises:
        ValueError: If an action is not one of those that the attribute knows.
    """

    duplicate_id: Literal["drop", "keep", "raise"] = "drop"
    missing_annotation: Literal["raise", "drop", "empty"] = "raise"
    malformed: Literal["raise", "drop"] = "raise"
    missing_image: Literal["raise", "drop", "keep"] = "raise"
    wrong_filename: Literal["report", "drop", "raise"] = "report"
    bad_size: Literal["unknown", "drop", "raise"] = "unknown"
    schema_mismatch: Literal["raise", "unite"] = "raise"
    unknown_class: Literal["raise", "drop"] = "raise"
    bad_point: Literal["absent", "drop", "raise"] = "absent"
    point_outside: Literal["keep", "absent", "raise"] = "keep"
    non_finite: Literal["drop", "raise"] = "drop"
    swapped: Literal["fix", "drop", "raise"] = "fix"
    out_of_image: Literal["clip", "keep", "drop", "raise"] = "keep"
    degenerate: Literal["drop", "keep", "raise"] = "drop"

    def __post_init__(self) -> None:
        check_actions(self)
