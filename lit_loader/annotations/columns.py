"""How a column of an annotation table is declared, and what is done alike to every column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "frozen_array",
    "gather_ragged",
    "joined_offsets",
    "offsets_of",
]

_Arrays = dict[str, npt.NDArray[Any]]


class RaggedColumn(ABC):
    """Rows of unequal length in flat, read-only arrays: no Python object a row, so nothing to copy after a fork.

    Args:
        arrays: One vector for each name in ``ARRAYS``, in that order and of those types. A name that ends in
            ``offsets`` says where the rows of the next array begin: row i has ``next[offsets[i]:offsets[i + 1]]``.

    Raises:
        ValueError: If the arrays do not belong together.
    """

    ARRAYS: ClassVar[Mapping[str, type[np.generic]]]

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        for (name, dtype), array in zip(self.ARRAYS.items(), arrays, strict=True):
            if array.dtype != dtype or array.ndim != 1:
                found, column = f"{array.dtype} of shape {array.shape}", type(self).__name__
                raise ValueError(f"{name} of a {column} is {found}, not a vector of {dtype.__name__}")
            view = np.ascontiguousarray(array).view()
            view.flags.writeable = False
            setattr(self, name, view)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Raise ValueError if the arrays do not belong together."""

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.ARRAYS)))) - 1  # one array: samples ask for it each time

    def take(self, rows: IndexArray) -> Self:
        """Return the column of the given rows, in their order."""
        taken, places = [], rows
        for name, array in self.arrays().items():
            if name.endswith("offsets"):
                places, array = gather_ragged(array, places)
                taken.append(array)
            else:
                taken.append(array[places])
                places = rows
        return type(self)(*taken)

    @classmethod
    def joined(cls, columns: Sequence[Self]) -> Self:
        """Return the rows of all columns, one column after the other."""
        arrays = []
        for name, dtype in cls.ARRAYS.items():
            parts = [getattr(column, name) for column in columns]
            is_flat = not name.endswith("offsets")
            arrays.append(np.concatenate([np.zeros(0, dtype), *parts]) if is_flat else joined_offsets(parts))
        return cls(*arrays)

    @classmethod
    @abstractmethod
    def from_rows(cls, rows: Iterable[Any]) -> Self:
        """Build a column from Python objects."""

    def arrays(self) -> _Arrays:
        """Return the arrays by name, as the constructor takes them."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.arrays().values())


class TextColumn(RaggedColumn, Sequence[str]):
    """Strings, kept as one array of UTF-8 bytes; file names that are not UTF-8 come back unchanged.

    Args:
        offsets: int64 ``(num_rows + 1,)``, from 0, not falling, ending at ``len(data)``.
        data: uint8 ``(num_bytes,)``.
    """

    ARRAYS = {"offsets": np.int64, "data": np.uint8}  # noqa: RUF012 # never changed
    offsets: IndexArray
    data: npt.NDArray[np.uint8]

    def _check(self) -> None:
        check_offsets(self.offsets, total=len(self.data), what="text offsets")

    @classmethod
    def from_rows(cls, rows: Iterable[str]) -> Self:
        """Build a column from strings."""
        encoded = [row.encode("utf-8", "surrogateescape") for row in rows]
        return cls(offsets_of([*map(len, encoded)]), np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} is outside a column of {num_rows} rows")
        row %= num_rows
        start, stop = self.offsets[row], self.offsets[row + 1]
        return self.data[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """The declaration of a column, from which its checks, its selection, its joining and its place in a file follow.

    Attributes:
        rows: What has a row.
        kind: The type of the numbers, or the class of a column whose rows have unequal lengths.
        shape: Shape of a row; -1 is the number of keypoints.
        optional: Whether a table may be without the column. A column that is not optional is filled with zeros if
            it is not given.
        missing: The value of a row whose table lacks the column, where tables are joined. NaN may then be in the
            column; any other column of floats is finite.
        limits: Smallest and largest value.
    """

    rows: Literal["images", "objects", "classes"]
    kind: type[np.generic] | type[RaggedColumn]
    shape: tuple[int, ...] = ()
    optional: bool = False
    missing: float = 0
    limits: tuple[float, float] | None = None

    def convert(self, name: str, given: Any, *, rows: int, num_points: int) -> Any:
        """Return what the user gave as a read-only column, or None.

        Raises:
            ValueError: If it does not hold as many rows, or values that the column may not hold.
        """
        if given is None and self.optional:
            return None
        if issubclass(self.kind, RaggedColumn):
            ragged = given if isinstance(given, self.kind) else self.kind.from_rows(given)
            if len(ragged) != rows:
                raise ValueError(f"{name} has {len(ragged)} rows; there are {rows} {self.rows}")
            return ragged
        shape = self._row_shape(num_points)
        given = np.zeros((rows, *shape), self.kind) if given is None else given
        column = frozen_array(given, self.kind, name, shape)
        if column.shape != (rows, *shape):
            raise ValueError(f"{name} has shape {column.shape}; the other columns ask for {(rows, *shape)}")
        self._check_values(name, column)
        return column

    def take(self, column: Any, rows: IndexArray) -> Any:
        """Return the given rows of a column, in their order."""
        if column is None or isinstance(column, RaggedColumn):
            return column and column.take(rows)
        taken = column[rows]
        taken.flags.writeable = False  # the only reference, so the table need not copy it
        return taken

    def join(self, columns: Sequence[Any], counts: Sequence[int], *, num_points: int) -> Any:
        """Return the rows of several tables' columns; ``counts`` are the tables' rows."""
        if all(column is None for column in columns):
            return None
        pairs = zip(columns, counts, strict=True)
        if issubclass(self.kind, RaggedColumn):
            return self.kind.joined([self.kind.from_rows([None] * n) if c is None else c for c, n in pairs])
        fill, shape = np.asarray(self.missing, dtype=self.kind), self._row_shape(num_points)
        return np.concatenate([np.broadcast_to(fill, (n, *shape)) if c is None else c for c, n in pairs])

    def to_arrays(self, name: str, column: Any) -> _Arrays:
        """Return a column as vectors of numbers, for a file."""
        if column is None:
            return {}
        if isinstance(column, RaggedColumn):
            return {f"{name}.{part}": array for part, array in column.arrays().items()}
        flat = column.reshape(-1)
        return {name: flat.view(np.uint8) if self.kind is np.bool_ else flat}

    def from_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]], *, num_points: int) -> Any:
        """Return the column that `to_arrays` took apart, for `convert` to check.

        Raises:
            KeyError: If arrays are missing.
            ValueError: If they are of another length, or do not belong together.
        """
        ragged = self.kind if issubclass(self.kind, RaggedColumn) else None
        parts = [name] if ragged is None else [f"{name}.{part}" for part in ragged.ARRAYS]
        if self.optional and not arrays.keys() & set(parts):
            return None
        if ragged is not None:
            return ragged(*(arrays[part] for part in parts))
        flat = arrays[name]
        if self.kind is np.bool_ and flat.dtype == np.uint8 and not (flat > 1).any():
            flat = flat.view(np.bool_)
        shape = self._row_shape(num_points)
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
            wrong = column[(column < self.limits[0]) | (column > self.limits[1])]
            if wrong.size:
                raise ValueError(f"{name} holds {wrong[0]}; expected {self.limits[0]} to {self.limits[1]}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute:
    """A per-object property with named values, e.g. ``pose``.

    Attributes:
        ids: int64 ``(num_objects,)``, positions in ``names``, -1 where the object has no value.
        names: The values' names.
    """

    ids: IndexArray
    names: tuple[str, ...]


def frozen_array(
    values: npt.ArrayLike, dtype: type[np.generic], name: str, row_shape: tuple[int, ...] = ()
) -> npt.NDArray[Any]:
    """Return ``values`` as a read-only, contiguous array; an array that somebody may write to is copied.

    Args:
        values: What to convert.
        dtype: The column's type; integers are not made from other kinds of number.
        name: The column, for messages.
        row_shape: Shape of a row, for an empty list.

    Raises:
        ValueError: If the values are of another kind or do not fit the type.
    """
    given = np.asarray(values)
    if given.size == 0:
        given = np.zeros(given.shape if given.ndim > 1 else (0, *row_shape), dtype=dtype)
    wanted = np.dtype(dtype)
    if given.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[wanted.kind]:
        raise ValueError(f"{name} of type {given.dtype} must be {wanted}; convert it first")
    with np.errstate(over="ignore"):
        column = np.ascontiguousarray(given, dtype=wanted)
    if wanted.kind in "iu" and not np.array_equal(column, given):
        raise ValueError(f"{name} has values that do not fit {wanted}")
    if column.flags.writeable:
        column = column.copy() if np.may_share_memory(column, given) else column
        column.flags.writeable = False
    return column


def check_offsets(offsets: IndexArray, *, total: int, what: str) -> None:
    """Raise ValueError unless ``offsets`` starts at 0, never falls, and ends at ``total``."""
    falls = bool((offsets[1:] < offsets[:-1]).any())
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != total or falls:
        raise ValueError(f"{what} must start at 0, never fall, and end at {total}; got {offsets}")


def offsets_of(*lengths: npt.ArrayLike) -> IndexArray:
    """Return int64 ``(n + 1,)`` offsets of rows of the given lengths, one array of lengths after the other."""
    return np.concatenate([np.zeros(1, np.int64), *(np.asarray(each, np.int64) for each in lengths)]).cumsum()


def joined_offsets(columns: Iterable[IndexArray]) -> IndexArray:
    """Return the offsets of rows put end to end."""
    return offsets_of(*map(np.diff, columns))


def gather_ragged(offsets: IndexArray, rows: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the positions of the elements of ``rows``, and the offsets of the gathered result."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    gathered = offsets_of(lengths)
    positions = np.arange(gathered[-1], dtype=np.int64) + np.repeat(starts - gathered[:-1], lengths)
    return positions, gathered
