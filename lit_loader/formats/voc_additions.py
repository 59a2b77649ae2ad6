"""What the unified format adds to a VOC object, read: points, attributes, the crowd flag."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import Element

import numpy as np

from lit_loader.annotations.report import shorten
from lit_loader.formats.voc_columns import AttributeRows, PointRows
from lit_loader.formats.voc_schema import MAX_NAME_CHARS

__all__ = ["Additions", "ObjectError", "is_number", "may_hold_additions", "read_truth"]

_TAGS: Final = re.compile(rb"<(?:keypoints|attributes|crowd|schema|part)")
_TRUTH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "": False}
_VISIBILITY: Final = {"0": 0, "1": 1, "2": 2}


class ObjectError(Exception):
    """One object lacks what it must have; the message says what."""


def may_hold_additions(data: bytes) -> bool:
    """Return whether a file holds tags that plain VOC has not: one search instead of five an object.

    A tag is spelled as here in every encoding that keeps ASCII; UTF-16, which does not, shows by its zeros.
    """
    return _TAGS.search(data) is not None or b"\0" in data


def read_truth(text: str | None) -> bool | None:
    """Return the flag that a text means, None for a text that means none."""
    return _TRUTH.get((text or "").strip().lower())


def is_number(text: str) -> bool:
    """Return whether ``float`` takes the text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass
class Additions:
    """What was read so far, one flat list a column; objects are named by their row.

    Attributes:
        keypoints: Whether to read the points of objects that have a box.
        attributes: Whether to read attributes.
        crowd: Objects that are a crowd.
        unboxed: Objects without a box.
    """

    keypoints: bool
    attributes: bool
    crowd: list[int] = field(default_factory=list)
    unboxed: list[int] = field(default_factory=list)
    _points: list[tuple[int, int, float, float, int]] = field(default_factory=list)
    _point_names: dict[str, int] = field(default_factory=dict)
    _values: list[tuple[int, int]] = field(default_factory=list)
    _pairs: dict[tuple[str, str], int] = field(default_factory=dict)

    def read(self, element: Element, *, row: int, known: frozenset[str] | None, boxed: bool) -> None:
        """Read the additions of an object, all of them or none.

        Args:
            element: The ``<object>``.
            row: The object's row.
            known: The points that the file's schema lists; None without one.
            boxed: Whether the object has a box.

        Raises:
            ObjectError: If an addition is malformed.
        """
        points = _read_points(element, known) if self.keypoints or not boxed else {}
        values = _read_attributes(element) if self.attributes else {}
        crowd = read_truth(element.findtext("crowd"))
        if crowd is None:
            raise ObjectError(f"<crowd> is {shorten(repr(element.findtext('crowd')))}; 0 or 1 expected")
        if not boxed and not points:
            raise ObjectError("has neither <bndbox> nor a point")
        if crowd:
            self.crowd.append(row)
        if not boxed:
            self.unboxed.append(row)
        for name, (x, y, visibility) in points.items():
            self._points.append(
                (row, self._point_names.setdefault(name, len(self._point_names)), x, y, visibility)
            )
        for pair in values.items():
            self._values.append((row, self._pairs.setdefault(pair, len(self._pairs))))

    def point_rows(self) -> PointRows:
        """Return the points as columns."""
        objects, name_ids, x, y, visibility = zip(*self._points, strict=True) if self._points else [()] * 5
        return PointRows(
            objects=np.array(objects, dtype=np.int64),
            names=list(self._point_names),
            name_ids=np.array(name_ids, dtype=np.int64),
            places=np.stack([np.array(x, dtype=np.float64), np.array(y, dtype=np.float64)], axis=1),
            visibility=np.array(visibility, dtype=np.uint8),
        )

    def attribute_rows(self) -> AttributeRows:
        """Return the attributes' values as columns."""
        columns = np.array(self._values, dtype=np.int64).reshape(-1, 2)
        return AttributeRows(objects=columns[:, 0], pairs=list(self._pairs), pair_ids=columns[:, 1])


def _read_points(element: Element, known: frozenset[str] | None) -> dict[str, tuple[float, float, int]]:
    """Return x, y and visibility of the points that are not absent."""
    points: dict[str, tuple[float, float, int]] = {}
    for block in element.findall("keypoints"):
        for point in block.findall("point"):
            name = _checked_name(point.get("name"), "a <point>")
            if name in points:
                raise ObjectError(f"has the point {name!r} twice")
            if known is not None and name not in known:
                raise ObjectError(f"has the point {name!r}, which the file's <schema> does not list")
            visibility = _VISIBILITY.get(point.get("visibility", "2").strip())
            if visibility is None:
                text = shorten(repr(point.get("visibility")))
                raise ObjectError(f"the point {name!r} has visibility {text}; 0, 1 or 2 expected")
            texts = {axis: point.get(axis, "") for axis in ("x", "y")}
            wrong = [axis for axis, text in texts.items() if not is_number(text)]
            if wrong and visibility:
                text = shorten(repr(texts[wrong[0]]))
                raise ObjectError(f"the point {name!r} has {wrong[0]}={text}, not a number")
            points[name] = (0.0, 0.0, 0) if wrong else (float(texts["x"]), float(texts["y"]), visibility)
    return {name: point for name, point in points.items() if point[2]}


def _read_attributes(element: Element) -> dict[str, str]:
    """Return the values that are not empty."""
    values: dict[str, str] = {}
    for block in element.findall("attributes"):
        for attribute in block.findall("attribute"):
            name = _checked_name(attribute.findtext("name"), "an <attribute>")
            if name in values:
                raise ObjectError(f"has the attribute {name!r} twice")
            value = (attribute.findtext("value") or "").strip()
            if len(value) > MAX_NAME_CHARS:
                rule = f"at most {MAX_NAME_CHARS} are read"
                raise ObjectError(f"the attribute {name!r} has a value of {len(value)} characters; {rule}")
            values[name] = value
    return {name: value for name, value in values.items() if value}


def _checked_name(text: str | None, what: str) -> str:
    name = (text or "").strip()
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise ObjectError(f"{what} has a name of {len(name)} characters; 1 to {MAX_NAME_CHARS} expected")
    return name
