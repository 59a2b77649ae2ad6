"""The rules that hold between the columns of an annotation table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.text_column import TextColumn, check_offsets

__all__ = ["check_columns", "frozen_array"]


def frozen_array(
    values: npt.ArrayLike | None,
    dtype: npt.DTypeLike,
    *,
    name: str,
    rows: int | None = None,
    empty_shape: tuple[int, ...] = (0,),
) -> npt.NDArray[Any]:
    """Return ``values`` as a read-only, contiguous array; an array that somebody may write to is copied.

    Args:
        values: What to convert; None gives ``rows`` zeros.
        dtype: The column's type; integers are not made from other kinds of number.
        name: The column, for messages.
        rows: Length of the zeros that None gives.
        empty_shape: Shape of an empty column.

    Raises:
        ValueError: If the values are of another kind or do not fit the type.
    """
    if values is None:
        values = np.zeros(rows or 0, dtype=dtype)
    given = np.asarray(values)
    if given.size == 0:
        given = np.zeros(given.shape if given.ndim > 1 else empty_shape, dtype=dtype)
    wanted = np.dtype(dtype)
    if given.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[wanted.kind]:
        raise ValueError(f"{name} of type {given.dtype} must be {wanted}; convert it first")
    with np.errstate(over="ignore"):
        column = np.ascontiguousarray(given, dtype=wanted)
    if wanted.kind in "iu" and not np.array_equal(column, given):
        raise ValueError(f"{name} has values that do not fit {wanted}")
    if column.flags.writeable:
        if np.may_share_memory(column, given):
            column = column.copy()
        column.flags.writeable = False
    return column


def check_columns(parts: Mapping[str, Any]) -> None:
    """Check every rule between the columns of a table.

    Args:
        parts: The table's arguments by name, arrays of the right type.

    Raises:
        ValueError: Naming the column, the value found and the rule.
        UnsafePathError: If an image path is absolute or leaves the root.
    """
    paths, labels, names = parts["image_paths"], parts["labels"], parts["class_names"]
    num_images, num_objects = len(paths), len(labels)
    _check_names(names, what="class_names")
    _check_paths(paths)
    if len(parts["image_ids"]) != num_images:
        raise ValueError(f"image_ids has {len(parts['image_ids'])} rows; there are {num_images} image_paths")
    for name in ("widths", "heights"):
        _check_shape(parts[name], (num_images,), what=name)
        if num_images and int(parts[name].min()) < 0:
            raise ValueError(f"{name} holds {parts[name].min()}; pixels must be >= 0 (0 = unknown)")
    _check_shape(parts["offsets"], (num_images + 1,), what="offsets")
    check_offsets(parts["offsets"], total=num_objects, what="offsets")
    _check_shape(labels, (num_objects,), what="labels")
    if num_objects and not 0 <= int(labels.min()) <= int(labels.max()) < len(names):
        raise ValueError(f"labels {labels.min()}..{labels.max()} leave the {len(names)} class_names")
    _check_shape(parts["boxes"], (num_objects, 4), what="boxes")
    _check_finite(parts["boxes"], what="boxes")
    for name in ("difficult", "truncated", "occluded", "crowd"):
        _check_shape(parts[name], (num_objects,), what=name)
    _check_keypoints(parts, num_objects)
    for name, attribute in parts["attributes"].items():
        _check_names(attribute.names, what=f"attribute {name!r}")
        _check_shape(attribute.ids, (num_objects,), what=f"attribute {name!r}")
        if num_objects and not -1 <= int(attribute.ids.min()) <= int(attribute.ids.max()) < len(
            attribute.names
        ):
            raise ValueError(f"attribute {name!r} has ids outside -1..{len(attribute.names) - 1}")


def _check_keypoints(parts: Mapping[str, Any], num_objects: int) -> None:
    keypoints, visibility, names = parts["keypoints"], parts["visibility"], parts["keypoint_names"]
    if (keypoints is None) != (visibility is None) or (keypoints is None) != (len(names) == 0):
        raise ValueError("keypoints, visibility and keypoint_names go together: give all of them or none")
    _check_names(names, what="keypoint_names")
    pairs, interocular = parts["flip_pairs"], parts["interocular"]
    if names:
        KeypointSchema(names=names, flip_pairs=pairs, interocular=interocular)  # raises, naming the field
    elif pairs or interocular:
        raise ValueError(f"{pairs=} and {interocular=} name positions; there are no keypoints")
    if keypoints is not None:
        _check_shape(keypoints, (num_objects, len(names), 2), what="keypoints")
        _check_shape(visibility, (num_objects, len(names)), what="visibility")
        _check_finite(keypoints, what="keypoints")
        if visibility.size and int(visibility.max()) > 2:
            raise ValueError(f"visibility holds {visibility.max()}; the rule: 0 absent, 1 hidden, 2 visible")


def _check_shape(column: npt.NDArray[Any], shape: tuple[int, ...], *, what: str) -> None:
    if column.shape != shape:
        raise ValueError(f"{what} has shape {column.shape}; the other columns ask for {shape}")


def _check_finite(column: npt.NDArray[Any], *, what: str) -> None:
    finite = np.isfinite(column).all(axis=tuple(range(1, column.ndim)))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(f"{what}[{row}] = {column[row].tolist()} must be finite")


def _check_names(names: Sequence[str], *, what: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what} holds {name!r}; every name must be a string that is not empty")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{what} holds {twice[:5]} more than once; names must differ")


def _check_paths(paths: TextColumn) -> None:
    """Find unsafe paths by looking at all bytes at once; only suspects are looked at one by one."""
    data, starts = paths.data, paths.offsets[:-1]
    suspect = np.diff(paths.offsets) == 0
    if data.size:
        suspect |= data[np.minimum(starts, data.size - 1)] == ord("/")
        dots = np.flatnonzero((data[1:] == ord(".")) & (data[:-1] == ord(".")))
        odd = np.concatenate([np.flatnonzero((data == 0) | (data == ord("\\"))), dots])
        suspect[np.searchsorted(paths.offsets, odd, side="right") - 1] = True
    for row in np.flatnonzero(suspect):
        check_relative(paths[int(row)])
