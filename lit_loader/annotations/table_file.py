"""An annotation table as a file of columns: what is a column, what is in the header, what is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from lit_loader.annotations.columns import Column, read_columns, write_columns
from lit_loader.annotations.report import ReadReport
from lit_loader.annotations.text_column import TextColumn
from lit_loader.errors import CacheError
from lit_loader.types import IndexArray

__all__ = ["Attribute", "PER_OBJECT", "TableParts", "parts_from_file", "parts_to_file"]

TableParts: TypeAlias = dict[str, Any]
TableT = TypeVar("TableT")

PER_OBJECT = ("boxes", "labels", "difficult", "truncated", "occluded", "crowd", "keypoints", "visibility")
"""The parts with one row an object; attributes have one, too."""

_FORMAT = 2
_TEXTS = ("image_paths", "image_ids")
_FLAGS = ("difficult", "truncated", "occluded", "crowd")
_PLAIN: dict[str, type[np.generic]] = {
    "widths": np.int32,
    "heights": np.int32,
    "offsets": np.int64,
    "labels": np.int64,
}
_ATTRIBUTE = "attribute:"


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """A per-object property with named values, e.g. ``pose``.

    Attributes:
        ids: int64 ``(num_objects,)``, positions in ``names``, -1 where the object has no value.
        names: The values' names.
    """

    ids: IndexArray
    names: tuple[str, ...]


def parts_to_file(path: Path, parts: TableParts, *, key: str) -> None:
    """Write a table's parts to ``path``, at once or not at all.

    Raises:
        OSError: If the folder cannot be written.
    """
    columns: dict[str, Column] = {name: parts[name] for name in _PLAIN}
    for name in _TEXTS:
        columns[f"{name}.offsets"], columns[f"{name}.data"] = parts[name].offsets, parts[name].data
    columns |= {name: parts[name].view(np.uint8) for name in _FLAGS}
    columns["boxes"] = parts["boxes"].reshape(-1)
    if parts["keypoints"] is not None:
        columns["keypoints"] = parts["keypoints"].reshape(-1)
        columns["visibility"] = parts["visibility"].reshape(-1)
    columns |= {f"{_ATTRIBUTE}{name}": a.ids for name, a in parts["attributes"].items()}
    header = {
        "format": _FORMAT,
        "key": key,
        "root": str(parts["root"]),
        "split": parts["split"],
        "class_names": parts["class_names"],
        "keypoint_names": parts["keypoint_names"],
        "flip_pairs": parts["flip_pairs"],
        "interocular": parts["interocular"],
        "attributes": {name: a.names for name, a in parts["attributes"].items()},
        "report": parts["report"].to_dict(),
    }
    write_columns(path, columns, header)


def parts_from_file(path: Path, *, build: Callable[..., TableT], key: str) -> TableT:
    """Map the file and build a table of views of the mapping.

    Args:
        path: A file that ``parts_to_file`` wrote, or that claims so.
        build: Makes and checks the table from its parts.
        key: The key under which it must have been written.

    Raises:
        CacheError: If there is no such file, it is damaged, or it was made under another key.
    """

    def check(header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("key") != key:
            raise CacheError(f"{path} was made by another version or from other files; delete it")

    columns, header = read_columns(path, check=check)
    try:
        return build(**_parts(columns, header))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CacheError(f"{path} does not hold a valid table ({error}); delete it") from None


def _parts(columns: dict[str, Column], header: dict[str, Any]) -> TableParts:
    parts: TableParts = {name: _typed(columns, name, dtype) for name, dtype in _PLAIN.items()}
    for name in _TEXTS:
        parts[name] = TextColumn(
            _typed(columns, f"{name}.offsets", np.int64), _typed(columns, f"{name}.data", np.uint8)
        )
    for name in _FLAGS:
        flags = _typed(columns, name, np.uint8)
        if flags.size and flags.max() > 1:
            raise ValueError(f"{name} holds {flags.max()}, which is no truth value")
        parts[name] = flags.view(np.bool_)
    parts["boxes"] = _typed(columns, "boxes", np.float32).reshape(-1, 4)
    names = _strings(header["keypoint_names"])
    if names:
        objects = len(parts["labels"])
        parts["keypoints"] = _typed(columns, "keypoints", np.float32).reshape(objects, len(names), 2)
        parts["visibility"] = _typed(columns, "visibility", np.uint8).reshape(objects, len(names))
    parts["attributes"] = {
        name: Attribute(ids=_typed(columns, f"{_ATTRIBUTE}{name}", np.int64), names=_strings(values))
        for name, values in header["attributes"].items()
    }
    (root,) = _strings([header["root"]])
    if header["split"] is not None:
        _strings([header["split"]])
    return parts | {
        "root": Path(root),
        "split": header["split"],
        "class_names": _strings(header["class_names"]),
        "keypoint_names": names,
        "flip_pairs": header["flip_pairs"],
        "interocular": header["interocular"],
        "report": ReadReport.from_dict(header["report"]),
    }


def _typed(columns: dict[str, Column], name: str, dtype: type[np.generic]) -> Column:
    column = columns[name]
    if column.dtype != dtype:
        raise ValueError(f"column {name!r} is {column.dtype}, not {np.dtype(dtype)}")
    return column


def _strings(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("names are not a list of strings")
    return tuple(values)
