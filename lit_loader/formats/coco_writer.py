"""Writes a table as one COCO JSON file; the inverse of ``read_coco``.

Beyond COCO's own keys, which every reader of COCO understands, the file has keys that others ignore, so that
nothing is lost: ``flip_pairs`` and ``interocular`` of a category (positions in its ``keypoints``), ``attributes``
of an annotation (names with values, as CVAT writes them) and their values in the order of the ids at the top,
``truncated`` and ``occluded`` and ``ignore`` (difficult) of an annotation that is, ``source_id`` of an image whose
id is no number, and ``split`` in ``info``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.formats.coco_head import word
from lit_loader.formats.not_kept import refuse_loss, what_is_lost
from lit_loader.formats.parallel import map_chunks
from lit_loader.formats.table_room import MAX_POINT_NAMES

__all__ = ["write_coco"]


def write_coco(
    table: AnnotationTable, path: Path | str, *, allow_loss: bool = False, progress: bool = True
) -> list[str]:
    """Write a table as COCO JSON, one entry a line; images are not copied.

    ``file_name`` is the image's path relative to the table's root, where ``read_coco`` finds it with that root.
    Images keep their ids where all are whole numbers, else they are numbered from 1; so are categories and
    annotations.

    Args:
        table: The table.
        path: The file; its folder is made when missing. It is replaced at once or not at all.
        allow_loss: Whether to write even if the file cannot hold everything.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        What of the table the file does not hold, in words; empty when nothing is lost.

    Raises:
        ValueError: If something would be lost and ``allow_loss`` is False, or a name would not be read back.
    """
    lost = what_is_lost(table, "coco")
    refuse_loss(lost, format="COCO", allow_loss=allow_loss)
    _check_names(table)
    ids = _image_ids(table)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    chunks = map_chunks(
        partial(_annotations, table=table, ids=ids),
        range(table.num_images),
        num_workers=0,
        progress=progress,
        description="Writing annotations",
    )
    try:
        with draft.open("w", encoding="ascii", newline="\n") as file:
            file.write('{\n"info": ' + _text({"description": "written by lit_loader", "split": table.split}))
            file.write(',\n"licenses": [],\n')
            _write_list(file.write, "images", _images(table, ids))
            _write_list(file.write, "categories", _categories(table))
            _write_list(file.write, "attributes", _attributes(table))
            _write_list(file.write, "annotations", (line for chunk in chunks for line in chunk), last=True)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return lost


def _check_names(table: AnnotationTable) -> None:
    """Raise ValueError for a name that ``read_coco`` would refuse."""
    named: list[tuple[str, Sequence[str]]] = [
        ("class name", table.class_names),
        ("name of a point", table.keypoint_names),
        ("name of an attribute", tuple(table.attributes)),
    ]
    named += [(f"value of attribute {name!r}", each.names) for name, each in table.attributes.items()]
    for what, names in [*named, ("split", [table.split] if table.split else [])]:
        for name in names:
            word(name, f"{what} {shorten(repr(name))}")
    if len(table.keypoint_names) > MAX_POINT_NAMES:
        raise ValueError(
            f"{len(table.keypoint_names)} points are more than MAX_POINT_NAMES={MAX_POINT_NAMES}"
        )


def _write_list(write: Any, key: str, lines: Iterator[str], *, last: bool = False) -> None:
    write(f'"{key}": [')
    for number, line in enumerate(lines):
        write(f"{',' if number else ''}\n{line}")
    write("\n]\n}\n" if last else "\n],\n")


def _image_ids(table: AnnotationTable) -> list[int]:
    """Return the images' ids as numbers, where all of them are different whole ones, else 1, 2, ..."""
    ids = list(table.image_ids)
    plain = all(name.isascii() and name.isdigit() and str(int(name[:18])) == name for name in ids)
    return (
        [int(name) for name in ids] if plain and len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))
    )


def _images(table: AnnotationTable, ids: Sequence[int]) -> Iterator[str]:
    for i, (image_id, file_name, name) in enumerate(
        zip(ids, table.image_paths, table.image_ids, strict=True)
    ):
        record = {
            "id": image_id,
            "file_name": file_name,
            "width": int(table.widths[i]),
            "height": int(table.heights[i]),
        }
        yield _text(record if name == str(image_id) else record | {"source_id": name})


def _categories(table: AnnotationTable) -> Iterator[str]:
    points: dict[str, Any] = {}
    if table.keypoints is not None:
        points = {
            "keypoints": table.keypoint_names,
            "skeleton": [],
            "flip_pairs": table.flip_pairs,
            "interocular": table.interocular,
        }
    for number, name in enumerate(table.class_names, 1):
        yield _text({"id": number, "name": name, "supercategory": ""} | points)


def _attributes(table: AnnotationTable) -> Iterator[str]:
    for name, attribute in table.attributes.items():
        yield _text({"name": name, "values": attribute.names})


def _annotations(chunk: Sequence[int], *, table: AnnotationTable, ids: Sequence[int]) -> list[str]:
    lines = []
    for i in chunk:
        rows = table.objects(i)
        for row in range(rows.start, rows.stop):
            x, y, right, bottom = table.boxes[row].tolist()  # float64, in which width and height are exact
            width, height = right - x, bottom - y
            record: dict[str, Any] = {
                "id": row + 1,
                "image_id": ids[i],
                "category_id": int(table.labels[row]) + 1,
                "bbox": [_short(value) for value in (x, y, width, height)],
                "area": _short(width * height),
                "iscrowd": int(table.crowd[row]),
            }
            for key, flags in (
                ("ignore", table.difficult),
                ("truncated", table.truncated),
                ("occluded", table.occluded),
            ):
                if flags[row]:
                    record[key] = 1
            lines.append(_text(record | _points(table, row) | _values(table, row)))
    return lines


def _points(table: AnnotationTable, row: int) -> dict[str, Any]:
    if table.keypoints is None or table.visibility is None:
        return {}
    visibility = table.visibility[row].tolist()
    places = [
        (float(str(x)), float(str(y))) if v else (0.0, 0.0)  # the fewest digits that give float32 again
        for (x, y), v in zip(table.keypoints[row], visibility, strict=True)
    ]
    values = [
        value for (x, y), v in zip(places, visibility, strict=True) for value in (_short(x), _short(y), v)
    ]
    return {"keypoints": values, "num_keypoints": sum(v > 0 for v in visibility)}


def _values(table: AnnotationTable, row: int) -> dict[str, Any]:
    values = {
        name: attribute.names[int(attribute.ids[row])]
        for name, attribute in table.attributes.items()
        if attribute.ids[row] >= 0
    }
    return {"attributes": values} if values else {}


def _short(value: float) -> float | int:
    """Return whole numbers without a fraction."""
    whole = value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0)
    return int(value) if whole else value


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(", ", ": "))
