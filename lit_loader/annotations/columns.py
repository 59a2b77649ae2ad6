"""Column declarations of the annotation table, and the operations that work on every column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from lit_loader.types import IndexArray

__all__ = [
    "Attribute",
    "ColumnSpec",
    "RaggedColumn",
    "TextColumn",
    "check_offsets",
    "checked_names",
    "frozen_array",
    "gather_ragged",
    "offsets_of",
    "sorted_unique",
]

_Arrays = dict[str, npt.NDArray[Any]]


class RaggedColumn(ABC):
    """Rows of unequal length in flat, read-only arrays.

    Rows are not Python objects, so a forked process copies no memory by changing reference counts.

    Args:
        arrays: One vector for each name in ``ARRAYS``, in that order and of those types. An array whose name ends in
            ``offsets`` divides the next array into rows: row i has ``next[offsets[i]:offsets[i + 1]]``.

    Raises:
        ValueError: If the arrays are inconsistent.
    """

    ARRAYS: ClassVar[Mapping[str, type[np.generic]]]

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        for (name, dtype), array in zip(self.ARRAYS.items(), arrays, strict=True):
            if array.dtype != dtype or array.ndim != 1:
                raise ValueError(
                    f"{name} of a {type(self).__name__} must be a vector of {dtype.__name__}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
            # A view, so that the flag of the caller's array is not changed.
            view = np.ascontiguousarray(array).view()
            view.flags.writeable = False
            setattr(self, name, view)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Raise ValueError if the arrays are inconsistent."""

    def __len__(self) -> int:
        # Looks up the first array only: this is called for every sample.
        return len(getattr(self, next(iter(self.ARRAYS)))) - 1

    def take(self, rows: IndexArray) -> Self:
        """Return a column of some rows, in the order of ``rows``."""
        selected = []
        # Positions in the current array. Each offsets array turns positions of rows into positions of their elements,
        # so nested offsets (rows, polygons, values) chain; a data array ends a chain.
        positions = rows
        for name, array in self.arrays().items():
            if name.endswith("offsets"):
                positions, new_offsets = gather_ragged(array, positions)
                selected.append(new_offsets)
            else:
                selected.append(array[positions])
                positions = rows
        return type(self)(*selected)

    @classmethod
    def joined(cls, columns: Sequence[Self]) -> Self:
        """Concatenate columns."""
        arrays = []
        for name, dtype in cls.ARRAYS.items():
            parts = [getattr(column, name) for column in columns]
            if name.endswith("offsets"):
                arrays.append(offsets_of(*map(np.diff, parts)))
            else:
                arrays.append(np.concatenate([np.zeros(0, dtype), *parts]))
        return cls(*arrays)

    @classmethod
    @abstractmethod
    def from_rows(cls, rows: Iterable[Any]) -> Self:
        """Build a column from Python objects."""

    def arrays(self) -> _Arrays:
        """Return the arrays by name, in the order of the constructor's arguments."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.arrays().values())


class TextColumn(RaggedColumn, Sequence[str]):
    """Strings in one array of UTF-8 bytes; file names that are not valid UTF-8 are preserved.

    Args:
        offsets: int64 ``(num_rows + 1,)``, non-decreasing from 0 to ``len(data)``.
        data: uint8 ``(num_bytes,)``.
    """

    ARRAYS = {"offsets": np.int64, "data": np.uint8}  # noqa: RUF012 # never changed
    offsets: IndexArray
    data: npt.NDArray[np.uint8]

    def _check(self) -> None:
        check_offsets(self.offsets, total=len(self.data), name="text offsets")

    @classmethod
    def from_rows(cls, rows: Iterable[str]) -> Self:
        """Build a column from strings."""
        encoded = [row.encode("utf-8", "surrogateescape") for row in rows]
        return cls(offsets_of([*map(len, encoded)]), np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __getitem__(self, row: Any) -> Any:
        # A range resolves negative rows and slices as a list does, and refuses rows outside the column.
        rows = range(len(self))[row]
        if isinstance(rows, range):
            return [self[i] for i in rows]
        return self.data[self.offsets[rows] : self.offsets[rows + 1]].tobytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """Declaration of a column: how it is checked, selected, joined and stored.

    Attributes:
        rows: Kind of item that each row describes.
        kind: Number type, or class of a column whose rows have unequal lengths.
        shape: Shape of a row; -1 is the number of keypoints.
        optional: True if a table may lack the column; any other column defaults to zeros.
        missing: Value of the rows of a table that lacks the column, when tables are joined. If it is NaN, the column
            may contain NaN; any other float column must be finite.
        limits: Smallest and largest allowed value.
    """

    rows: Literal["images", "objects", "classes"]
    kind: type[np.generic] | type[RaggedColumn]
    shape: tuple[int, ...] = ()
    optional: bool = False
    missing: float = 0
    limits: tuple[float, float] | None = None

    def convert(self, name: str, values: Any, *, rows: int, num_points: int) -> Any:
        """Return the user's values as a read-only column, or None.

        Raises:
            ValueError: If the number of rows differs from ``rows``, or a value is not allowed in the column.
        """
        if values is None and self.optional:
            return None
        if issubclass(self.kind, RaggedColumn):
            ragged = values if isinstance(values, self.kind) else self.kind.from_rows(values)
            if len(ragged) != rows:
                raise ValueError(f"{name} has {len(ragged)} rows; there are {rows} {self.rows}")
            return ragged
        shape = (rows, *self._row_shape(num_points))
        values = np.zeros(shape, self.kind) if values is None else values
        column = frozen_array(values, self.kind, name, shape[1:])
        if column.shape != shape:
            raise ValueError(f"{name} has shape {column.shape}; expected {shape} to match the other columns")
        self._check_values(name, column)
        return column

    def take(self, column: Any, rows: IndexArray) -> Any:
        """Return some rows of a column, in the order of ``rows``."""
        if column is None:
            return None
        if isinstance(column, RaggedColumn):
            return column.take(rows)
        selected = column[rows]
        # Indexing has copied, so no other reference exists: marking it read-only saves the table another copy.
        selected.flags.writeable = False
        return selected

    def join(self, columns: Sequence[Any], counts: Sequence[int], *, num_points: int) -> Any:
        """Concatenate this column of several tables; ``counts`` are the tables' numbers of rows."""
        if all(column is None for column in columns):
            return None
        row_shape = self._row_shape(num_points)
        parts: list[Any] = []
        for column, count in zip(columns, counts, strict=True):
            if column is not None:
                parts.append(column)
            elif issubclass(self.kind, RaggedColumn):
                parts.append(self.kind.from_rows([None] * count))
            else:
                fill_value = np.asarray(self.missing, dtype=self.kind)
                parts.append(np.broadcast_to(fill_value, (count, *row_shape)))
        return self.kind.joined(parts) if issubclass(self.kind, RaggedColumn) else np.concatenate(parts)

    def to_arrays(self, name: str, column: Any) -> _Arrays:
        """Return a column as vectors of numbers to store in a file."""
        if column is None:
            return {}
        # One vector per part, so that a column of any structure is stored and mapped without encoding.
        if isinstance(column, RaggedColumn):
            return {f"{name}.{part}": array for part, array in column.arrays().items()}
        flat = column.reshape(-1)
        # Arrow packs booleans into bits, which cannot be mapped back as a numpy array.
        return {name: flat.view(np.uint8) if self.kind is np.bool_ else flat}

    def from_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]], *, num_points: int) -> Any:
        """Rebuild a column from the vectors of `to_arrays`; `convert` checks it further.

        Raises:
            KeyError: If arrays are missing.
            ValueError: If they have another length, or are inconsistent.
        """
        ragged = self.kind if issubclass(self.kind, RaggedColumn) else None
        parts = [name] if ragged is None else [f"{name}.{part}" for part in ragged.ARRAYS]
        if self.optional and not arrays.keys() & set(parts):
            return None
        if ragged is not None:
            return ragged(*(arrays[part] for part in parts))
        # Booleans are stored as bytes; other values than 0 and 1 would be undefined behaviour in a boolean array.
        flat = arrays[name]
        if self.kind is np.bool_ and flat.dtype == np.uint8 and not (flat > 1).any():
            flat = flat.view(np.bool_)
        shape = self._row_shape(num_points)
        # `convert` compares the number of rows with the other columns; an incomplete last row is an error here.
        return flat.reshape(flat.size // max(1, int(np.prod(shape))), *shape)

    def _row_shape(self, num_points: int) -> tuple[int, ...]:
        return tuple(num_points if side < 0 else side for side in self.shape)

    def _check_values(self, name: str, column: npt.NDArray[Any]) -> None:
        if column.dtype.kind == "f" and not np.isnan(self.missing):
            finite = np.isfinite(column)
            if not finite.all():
                row = int(np.argwhere(~finite)[0, 0])
                raise ValueError(f"{name}[{row}] = {column[row].tolist()} must be finite")
        if self.limits is not None:
            low, high = self.limits
            outside = column[(column < low) | (column > high)]  # not inverted, because NaN may be allowed
            if outside.size:
                raise ValueError(f"{name} holds {outside[0]}; expected {low} to {high}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """Per-object property with named values, e.g. ``pose``.

    Attributes:
        ids: int64 ``(num_objects,)``, positions in ``names``, -1 for an object without a value.
        names: Names of the values.
    """

    ids: IndexArray
    names: tuple[str, ...]


def frozen_array(
    values: npt.ArrayLike, dtype: type[np.generic], name: str, row_shape: tuple[int, ...] = ()
) -> npt.NDArray[Any]:
    """Return ``values`` as a read-only, contiguous array, copied if anyone else could write to it.

    Args:
        values: Values to convert.
        dtype: Type of the column; an integer column accepts integers only.
        name: Name of the column, for messages.
        row_shape: Shape of a row, for an empty list.

    Raises:
        ValueError: If the values are of another kind or do not fit the type.
    """
    source = np.asarray(values)
    if source.size == 0:
        source = np.zeros(source.shape if source.ndim > 1 else (0, *row_shape), dtype=dtype)
    target = np.dtype(dtype)
    if source.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[target.kind]:
        raise ValueError(f"{name} of type {source.dtype} must be {target}; convert it first")
    # A value beyond float32 becomes infinite here, and the column's own check reports it.
    with np.errstate(over="ignore"):
        column = np.ascontiguousarray(source, dtype=target)
    # Casting wraps integers around silently, for example 300 to uint8.
    if target.kind in "iu" and not np.array_equal(column, source):
        raise ValueError(f"{name} has values that do not fit {target}")
    # An array that is read-only already is shared; it is usually a view of the mapped cache file.
    if column.flags.writeable:
        column = column.copy() if np.may_share_memory(column, source) else column
        column.flags.writeable = False
    return column


def checked_names(field_name: str, names: Any) -> tuple[str, ...]:
    """Return names of classes, points or attribute values as a tuple.

    Raises:
        TypeError: If they are not strings.
        ValueError: If a name is empty or a duplicate.
    """
    # A string is also an iterable of strings.
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"expected {field_name} as strings, got {names!r} ({type(names).__name__})")
    result: tuple[str, ...] = tuple(names)
    for name in result:
        if not isinstance(name, str):
            raise TypeError(f"expected {field_name} as strings, got {name!r} ({type(name).__name__}) among them")
    for name, count in Counter(result).items():
        if not name or count > 1:
            problem = f"has {name!r} twice" if name else f"is empty at position {result.index(name)}"
            raise ValueError(f"{field_name} {problem}; every name must be unique and not empty")
    return result


def check_offsets(offsets: IndexArray, *, total: int, name: str) -> None:
    """Raise ValueError unless ``offsets`` is non-decreasing from 0 to ``total``."""
    decreases = bool((offsets[1:] < offsets[:-1]).any())
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != total or decreases:
        raise ValueError(f"{name} must start at 0, never decrease, and end at {total}; got {offsets}")


def offsets_of(*lengths: npt.ArrayLike) -> IndexArray:
    """Return int64 ``(n + 1,)`` offsets of rows with some lengths; several arrays of lengths are concatenated."""
    parts = (np.asarray(part, np.int64) for part in lengths)
    return np.concatenate([np.zeros(1, np.int64), *parts]).cumsum()


def sorted_unique(values: IndexArray) -> IndexArray:
    """Return the distinct values of an int64 array, ascending.

    On a million almost sorted values this is many times faster than ``numpy.unique``, which uses a hash table.
    """
    values = np.sort(values)
    is_first = np.ones(len(values), dtype=np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return values[is_first]


def gather_ragged(offsets: IndexArray, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the positions of the elements of some rows, and the offsets of these rows once gathered."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    new_offsets = offsets_of(lengths)
    # Element k of the result is k places after the start of the result; shift it to the start of its source row.
    positions = np.arange(new_offsets[-1], dtype=np.int64) + np.repeat(starts - new_offsets[:-1], lengths)
    return positions, new_offsets
