"""Places in annotation files, for messages that name the file and the line of an image or object."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Place"]


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
