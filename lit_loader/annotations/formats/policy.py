"""Policy of the readers on wrong annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

__all__ = ["ReadPolicy", "allowed_actions"]


@dataclass(frozen=True, kw_only=True)
class ReadPolicy:
    """One action for each kind of problem; every action except ``"raise"`` is counted in the table's report.

    ``"raise"`` raises an AnnotationError that names file and line. The checks run in the order of the attributes
    below, each on the result of the earlier ones. A path that leads out of the root always raises an UnsafePathError,
    and a file that does not have its format at all always raises an AnnotationError.

    Attributes:
        duplicate_id: A split list names an image twice, or an image has two annotation files. ``"drop"`` reads it
            once.
        missing_annotation: A split list names an image without an annotation file. ``"empty"`` keeps it as an image
            without objects, ``"drop"`` drops it.
        malformed: A line, row or entry violates its format: a number is missing or not a number, a name is empty or
            longer than 256 characters. ``"drop"`` drops it.
        schema_mismatch: A file lists other points, attribute values or classes than an earlier file. ``"unite"``
            appends the new names. Points are not compared if ``schema`` is set, classes not if ``class_names`` is.
        bad_size: The image size in the annotations is not two whole numbers from 1 to 2**31 - 1. ``"unknown"`` reads
            the size from the image's header instead, as for annotations without a size.
        missing_image: The image file does not exist. ``"keep"`` keeps the path and the objects; the size is
            unknown unless the annotations have it.
        wrong_filename: An image is looked up by its id, and its annotation names another file. The id wins:
            ``"report"`` uses it, ``"drop"`` drops the image.
        turned_image: EXIF turns the image onto its side, but the annotations give the size of the stored pixels, so
            boxes and points do not fit the upright image. ``"drop"`` drops the image. ``"keep"`` keeps it, for data
            sets with ``exif_orientation=False``.
        unreadable_image: The annotations do not have the image's size, and its header cannot be read. ``"keep"`` keeps
            the image with size 0, so no coordinate is compared with it.
        unknown_class: An object's class is not in ``class_names``. ``"drop"`` drops the object.
        invalid_keypoint: A coordinate of a present point is NaN or beyond float32. ``"absent"`` makes the point
            absent, ``"drop"`` drops the object.
        keypoint_outside: A point is below 0 or beyond width or height; a point exactly at width or height is inside.
            ``"keep"`` keeps it, ``"absent"`` makes it absent.
        non_finite: A corner of a box is NaN or beyond float32. ``"drop"`` drops the object.
        swapped: xmin > xmax or ymin > ymax. ``"fix"`` swaps them.
        out_of_image: A box in the annotations reaches below 0 or beyond width or height; a box that ends exactly at
            width or height is inside. ``"keep"`` keeps it, since `DetectionDataset` clips boxes to the decoded image.
            ``"clip"`` clips it to the image, ``"drop"`` drops the object. A box around points is clipped like the
            others but never reported, because its points are. Of an oriented box the box around it is compared and
            clipped, its corners never change.
        degenerate: A box has no width or no height, as written or after clipping, an oriented box has no area, or an
            object without a box has no point. ``"drop"`` drops the object, ``"keep"`` keeps it.

    Raises:
        ValueError: If an attribute does not have an action of that name.
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
        for name, actions in allowed_actions().items():
            value = getattr(self, name)
            if value not in actions:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, actions))}")


def allowed_actions() -> dict[str, tuple[str, ...]]:
    """Return the allowed actions for each kind of problem."""
    # The type annotations are the only list of them.
    return {name: get_args(hint) for name, hint in get_type_hints(ReadPolicy).items()}
