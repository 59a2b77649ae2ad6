"""The table that every annotation format is read into: images, their objects, the names of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import ReadReport
from lit_loader.annotations.table_checks import check_columns, frozen_array
from lit_loader.annotations.table_file import Attribute, TableParts, parts_from_file, parts_to_file
from lit_loader.annotations.text_column import TextColumn, gather_ragged
from lit_loader.types import IndexArray

__all__ = ["AnnotationTable", "Attribute"]


class AnnotationTable:
    """Images and objects of a data set as immutable columns.

    Every array is read-only (``torch.tensor`` copies one; ``torch.from_numpy`` warns about it). Objects
    of image ``i`` are the rows ``offsets[i]:offsets[i + 1]`` of every per-object column.

    Args:
        root: The data set's folder; made absolute.
        image_paths: One path an image, relative to ``root``, with ``/`` between its parts.
        image_ids: The id by which the annotations call each image (its stem or relative name); default:
            ``image_paths``.
        class_names: Class id = position; the background is not among them.
        widths: int32 ``(num_images,)`` pixels as the annotations say; 0 = unknown; default: all 0.
        heights: As ``widths``.
        offsets: int64 ``(num_images + 1,)``.
        boxes: float32 ``(num_objects, 4)``, xyxy, pixels, finite.
        labels: int64 ``(num_objects,)``, class ids from 0.
        difficult: bool ``(num_objects,)``; default: all False.
        truncated: As ``difficult``.
        occluded: As ``difficult``.
        crowd: As ``difficult``.
        keypoints: float32 ``(num_objects, K, 2)`` pixels, finite, or None.
        visibility: uint8 ``(num_objects, K)``: 0 absent, 1 hidden, 2 visible; goes with ``keypoints``.
        keypoint_names: K names; goes with ``keypoints``.
        flip_pairs: Pairs of keypoint positions that change places when an image is mirrored.
        attributes: Further named values per object.
        split: Name of the split, or None.
        report: What the reader found wrong.

    Raises:
        ValueError: If columns contradict each other; names the column.
        UnsafePathError: If an image path is absolute or leaves the root.

    Runs in: main and worker processes; shared between threads freely. Owns nothing that must be closed.

    Pickling: a table that came from a cache file travels as that file's name, the rows selected from it
    and the names of its classes, and is mapped again on the other side; any other table travels as its arrays.
    """

    def __init__(
        self,
        *,
        root: Path | str,
        image_paths: Sequence[str],
        class_names: Sequence[str],
        offsets: npt.ArrayLike,
        boxes: npt.ArrayLike,
        labels: npt.ArrayLike,
        image_ids: Sequence[str] | None = None,
        widths: npt.ArrayLike | None = None,
        heights: npt.ArrayLike | None = None,
        difficult: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        occluded: npt.ArrayLike | None = None,
        crowd: npt.ArrayLike | None = None,
        keypoints: npt.ArrayLike | None = None,
        visibility: npt.ArrayLike | None = None,
        keypoint_names: Sequence[str] = (),
        flip_pairs: Sequence[tuple[int, int]] = (),
        attributes: Mapping[str, Attribute] | None = None,
        split: str | None = None,
        report: ReadReport | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        self.class_names = tuple(class_names)
        self.keypoint_names = tuple(keypoint_names)
        self.flip_pairs = tuple((int(a), int(b)) for a, b in flip_pairs)
        self.split = split
        self.report = ReadReport() if report is None else report
        self.image_paths = _text(image_paths)
        self.image_ids = self.image_paths if image_ids is None else _text(image_ids)
        self.offsets: IndexArray = frozen_array(offsets, np.int64, name="offsets")
        self.boxes: npt.NDArray[np.float32] = frozen_array(
            boxes, np.float32, name="boxes", empty_shape=(0, 4)
        )
        self.labels: IndexArray = frozen_array(labels, np.int64, name="labels")
        images, objects = len(self.image_paths), len(self.labels)
        self.widths: npt.NDArray[np.int32] = frozen_array(widths, np.int32, name="widths", rows=images)
        self.heights: npt.NDArray[np.int32] = frozen_array(heights, np.int32, name="heights", rows=images)
        self.difficult = _flags(difficult, name="difficult", rows=objects)
        self.truncated = _flags(truncated, name="truncated", rows=objects)
        self.occluded = _flags(occluded, name="occluded", rows=objects)
        self.crowd = _flags(crowd, name="crowd", rows=objects)
        self.keypoints: npt.NDArray[np.float32] | None = (
            None if keypoints is None else frozen_array(keypoints, np.float32, name="keypoints")
        )
        self.visibility: npt.NDArray[np.uint8] | None = (
            None if visibility is None else frozen_array(visibility, np.uint8, name="visibility")
        )
        self.attributes: Mapping[str, Attribute] = MappingProxyType(
            {
                name: Attribute(ids=frozen_array(a.ids, np.int64, name=name), names=tuple(a.names))
                for name, a in (attributes or {}).items()
            }
        )
        self._source: tuple[str, str] | None = None
        self._selected: IndexArray | None = None
        check_columns(self._parts())
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_sealed", False):
            raise AttributeError(f"AnnotationTable is immutable ({name!r}); build another one")
        super().__setattr__(name, value)

    @property
    def num_images(self) -> int:
        """Number of images."""
        return len(self.image_paths)

    @property
    def num_objects(self) -> int:
        """Number of objects."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes, those without objects included."""
        return len(self.class_names)

    def image_path(self, index: int) -> Path:
        """Return the absolute path of an image."""
        return self.root / self.image_paths[index]

    def image_id(self, index: int) -> str:
        """Return the id by which the annotations call an image."""
        return self.image_ids[index]

    def objects(self, index: int) -> slice:
        """Return the rows of an image's objects."""
        if not -self.num_images <= index < self.num_images:
            raise IndexError(f"image {index} is outside a table of {self.num_images} images")
        index %= self.num_images
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def class_counts(self) -> IndexArray:
        """Return the number of objects of each class, int64 ``(num_classes,)``."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def image_class_counts(self) -> IndexArray:
        """Return the number of objects of each class in each image, int64 ``(num_images, num_classes)``."""
        shape = (self.num_images, self.num_classes)
        cells = self.image_of_object() * self.num_classes + self.labels
        return np.bincount(cells, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)

    def image_of_object(self) -> IndexArray:
        """Return the image that each object lies in, int64 ``(num_objects,)``."""
        return np.repeat(np.arange(self.num_images, dtype=np.int64), np.diff(self.offsets))

    def select(self, indices: npt.ArrayLike) -> AnnotationTable:
        """Return the table of the given images, in their order; repeated ones are repeated.

        Args:
            indices: Integers ``(n,)`` in ``[0, num_images)``. For a mask pass ``numpy.flatnonzero(mask)``.

        Raises:
            TypeError: If ``indices`` are not integers.
            IndexError: If an index is outside the table.
        """
        given = np.asarray(indices)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(
                f"indices are {given.dtype}, not integers; for a mask pass numpy.flatnonzero(mask)"
            )
        if given.ndim != 1:
            raise TypeError(f"indices of shape {given.shape} must be a vector")
        rows = given.astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.num_images):
            raise IndexError(
                f"indices {rows.min()}..{rows.max()} leave the table of {self.num_images} images"
            )
        positions, offsets = gather_ragged(self.offsets, rows)
        parts = self._parts()
        for name in ("image_paths", "image_ids"):
            parts[name] = parts[name].take(rows)
        for name in ("widths", "heights"):
            parts[name] = parts[name][rows]
        for name in _PER_OBJECT:
            parts[name] = None if parts[name] is None else parts[name][positions]
        parts["offsets"] = offsets
        parts["attributes"] = {
            name: Attribute(ids=a.ids[positions], names=a.names) for name, a in self.attributes.items()
        }
        table = AnnotationTable(**parts)
        selected = rows if self._selected is None else self._selected[rows]
        table._remember(self._source, selected)
        return table

    def with_class_names(self, class_names: Sequence[str]) -> AnnotationTable:
        """Return the table with its classes numbered as in ``class_names``, itself if they are already.

        Args:
            class_names: Every class of the table, and others if need be.

        Raises:
            ValueError: If a class of the table is missing.
        """
        names = tuple(class_names)
        if names == self.class_names:
            return self
        places = {name: place for place, name in enumerate(names)}
        missing = sorted(set(self.class_names) - places.keys())
        if missing:
            raise ValueError(f"class_names={names} lack {missing} of the table; name them too")
        lookup = np.array([places[name] for name in self.class_names], dtype=np.int64)
        parts = self._parts() | {"class_names": names, "labels": lookup[self.labels]}
        table = AnnotationTable(**parts)
        table._remember(self._source, self._selected)
        return table

    def save(self, path: Path, *, key: str) -> None:
        """Write the table to a file that ``load`` maps; ``key`` says what it was made from."""
        parts_to_file(path, self._parts(), key=key)

    @classmethod
    def load(cls, path: Path, *, key: str) -> AnnotationTable:
        """Map a table that ``save`` wrote; nothing in the file is trusted.

        Raises:
            CacheError: If there is no such file, it is damaged, or it was made under another key.
        """
        table = parts_from_file(path, build=cls, key=key)
        table._remember((str(path), key), None)
        return table

    def _remember(self, source: tuple[str, str] | None, selected: IndexArray | None) -> None:
        object.__setattr__(self, "_source", source)
        object.__setattr__(self, "_selected", selected if source is not None else None)

    def _parts(self) -> TableParts:
        """Return the arguments that build this table again."""
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source is not None:
            return _reopen, (*self._source, self._selected, self.class_names)
        parts = self._parts()
        parts["attributes"] = dict(self.attributes)
        return _rebuild, (parts,)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        sizes = f"{self.num_images} images, {self.num_objects} objects, {self.num_classes} classes"
        return f"AnnotationTable({str(self.root)!r}{split}, {sizes})"


_PER_OBJECT = ("boxes", "labels", "difficult", "truncated", "occluded", "crowd", "keypoints", "visibility")
_ARGUMENTS = (
    *("root", "image_paths", "image_ids", "class_names", "widths", "heights", "offsets", *_PER_OBJECT),
    *("keypoint_names", "flip_pairs", "attributes", "split", "report"),
)


def _text(strings: Sequence[str]) -> TextColumn:
    return strings if isinstance(strings, TextColumn) else TextColumn.from_strings(strings)


def _flags(values: npt.ArrayLike | None, *, name: str, rows: int) -> npt.NDArray[np.bool_]:
    return frozen_array(values, np.bool_, name=name, rows=rows)


def _rebuild(parts: TableParts) -> AnnotationTable:
    return AnnotationTable(**parts)


def _reopen(
    path: str, key: str, selected: IndexArray | None, class_names: tuple[str, ...]
) -> AnnotationTable:
    table = AnnotationTable.load(Path(path), key=key).with_class_names(class_names)
    return table if selected is None else table.select(selected)
