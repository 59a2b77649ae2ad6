"""Writes a table as a text list with one object a line; the inverse of ``read_points_list``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.paths import resolve_under
from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.list_columns import NO_VALUE, ListColumns, parse_columns
from lit_loader.formats.list_lines import BoxFormat, check_box_format
from lit_loader.formats.text_file import MAX_NAME_CHARS

__all__ = ["absent_places", "lost_by_points_list", "write_points_list"]

_COMMENT: Final = "#"
_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")


def write_points_list(
    table: AnnotationTable,
    root: Path | str,
    name: str,
    *,
    columns: Sequence[str] | str,
    separator: str | None = None,
    image_dir: str = ".",
    box_format: BoxFormat = "xyxy",
    allow_loss: bool = False,
) -> list[str]:
    """Write a list that ``read_points_list`` reads with the same arguments and the table's own schema.

    Numbers are written so that they are read back as they were. An attribute that an object does not have
    is written as ``-``. Images are not copied. A list that is there is replaced at once or not at all.

    Args:
        table: The table.
        root: The folder of the list.
        name: The list, relative to ``root``; its folder is made when missing.
        columns: As in ``read_points_list``; ``skip`` has nothing to write.
        separator: As in ``read_points_list``; None writes one blank.
        image_dir: The folder that paths are relative to, relative to the table's root.
        box_format: As in ``read_points_list``.
        allow_loss: Whether to write even if the list cannot hold everything.

    Returns:
        What of the table the list does not hold, in words; empty when nothing is lost.

    Raises:
        ValueError: If something would be lost and ``allow_loss`` is False, or a text cannot stand in a list
            with this separator; names it.
        UnsafePathError: If ``name`` leads out of ``root``.
    """
    plan = parse_columns(columns, schema=_schema(table, columns))
    if "skip" in plan.names:
        raise ValueError("columns hold 'skip', for which there is nothing to write; leave it out")
    missing = sorted(name for name, _ in plan.attributes if name not in table.attributes)
    if missing:
        raise ValueError(f"columns ask for attributes {missing}; the table has {sorted(table.attributes)}")
    is_xywh = check_box_format(box_format, has_box="box" in plan.names)
    lost = lost_by_points_list(table, columns, box_format=box_format)
    if lost and not allow_loss:
        message = f"a list with columns {' '.join(plan.names)!r} cannot hold {'; '.join(lost)}"
        raise ValueError(f"{message}; choose other columns, another format, or pass allow_loss=True")
    lines = _lines(table, plan, separator=separator, image_dir=image_dir, is_xywh=is_xywh)
    path = resolve_under(Path(root).resolve(), name)
    data = "".join(lines).encode("utf-8", "surrogateescape")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return lost


def lost_by_points_list(
    table: AnnotationTable, columns: Sequence[str] | str, *, box_format: BoxFormat = "xyxy"
) -> list[str]:
    """Return in words what of a table a list with these columns does not hold; empty when nothing is lost.

    The split, the order of class names, names of points and their mirror images are arguments of the reader. Sizes
    are read from the images; an image's id is its path. Attributes and their values come sorted.
    """
    plan = parse_columns(columns, schema=_schema(table, columns))
    lost = []
    same = table.num_images - len(set(table.image_paths))
    if same:
        lost.append(f"{same} images that have the same file as another")
    empty = int((np.diff(table.offsets) == 0).sum())
    if empty:
        lost.append(f"{empty} images without objects")
    if plan.class_name is None and len(np.unique(table.labels)) > 1:
        lost.append("classes")
    if plan.box is None and not np.array_equal(_derived_boxes(table, plan), table.boxes):
        lost.append("boxes")
    if box_format == "xywh":
        corners = table.boxes.astype(np.float64)
        again = corners[:, :2] + (corners[:, 2:] - corners[:, :2])
        inexact = int((again.astype(np.float32) != table.boxes[:, 2:]).any(axis=1).sum())
        if inexact:
            lost.append(f"{inexact} exact boxes, as x, y, width, height")
    if table.keypoints is not None and table.visibility is not None:
        if plan.points is None:
            lost.append("points")
        elif not plan.has_visibility and not (table.visibility == 2).all():
            lost.append("visibility of points")
        elif absent_places(table):
            lost.append(f"places of {absent_places(table)} absent points")
    kept = {name for name, _ in plan.attributes}
    lost += [f"attribute {name!r}" for name in table.attributes if name not in kept]
    lost += [f"{flag} objects" for flag in _FLAGS if getattr(table, flag).any()]
    return lost


def absent_places(table: AnnotationTable) -> int:
    """Return how many absent points have a place, which no format holds."""
    if table.keypoints is None or table.visibility is None:
        return 0
    return int((table.keypoints[table.visibility == 0] != 0).any(axis=-1).sum())


def _schema(table: AnnotationTable, columns: Sequence[str] | str) -> KeypointSchema | None:
    names = columns.split() if isinstance(columns, str) else columns
    wanted = "points" in names or "points_v" in names
    if wanted and table.keypoints is None:
        raise ValueError(f"columns={columns!r} ask for points; the table has none")
    return KeypointSchema(names=table.keypoint_names) if wanted else None


def _derived_boxes(table: AnnotationTable, plan: ListColumns) -> npt.NDArray[np.float32]:
    """Return the boxes that the reader gives to objects without one."""
    if plan.points is not None and table.keypoints is not None and table.visibility is not None:
        there = (table.visibility > 0)[..., None]
        low = np.where(there, table.keypoints, np.inf).min(axis=1)
        high = np.where(there, table.keypoints, -np.inf).max(axis=1)
        around: npt.NDArray[np.float32] = np.hstack([low, high]).astype(np.float32)
        return around
    image = table.image_of_object()
    zero = np.zeros(len(image), dtype=np.float32)
    return np.stack([zero, zero, table.widths[image], table.heights[image]], axis=1).astype(np.float32)


def _lines(
    table: AnnotationTable, plan: ListColumns, *, separator: str | None, image_dir: str, is_xywh: bool
) -> list[str]:
    between = " " if separator is None else separator
    prefix = "" if image_dir == "." else f"{image_dir.rstrip('/')}/"
    lines = []
    for i, path in enumerate(table.image_paths):
        if not path.startswith(prefix):
            raise ValueError(f"image {path!r} does not lie in image_dir={image_dir!r}; pass a higher folder")
        for row in range(int(table.offsets[i]), int(table.offsets[i + 1])):
            fields = [""] * plan.count
            fields[plan.path] = path.removeprefix(prefix)
            if plan.class_name is not None:
                fields[plan.class_name] = table.class_names[int(table.labels[row])]
            for name, place in plan.attributes:
                attribute = table.attributes[name]
                value = int(attribute.ids[row])
                if value >= 0 and attribute.names[value] == NO_VALUE:
                    raise ValueError(f"attribute {name!r} has the value '-', which means none in a list")
                fields[place] = NO_VALUE if value < 0 else attribute.names[value]
            _check_texts(fields, plan, separator=separator)
            if plan.box is not None:
                left, top, right, bottom = table.boxes[row].astype(np.float64).tolist()
                corners = (left, top, right - left, bottom - top) if is_xywh else table.boxes[row]
                for place, value in zip(plan.box, corners, strict=True):
                    fields[place] = _number(value)
            if plan.points is not None:
                for place, text in zip(plan.points, _points(table, plan, row), strict=True):
                    fields[place] = text
            lines.append(between.join(fields) + "\n")
    return lines


def _points(table: AnnotationTable, plan: ListColumns, row: int) -> list[str]:
    assert table.keypoints is not None
    assert table.visibility is not None
    texts = []
    for point, seen in zip(table.keypoints[row], table.visibility[row].tolist(), strict=True):
        texts += [_number(value) for value in point]
        if plan.has_visibility:
            texts.append(str(seen))
    return texts


def _number(value: np.float32 | float) -> str:
    """Return the shortest text that is read back as the same number, whole ones without a fraction."""
    text = str(value)
    return text.removesuffix(".0")


def _check_texts(fields: list[str], plan: ListColumns, *, separator: str | None) -> None:
    texts = {plan.path: "path", **{place: f"attribute {name!r}" for name, place in plan.attributes}}
    if plan.class_name is not None:
        texts[plan.class_name] = "class"
    for place, what in texts.items():
        text = fields[place]
        broken = len(text.split()) != 1 if separator is None else separator in text or text != text.strip()
        if broken or not text or any(mark in text for mark in "\n\r\0"):
            kind = "blanks" if separator is None else f"separator={separator!r}"
            message = f"{what} {shorten(repr(text))} cannot stand in a list with {kind} between columns"
            raise ValueError(f"{message}; choose another separator")
        if place == 0 and text.startswith((_COMMENT, "\ufeff")):
            raise ValueError(f"{what} {shorten(repr(text))} at the start of a line would be a comment")
        if what != "path" and len(text) > MAX_NAME_CHARS:
            raise ValueError(f"{what} {shorten(repr(text))} has more than {MAX_NAME_CHARS} characters")
