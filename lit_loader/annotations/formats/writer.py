"""Writers: an `AnnotationTable` as the files of one format, with a list of what the format cannot hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from lit_loader.annotations.formats.parallel import iter_chunks
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.foundation.files import new_file

__all__ = ["Writer", "in_chunks", "lost", "write_file"]

_FLAGS: Final = ("difficult", "truncated", "occluded", "crowd")
_Item = TypeVar("_Item")
_Part = TypeVar("_Part")


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
            ValueError: If there is such a thing, other than ids, and ``allow_loss`` is False.
        """
        losses = self.losses(table)
        lost_ids = lost(table, "ids")  # new ids do as well
        refused = [loss for loss in losses if loss not in lost_ids]
        if refused and not allow_loss:
            rule = f"refuses losses, and format {self.format!r} cannot hold {'; '.join(refused)}"
            raise SettingError("allow_loss", False, rule, settings={"allow_loss": True})
        self.write(table, Path(root), name, progress=progress)
        return losses


def in_chunks(
    write: Callable[[Sequence[_Item]], _Part], items: Sequence[_Item], *, progress: bool
) -> Iterator[_Part]:
    """Yield what ``write`` returns for each part of the items, with a progress bar on a terminal if asked for."""
    return iter_chunks(write, items, num_workers=0, progress=progress, description="Writing annotations")


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that is complete or not there: beside its place, and then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, mode=0o666) as file:
        file.writelines(parts)


def lost(table: AnnotationTable, *kinds: str) -> list[str]:
    """Return what a format does not hold of a table, in words, each with its count.

    Args:
        table: The table.
        kinds: What the format has no place for: ``"masks"``; ``"numbers"``, which are ids and areas; ``"ids"`` alone;
            ``"places"`` of absent points; ``"sizes"`` of which one side is known; ``"files"`` of several images;
            ``"flags"``.
    """
    masks, points, absent = table.masks, table.keypoints, table.visibility == 0
    parts = () if masks is None else np.diff(masks.part_offsets) + np.diff(masks.run_offsets)
    ids = {"images": table.source_ids, "classes": table.category_ids, "objects": table.object_ids}
    counts: dict[str, dict[str, Any]] = {
        "masks": {"masks": np.count_nonzero(parts)},
        "ids": {f"ids of {what}": (each >= 0).sum() for what, each in ids.items() if each is not None},
        "places": {"absent points with a place": 0 if points is None else points[absent].any(axis=-1).sum()},
        "sizes": {"widths or heights without the other": ((table.widths == 0) != (table.heights == 0)).sum()},
        "files": {"images that have the same file as another": len(table) - len(set(table.image_paths))},
        "flags": {f"{flag} objects": getattr(table, flag).sum() for flag in _FLAGS},
    }
    counts["numbers"] = dict(counts["ids"])
    if table.areas is not None:
        counts["numbers"]["areas of objects"] = np.isfinite(table.areas).sum()
    return [f"{count} {what}" for kind in kinds for what, count in counts[kind].items() if count]
