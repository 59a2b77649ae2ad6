"""Write an `AnnotationTable` as the files of one format, and describe the values that the format cannot hold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.parallel import iter_chunks
from lit_loader.annotations.formats.rows import FLAG_BITS
from lit_loader.annotations.quadrangles import enclosing_boxes, has_numbers, rotated_corners, signed_areas
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import SettingError
from lit_loader.foundation.files import new_file

__all__ = ["Writer", "corner_losses", "in_chunks", "lost", "number_text", "outline_areas", "write_file"]

_Item = TypeVar("_Item")
_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Writer(ABC):
    """Writer of one format; the fields of a subclass, a frozen keyword-only dataclass, are the format's options.

    A subclass is registered in the same way as a `Reader`.

    Attributes:
        format: The format's name.
        description: One line for ``--help`` that explains NAME.
        name_of_split: Name under which ``lit-loader convert`` writes a split, with ``{}`` for the split.
    """

    format: ClassVar[str]
    description: ClassVar[str]
    name_of_split: ClassVar[str]

    @abstractmethod
    def losses(self, table: AnnotationTable) -> list[str]:
        """Return descriptions of the values that the format cannot hold, such as "3 images without objects"."""

    @abstractmethod
    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a table.

        Args:
            table: The table.
            root: Folder to write to.
            name: Target, depending on the format.
            progress: Whether to draw a progress bar on a terminal.
        """

    def write_table(
        self, table: AnnotationTable, root: Path | str, name: str, *, allow_loss: bool = False, progress: bool = True
    ) -> list[str]:
        """Write a table and return descriptions of the values that the format could not hold.

        Raises:
            ValueError: If the format cannot hold values other than ids and ``allow_loss`` is False, or the table
                describes regions of images.
        """
        # Files describe whole images, so boxes of a region would be read at other places.
        if table.regions is not None and table.regions.any():
            raise ValueError(f"{table!r} describes regions of images; write the table of whole images that it is from")
        losses = self.losses(table)
        # Ids may be lost silently, because a reader numbers images and objects anew.
        lost_ids = lost(table, "ids")
        refused = "; ".join(loss for loss in losses if loss not in lost_ids)
        if refused and not allow_loss:
            rule = f"refuses losses, and format {self.format!r} cannot hold {refused}"
            raise SettingError("allow_loss", False, rule, settings={"allow_loss": True})
        self.write(table, Path(root), name, progress=progress)
        return losses


def in_chunks(write: Callable[[Sequence[_Item]], _Part], items: Sequence[_Item], *, progress: bool) -> Iterator[_Part]:
    """Yield the result of ``write`` for each chunk of the items, with a progress bar on a terminal if ``progress``."""
    return iter_chunks(write, items, num_workers=0, progress=progress, description="Writing annotations")


def write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary name first, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # 0o666 is reduced by the umask, as for any file that the user writes; temporary files have 0o600.
    with new_file(path, mode=0o666) as file:
        file.writelines(parts)


def corner_losses(table: AnnotationTable) -> dict[str, int]:
    """Count the losses of a format that stores four corners for each object and no box."""
    around = enclosing_boxes(table.oriented_corners())
    num_rotated = 0
    if table.rotated_boxes is not None:
        is_rotated = has_numbers(table.rotated_boxes)
        num_rotated = int(is_rotated.sum())
        # Readers compute the box from float64 corners, so float32 ones would differ in the last digit.
        around[is_rotated] = enclosing_boxes(rotated_corners(table.rotated_boxes[is_rotated])).astype(np.float32)
    return {
        "axis-aligned boxes, which become corners": int((~table.has_orientation()).sum()),
        "rotated boxes, which become corners": num_rotated,
        "boxes that are not around their corners": int((around != table.boxes).any(axis=1).sum()),
    }


def outline_areas(table: AnnotationTable) -> npt.NDArray[np.float64]:
    """Return the area of each object's oriented box, or else of its box, in square pixels, ``(num_objects,)``."""
    # In float64 the width and the height are exact.
    sides = table.boxes[:, 2:].astype(np.float64) - table.boxes[:, :2]
    areas: npt.NDArray[np.float64] = sides.prod(axis=1)
    oriented_rows = np.flatnonzero(table.has_orientation())
    areas[oriented_rows] = np.abs(signed_areas(table.oriented_corners(oriented_rows)))
    return areas


def number_text(number: np.floating) -> str:
    """Return the fewest digits that restore the number's bits, without a fraction for a whole number."""
    value = float(number)
    # str() of an int would lose the sign of -0.0.
    if value.is_integer() and abs(value) < 2**53 and (value != 0 or math.copysign(1, value) > 0):
        return str(int(value))
    return str(number)


def lost(table: AnnotationTable, *kinds: str) -> list[str]:
    """Return descriptions, with counts, of the values that a format cannot hold.

    Args:
        table: The table.
        kinds: Kinds of values that the format has no place for: ``"masks"``; ``"numbers"``, ids and areas, except for
            areas that `outline_areas` computes; ``"ids"``; ``"oriented"``, oriented boxes; ``"places"``, coordinates of
            absent points; ``"sizes"`` with one side known; ``"files"``, several images of one file; ``"flags"``.
    """
    # Formats write zeros for an absent point.
    absent_points = 0
    if table.keypoints is not None:
        absent_points = int(table.keypoints[table.visibility == 0].any(axis=-1).sum())
    num_masks = 0
    if table.masks is not None:
        parts = np.diff(table.masks.part_offsets) + np.diff(table.masks.run_offsets)
        # A mask has either polygons or run lengths; objects without a mask have neither.
        num_masks = int(np.count_nonzero(parts))
    # -1 is a row without an id.
    ids = {"images": table.source_ids, "classes": table.category_ids, "objects": table.object_ids}
    counts: dict[str, dict[str, Any]] = {
        "masks": {"masks": num_masks},
        "ids": {f"ids of {rows}": (column >= 0).sum() for rows, column in ids.items() if column is not None},
        "oriented": {"oriented boxes": table.has_orientation().sum()},
        "places": {"absent points with a place": absent_points},
        "sizes": {"widths or heights without the other": ((table.widths == 0) != (table.heights == 0)).sum()},
        "files": {"images that have the same file as another": len(table) - len(set(table.image_paths))},
        "flags": {f"{flag} objects": getattr(table, flag).sum() for flag in FLAG_BITS},
    }
    # Areas belong to ids in formats that have no place for numbers at all.
    counts["numbers"] = dict(counts["ids"])
    if table.areas is not None:
        with np.errstate(over="ignore"):
            computed_areas = outline_areas(table).astype(np.float32)
        # COCO files have an area for every object, and for most of them it only repeats the box.
        is_lost = np.isfinite(table.areas) & (table.areas != computed_areas)
        counts["numbers"]["areas of objects"] = is_lost.sum()
    return [f"{count} {name}" for kind in kinds for name, count in counts[kind].items() if count]
