"""Places in annotation files, for messages that name the file and the line of an image or object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import RaggedColumn, TextColumn
from lit_loader.types import IndexArray

__all__ = ["DEFAULT_LISTS", "Place", "Places"]

DEFAULT_LISTS: Final[tuple[str, str]] = ("images", "objects")
"""Names of the lists of images and of objects in files whose reader gives no other names."""

_SEPARATOR: Final = "\0"  # no file name contains a NUL


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of an image or object in an annotation file.

    Attributes:
        file: The annotation file, relative to the root of the data set.
        line: Line in the file, from 1, or None in a file without known lines.
        entry: Position in a list of a JSON file, such as ``annotations[17]``, or None.
    """

    file: str
    line: int | None = None
    entry: str | None = None

    def __str__(self) -> str:
        text = self.file if self.line is None else f"{self.file}:{self.line}"
        return text if self.entry is None else f"{text} {self.entry}"


class Places(RaggedColumn):
    """Column with the place of each image or object in 8 bytes, apart from the names of the files.

    Args:
        source_offsets: int64 ``(num_sources + 1,)``; source i is the text ``sources[source_offsets[i]:...[i + 1]]``.
        sources: uint8 ``(num_bytes,)``, for each file its name, which may be followed by the names of its lists of
            images and of objects, each after a NUL.
        numbers: int32 ``(N,)``, source of each row. -1 means no source for an image, and the source of its image for
            an object.
        positions: int32 ``(N,)``, line from 1, or ``-1 - i`` for entry i of a list, or 0 for the whole file.

    Attributes:
        source_texts: The sources as a text column.

    Raises:
        ValueError: If the arrays are inconsistent.
    """

    ARRAYS = {  # noqa: RUF012 # never changed
        "source_offsets": np.int64,
        "sources": np.uint8,
        "numbers": np.int32,
        "positions": np.int32,
    }
    source_offsets: IndexArray
    sources: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]

    def _check(self) -> None:
        self.source_texts = TextColumn(self.source_offsets, self.sources)
        if len(self.numbers) != len(self.positions):
            raise ValueError(f"places have {len(self.numbers)} numbers and {len(self.positions)} positions")
        if len(self.numbers) and not -1 <= self.numbers.min() <= self.numbers.max() < len(self.source_texts):
            span = f"{self.numbers.min()}..{self.numbers.max()}"
            raise ValueError(f"numbers {span} of places are outside the {len(self.source_texts)} sources")

    @classmethod
    def from_files(
        cls,
        files: Sequence[str],
        numbers: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        *,
        lists: tuple[str, str] = DEFAULT_LISTS,
    ) -> Self:
        """Build a column from the names of annotation files.

        Args:
            files: Names of files; those without rows are left out.
            numbers: int32 ``(N,)``, position in ``files`` of the file of each row, or -1.
            positions: int32 ``(N,)``, as in the class.
            lists: Names of the lists of images and of objects in each file.
        """
        ending = "" if lists == DEFAULT_LISTS else _SEPARATOR.join(["", *lists])
        used, numbers = _used_sources(len(files), numbers)
        texts = TextColumn.from_rows(files[number] + ending for number in used.tolist())
        return cls(texts.offsets, texts.data, numbers, positions)

    @classmethod
    def from_rows(cls, rows: Iterable[Place | None]) -> Self:
        """Build a column from the place of each row.

        Raises:
            ValueError: If an ``entry`` is not of the form ``name[number]``.
        """
        number_by_source: dict[str, int] = {}
        numbers = []
        positions = []
        for place in rows:
            source, position = ("", 0) if place is None else _encoded(place)
            numbers.append(number_by_source.setdefault(source, len(number_by_source)) if source else -1)
            positions.append(position)
        texts = TextColumn.from_rows(number_by_source)
        return cls(texts.offsets, texts.data, np.array(numbers, np.int32), np.array(positions, np.int32))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: IndexArray) -> Self:
        """Return a column of some rows, in the order of ``rows``."""
        used, numbers = _used_sources(len(self.source_texts), self.numbers[rows])
        # A few rows do not carry the names of all files.
        texts = self.source_texts if len(used) == len(self.source_texts) else self.source_texts.take(used)
        return type(self)(texts.offsets, texts.data, numbers, self.positions[rows])

    @classmethod
    def joined(cls, columns: Sequence[Self]) -> Self:
        """Concatenate columns; a file that several of them name occurs several times."""
        texts = TextColumn.joined([column.source_texts for column in columns])
        numbers = []
        num_sources = 0
        for column in columns:
            numbers.append(np.where(column.numbers < 0, column.numbers, column.numbers + np.int32(num_sources)))
            num_sources += len(column.source_texts)
        positions = [column.positions for column in columns]
        empty = np.zeros(0, np.int32)
        return cls(texts.offsets, texts.data, np.concatenate([empty, *numbers]), np.concatenate([empty, *positions]))

    def source(self, row: int) -> str | None:
        """Return the source of a row, or None without one."""
        number = int(self.numbers[row])
        return None if number < 0 else self.source_texts[number]

    def place(self, row: int, kind: Literal["image", "object"], *, default_source: str | None = None) -> Place | None:
        """Return the place of a row, or None if it is unknown.

        Args:
            row: The row.
            kind: Kind of the column's rows.
            default_source: Source of a row without one of its own.
        """
        source = self.source(row) or default_source
        if source is None:
            return None
        file, *lists = source.split(_SEPARATOR)
        position = int(self.positions[row])
        if position >= 0:
            return Place(file=file, line=position or None)
        list_name = (lists or DEFAULT_LISTS)[0 if kind == "image" else -1]
        return Place(file=file, entry=f"{list_name}[{-1 - position}]")


def _used_sources(num_sources: int, numbers: npt.NDArray[np.int32]) -> tuple[IndexArray, npt.NDArray[np.int32]]:
    """Return the sources that occur, and the numbers that the rows have among them."""
    is_used = np.zeros(num_sources + 1, np.bool_)
    is_used[numbers] = True
    # Number -1 selects the last entry, which belongs to no source.
    used = np.flatnonzero(is_used[:-1])
    new_numbers = np.full(num_sources + 1, -1, np.int32)
    new_numbers[used] = np.arange(len(used))
    return used, new_numbers[numbers]


def _encoded(place: Place) -> tuple[str, int]:
    """Return the source and position of a place."""
    if place.entry is None:
        return place.file, place.line or 0
    list_name, _, number = place.entry.removesuffix("]").partition("[")
    if not number.isdecimal():
        raise ValueError(f"expected the entry of a place as 'name[number]', got {place.entry!r}")
    return _SEPARATOR.join([place.file, list_name]), -1 - int(number)
