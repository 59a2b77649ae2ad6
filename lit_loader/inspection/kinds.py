"""Kinds of findings: the severity of each, its rule and its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lit_loader.inspection.findings import Severity

__all__ = ["FindingKind", "KINDS", "READER_KINDS", "kind_of"]


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    """Severity, rule and remedy of a kind of finding.

    Attributes:
        severity: Usual severity; `check_tables` says where it differs.
        rule: The rule that a finding breaks, or the fact that it states.
        remedy: What to do about it.
    """

    severity: Severity
    rule: str
    remedy: str


def _error(rule: str, remedy: str) -> FindingKind:
    return FindingKind(severity="error", rule=rule, remedy=remedy)


def _warning(rule: str, remedy: str) -> FindingKind:
    return FindingKind(severity="warning", rule=rule, remedy=remedy)


def _note(rule: str, remedy: str) -> FindingKind:
    return FindingKind(severity="note", rule=rule, remedy=remedy)


# Errors are the problems at which training stops by default.
READER_KINDS: Final[Mapping[str, FindingKind]] = MappingProxyType(
    {
        "bad_skeleton": _warning(
            "a skeleton is not pairs of the points",
            "write positions from 1 in COCO and from 0 in YOLO, or remove the skeleton",
        ),
        "bad_size": _warning("an annotated image size is not two whole numbers from 1", "correct the size"),
        "duplicate_id": _warning("an image or annotation is listed twice", "remove one of the two"),
        "empty_class": _note("a class has no image", "add images, or remove the class"),
        "box_mismatch": _warning("the box of an object is not around its oriented box", "correct one of the two"),
        "four_points": _warning(
            "all rows may be polygons of four points or oriented boxes",
            "pass --option task=obb or --option task=segment",
        ),
        "invalid_keypoint": _warning("a coordinate of a point is not a number", "correct the point, or mark it absent"),
        "malformed": _error("an entry violates its format", "correct the entry"),
        "missing_annotation": _error(
            "a listed image has no annotation file", "add the file, or pass --policy missing_annotation=empty or drop"
        ),
        "narrow_points": _note("points are on or near one line, so the box around them was widened", "add boxes"),
        "no file_name": _note("images are named by the end of their coco_url", "add file_name"),
        "no_label": _warning("an image has no label", "label the image, or remove it from the list"),
        "non_finite": _warning("a corner of a box is not a number", "correct the box"),
        "not_listed": _warning("an image is missing in a list of the data set", "add it to the list"),
        "not_read": _note("the reader does not read a field", "nothing, unless training needs the field"),
        "odd_flag": _warning("a flag is neither 0 nor 1", "correct the flag"),
        "odd_polygon": _warning("a polygon has too few or wrong coordinates", "correct the polygon"),
        "one_hot": _note("columns were recognised as one-hot labels", "nothing, if this is right"),
        "same_file": _warning("two images are the same file", "list the image once"),
        "schema_mismatch": _error(
            "files list different points, attribute values or classes", "give all files the same names"
        ),
        "several_images": _warning("several image files match an annotation", "remove or rename the others"),
        "swapped": _warning("the corners of a box are swapped", "correct the corners"),
        "unread_class": _warning(
            "no column is the class, and a column of text is not read",
            "pass --option class_column=NAME, or --option class_name=NAME for a set of one class",
        ),
        "unknown_class": _error("the class of an object is not in the list of classes", "correct or add the class"),
        "unknown_point": _note("a point is not in the schema", "nothing, unless training needs the point"),
        "wrong_filename": _warning("an annotation names another image file", "correct the name"),
    }
)
"""Problems that only readers see; a problem of an unlisted kind is a warning."""

KINDS: Final[Mapping[str, FindingKind]] = MappingProxyType(
    {
        **READER_KINDS,
        "missing_image": _error(
            "the image file does not exist",
            "restore the file, remove its annotation, or set --option image_dir=DIR if all images are elsewhere",
        ),
        "unreadable_image": _error("the image cannot be decoded", "replace the file, or remove its annotation"),
        "sixteen_bit": _note(
            "images have 16 bits, and training reads 8", "set sixteen_bit_max, if the highest value is lower"
        ),
        "turned_image": _error(
            "EXIF turns the image onto its side, but the annotations have the size of the stored pixels",
            "remove the orientation from the EXIF data, or correct the size if the boxes fit the upright image",
        ),
        "size_mismatch": _error(
            "the image has another size than in the annotations",
            "restore the image that was annotated, or scale its boxes and correct the size",
        ),
        "shared_image": _error(
            "an image is in two sets, so the model is tested on its training data", "list it in one of the sets"
        ),
        "duplicate_across_splits": _error(
            "an image is a byte-identical copy of an image in another set", "remove one of the two"
        ),
        "conflicting_duplicate": _error(
            "byte-identical images of a set have different annotations", "keep the copy with the right annotation"
        ),
        "duplicate_image": _warning("an image is a byte-identical copy of another one in the set", "remove one copy"),
        "degenerate": _warning("a box has no width or no height", "correct or remove the box"),
        "out_of_image": _warning(
            "a box reaches more than a pixel beyond the image",
            "correct or clip the box; if boxes show hidden parts on purpose, pass --policy out_of_image=keep",
        ),
        "box_off_image": _error("a box is completely outside the image", "correct or remove the box"),
        "odd_quadrangle": _warning(
            "the corners of an oriented box enclose no area, or its sides cross", "correct the order of the corners"
        ),
        "tiny_box": _warning("the shorter side of a box is below the limit", "correct or remove the box"),
        "whole_image_box": _note(
            "a box covers the whole image, which is rare in this data", "check that the object fills the image"
        ),
        "duplicate_box": _warning("two boxes of one class overlap almost completely", "remove one of the two"),
        "not_compared": _note(
            "an image has hundreds of boxes at one place, so not all of them were compared", "look at the image"
        ),
        "conflicting_box": _warning("one box has two classes", "remove the box with the wrong class"),
        "keypoint_outside": _warning(
            "a point is more than a pixel outside the image", "correct the point, or mark it absent"
        ),
        "swapped_points": _warning(
            "left and right points are exchanged, compared with the other objects", "exchange the points of each pair"
        ),
        "mirrored_points": _note(
            "an object shows its points mirrored, as many of the set do", "nothing, if objects are seen from both sides"
        ),
        "collapsed_points": _warning("all points of an object are at one place", "correct the points"),
        "point_at_origin": _warning("a point is at (0, 0)", "correct the point, or mark it absent"),
        "empty_set": _error("a set has no images", "check the list of the set"),
        "missing_class": _warning(
            "a class of another set has no object in this set", "move images of this class to the set"
        ),
        "rare_class": _note("a class is in few images of the set", "add images, or balance the classes by a sampler"),
        "unused_class": _note("a class has no object in any set", "remove the class, if it is not needed"),
        "imbalance": _note(
            "one class has many times more objects than another", "balance the classes by a sampler or weights"
        ),
        "empty_images": _note(
            "images have no objects", "check that these images show no objects, and are not just unlabelled"
        ),
        "similar_class_names": _warning(
            "class names differ only in case, spaces, or a letter of a rare one",
            "give both classes one name; if they are different classes, pass --ignore similar_class_names",
        ),
    }
)
"""All kinds of findings by name."""


def kind_of(name: str) -> FindingKind:
    """Return a kind by its name; readers of users' own formats may report other names."""
    return KINDS.get(name) or _warning("the reader reports a problem", "correct the file")
