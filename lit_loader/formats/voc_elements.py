"""The elements of one VOC object: its points, its attributes, its numbers; checked and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.formats.voc_schema import add_text, check_name

__all__ = ["add_attributes", "add_points", "check_listed", "checked_points", "float_array", "number_text"]


def float_array(values: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return float32 as it is, so that it is written in few digits, and anything else as float64."""
    given = np.asarray(values)
    return given if given.dtype == np.float32 else given.astype(np.float64)


def checked_points(
    keypoints: npt.ArrayLike | None,
    visibility: npt.ArrayLike | None,
    schema: KeypointSchema | None,
    *,
    num_objects: int,
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int64]]:
    """Return the points ``(num_objects, K, 2)`` and their visibility ``(num_objects, K)``, checked."""
    if keypoints is None:
        if visibility is not None:
            raise ValueError("visibility is given without keypoints; give both or none")
        return np.zeros((num_objects, 0, 2)), np.zeros((num_objects, 0), dtype=np.int64)
    if schema is None:
        raise ValueError("keypoints are given without schema; say what the points are, e.g. schema='face_5'")
    shape = (num_objects, len(schema.names))
    points = float_array(keypoints)
    points = np.zeros((*shape, 2)) if points.size == 0 else points
    seen = np.full(shape, 2, dtype=np.int64) if visibility is None else np.asarray(visibility)
    seen = np.zeros(shape, dtype=np.int64) if seen.size == 0 else seen.astype(np.int64)
    if points.shape != (*shape, 2) or seen.shape != shape:
        raise ValueError(
            f"keypoints {points.shape} and visibility {seen.shape} must be {(*shape, 2)} and {shape}: "
            f"{num_objects} objects of {shape[1]} points"
        )
    if not np.isin(seen, (0, 1, 2)).all():
        raise ValueError(f"visibility={seen.tolist()} must be 0 (absent), 1 (hidden) or 2 (visible)")
    if not np.isfinite(points[seen > 0]).all():
        raise ValueError(f"keypoints={points.tolist()} must be finite where visibility is not 0")
    return points, seen


def check_listed(
    names: Sequence[str],
    class_names: tuple[str, ...],
    attributes: Mapping[str, Sequence[str | None]],
    listed: Mapping[str, tuple[str, ...]],
) -> None:
    """Check that what is listed for the whole set holds what this file says."""
    said: list[tuple[str, Sequence[str | None], tuple[str, ...] | None]] = [
        ("class_names", names, class_names or None)
    ]
    said += [(f"attribute_values[{key!r}]", values, listed.get(key)) for key, values in attributes.items()]
    for what, values, known in said:
        strange = sorted({value for value in values if value is not None} - set(known or ()))
        if known is not None and strange:
            raise ValueError(f"{what}={known} lack {strange[0]!r}, which an object has; list it too")
        if known is not None and len(set(known)) != len(known):
            raise ValueError(f"{what}={known} must differ")
    if listed and not attributes.keys() <= listed.keys():
        lacking = sorted(attributes.keys() - listed.keys())
        raise ValueError(f"attribute_values lack {lacking} of attributes; list all of them or none")


def add_points(
    element: Element,
    names: Sequence[str],
    points: npt.NDArray[np.floating],
    seen: npt.NDArray[np.int64],
) -> None:
    """Add ``<keypoints>`` with the points ``(K, 2)`` whose visibility ``(K,)`` is not 0."""
    parent = SubElement(element, "keypoints")
    for name, (x, y), visibility in zip(names, points, seen.tolist(), strict=True):
        if visibility:
            check_name(name, what="point")
            SubElement(
                parent, "point", name=name, x=number_text(x), y=number_text(y), visibility=str(visibility)
            )


def add_attributes(element: Element, values: Mapping[str, str | None]) -> None:
    """Add ``<attributes>`` with the values that are not None, if there is one."""
    present = {name: value for name, value in values.items() if value is not None}
    if not present:
        return
    parent = SubElement(element, "attributes")
    for name, value in present.items():
        attribute = SubElement(parent, "attribute")
        add_text(attribute, "name", check_name(name, what="attribute"))
        add_text(attribute, "value", check_name(value, what=f"value of attribute {name!r}"))


def number_text(number: np.floating) -> str:
    """Return a number in the fewest digits that give its type the same bits again."""
    value = float(number)
    if value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0):
        return str(int(value))
    return str(number)
