"""Writers: an `AnnotationTable` as the files of one format, with a list of what the format cannot hold."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lit_loader.annotations.table import AnnotationTable

__all__ = ["Writer", "absent_places", "lost_masks", "lost_numbers", "write_file"]


@dataclass(frozen=True, kw_only=True)
class Writer(ABC):
    """Writes one format. The fields of a subclass, a frozen dataclass with keywords only, are the format's options.

    A subclass is made known as a `Reader` is.

    Attributes:
        format: The format's name.
        description: One line, for ``--help``; it explains NAME.
        name_of_split: The name under which ``lit-loader convert`` writes a split, with ``{}`` for the split.
    """

    format: ClassVar[str]
    description: ClassVar[str]
    name_of_split: ClassVar[str]

    @abstractmethod
    def losses(self, table: AnnotationTable) -> list[str]:
        """Return what the format cannot hold of a table, in words, such as "3 images without objects"."""

    @abstractmethod
    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a table.

        Args:
            table: The table.
            root: The folder to write below.
            name: What to write, as the format takes it.
            progress: Whether to draw a progress bar on a terminal.
        """

    def write_table(
        self,
        table: AnnotationTable,
        root: Path | str,
        name: str,
        *,
        allow_loss: bool = False,
        progress: bool = True,
    ) -> list[str]:
        """Write a table and return what the format could not hold.

        Raises:
            ValueError: If there is such a thing and ``allow_loss`` is False.
        """
        lost = self.losses(table)
        if lost and not allow_loss:
            raise ValueError(
                f"format {self.format!r} cannot hold {'; '.join(lost)}; pass allow_loss=True to write without"
            )
        self.write(table, Path(root), name, progress=progress)
        return lost


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that is complete or not there: beside its place, and then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.writelines(parts)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def absent_places(table: AnnotationTable) -> int:
    """Return how many absent points of a table have places, which no format keeps."""
    if table.keypoints is None or table.visibility is None:
        return 0
    return int((table.keypoints[table.visibility == 0] != 0).any(axis=-1).sum())


def lost_masks(table: AnnotationTable) -> list[str]:
    """Return what a format without masks does not hold of a table, in words."""
    masks = table.masks
    count = 0 if masks is None else np.count_nonzero(np.diff(masks.part_offsets) + np.diff(masks.run_offsets))
    return [f"{count} masks"] if count else []


def lost_numbers(table: AnnotationTable) -> list[str]:
    """Return what a format without ids and areas does not hold of a table, in words."""
    ids = {"images": table.source_ids, "classes": table.category_ids, "objects": table.object_ids}
    found = {f"ids of {what}": (given >= 0).sum() for what, given in ids.items() if given is not None}
    if table.areas is not None:
        found["areas of objects"] = np.isfinite(table.areas).sum()
    return [f"{count} {what}" for what, count in found.items() if count]
