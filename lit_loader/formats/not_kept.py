"""What a format cannot hold of a table, in words: asked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.points_writer import absent_places, lost_by_points_list

__all__ = ["refuse_loss", "what_is_lost"]


def what_is_lost(table: AnnotationTable, format: str, **options: Any) -> list[str]:
    """Return what a file of ``format`` does not hold of ``table``; empty when nothing is lost.

    What is listed would be another value in the table that is read from the file. Paths and ids of images and
    the report are not compared: a writer copies no images, and a new set has its own problems. What the reader of
    a list takes as an argument is not compared either, see `write_points_list`.

    Args:
        table: The table.
        format: ``"voc"``, ``"coco"`` or ``"points_list"``.
        **options: Of the writer, where they decide: ``columns`` of ``"points_list"``.

    Raises:
        ValueError: If the format is none of these.
        TypeError: If an option is missing or unknown.
    """
    if format not in _LOST:
        raise ValueError(f"format={format!r} is not written; formats: {', '.join(_LOST)}")
    return _LOST[format](table, **options)


def refuse_loss(lost: list[str], *, format: str, allow_loss: bool) -> None:
    """Raise ValueError if something is lost that the caller has not allowed to be."""
    if lost and not allow_loss:
        raise ValueError(f"{format} cannot hold {'; '.join(lost)}; pass allow_loss=True to write without")


def _lost_by_voc(table: AnnotationTable) -> list[str]:
    lost = _lost_by_both(table)
    half_known = (table.widths == 0) != (table.heights == 0)
    if half_known.any():
        lost.append(f"{int(half_known.sum())} widths or heights whose counterpart is not known")
    if table.num_images == 0 and (table.class_names or table.attributes or table.keypoint_names):
        lost.append("names of classes, points and attributes, since there is no image to write them for")
    return lost


def _lost_by_coco(table: AnnotationTable) -> list[str]:
    lost = _lost_by_both(table)
    half_known = (table.widths == 0) != (table.heights == 0)
    if half_known.any():
        lost.append(f"{int(half_known.sum())} widths or heights whose counterpart is not known")
    if table.keypoints is not None and not table.class_names:
        lost.append("names of points, since there is no category to write them for")
    corners = table.boxes.astype(np.float64)
    with np.errstate(over="ignore"):
        again = (corners[:, :2] + (corners[:, 2:] - corners[:, :2])).astype(np.float32)
    inexact = (again != table.boxes[:, 2:]).any(axis=1)
    if inexact.any():
        lost.append(f"{int(inexact.sum())} boxes exactly, since x + width is not their other corner")
    paths = list(table.image_paths)
    if len(set(paths)) != len(paths):
        lost.append(f"{len(paths) - len(set(paths))} images that have the same file as another")
    return lost


def _lost_by_both(table: AnnotationTable) -> list[str]:
    places = absent_places(table)
    return [f"places of {places} absent points"] if places else []


_LOST: Final[Mapping[str, Callable[..., list[str]]]] = {
    "voc": _lost_by_voc,
    "coco": _lost_by_coco,
    "points_list": lost_by_points_list,
}
