"""A column of strings as two numpy arrays: no Python object per row, so nothing to copy after a fork."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["TextColumn"]


class TextColumn(Sequence[str]):
    """Strings stored end to end as UTF-8 (file names that are not UTF-8 survive unchanged).

    Args:
        offsets: int64 ``(num_rows + 1,)``, from 0, not falling, ending at ``len(data)``.
        data: uint8 ``(num_bytes,)``.

    Raises:
        ValueError: If offsets and data do not belong together.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        if offsets.dtype != np.int64 or data.dtype != np.uint8 or offsets.ndim != 1 or data.ndim != 1:
            raise ValueError(f"offsets {offsets.dtype} and data {data.dtype} must be int64 and uint8 vectors")
        check_offsets(offsets, total=len(data), what="text offsets")
        self.offsets, self.data = offsets.view(), data.view()
        self.offsets.flags.writeable = self.data.flags.writeable = False

    def __reduce__(self) -> tuple[Any, ...]:
        return TextColumn, (self.offsets, self.data)

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> TextColumn:
        """Build a column from strings."""
        encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    @classmethod
    def joined(cls, columns: Sequence[TextColumn]) -> TextColumn:
        """Return the rows of all columns, one column after the other."""
        lengths = [np.diff(column.offsets) for column in columns]
        offsets = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]), dtype=np.int64)
        none = np.zeros(0, dtype=np.uint8)
        return cls(offsets, np.concatenate([none, *(column.data for column in columns)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is outside a column of {len(self)} rows")
        row %= len(self)
        start, stop = self.offsets[row], self.offsets[row + 1]
        return self.data[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: npt.NDArray[np.int64]) -> TextColumn:
        """Return the column of the given rows, in their order."""
        positions, offsets = gather_ragged(self.offsets, rows)
        return TextColumn(offsets, self.data[positions])


def check_offsets(offsets: npt.NDArray[np.int64], *, total: int, what: str) -> None:
    """Raise ValueError unless ``offsets`` starts at 0, never falls, and ends at ``total``."""
    falls = bool((offsets[1:] < offsets[:-1]).any())
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != total or falls:
        raise ValueError(f"{what} must start at 0, never fall, and end at {total}; got {offsets}")


def gather_ragged(
    offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions of the elements of ``rows``, and the offsets of the gathered result."""
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    gathered = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=gathered[1:])
    positions = np.arange(gathered[-1], dtype=np.int64) + np.repeat(starts - gathered[:-1], lengths)
    return positions, gathered
