"""The table that every annotation format is read into: images, their objects, the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.derived import Lineage, checked_rows, parts_of_images, parts_of_objects
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.table_columns import TableColumns
from lit_loader.annotations.table_file import Attribute, TableParts, parts_from_file, parts_to_file
from lit_loader.types import IndexArray

__all__ = ["AnnotationTable", "Attribute"]


class AnnotationTable(TableColumns):
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
        interocular: The two keypoint positions whose distance an error is divided by, or None.
        attributes: Further named values per object.
        split: Name of the split, or None.
        report: What the reader found wrong.

    Raises:
        ValueError: If columns contradict each other; names the column.
        UnsafePathError: If an image path is absolute or leaves the root.

    Runs in: main and worker processes; shared between threads freely. Owns nothing that must be closed.

    Pickling: a table that came from a cache file travels as that file's name, the images or objects taken
    from it and the names of its classes, and is mapped again on the other side; any other table travels as
    its arrays.
    """

    _lineage: Lineage | None = None  # set by those who know where the rows come from

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

    @property
    def keypoint_schema(self) -> KeypointSchema | None:
        """What the keypoints are; None without keypoints."""
        if self.keypoints is None:
            return None
        return KeypointSchema(
            names=self.keypoint_names, flip_pairs=self.flip_pairs, interocular=self.interocular
        )

    def labels_of(self, by: str | None = None) -> tuple[IndexArray, tuple[str, ...]]:
        """Return a label for each object, and the labels' names.

        Args:
            by: None for the classes, or the name of an attribute.

        Returns:
            int64 ``(num_objects,)`` positions in the names, -1 where an object has no value; the names.

        Raises:
            ValueError: If there is no such attribute.
        """
        if by is None:
            return self.labels, self.class_names
        if by not in self.attributes:
            raise ValueError(f"by={by!r} is no attribute of the table; it has {sorted(self.attributes)}")
        return self.attributes[by].ids, self.attributes[by].names

    def class_counts(self) -> IndexArray:
        """Return the number of objects of each class, int64 ``(num_classes,)``."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def image_class_counts(self) -> IndexArray:
        """Return the number of objects of each class in each image, int64 ``(num_images, num_classes)``."""
        return self.image_label_counts()

    def image_label_counts(self, by: str | None = None) -> IndexArray:
        """Return the number of objects of each label in each image, int64 ``(num_images, num_names)``.

        Args:
            by: As `labels_of` takes it; objects without a value are not counted.
        """
        ids, names = self.labels_of(by)
        has_value = ids >= 0
        cells = (self.image_of_object() * len(names) + ids)[has_value]
        counts = np.bincount(cells, minlength=self.num_images * len(names)).astype(np.int64)
        return counts.reshape(self.num_images, len(names))

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
        rows = checked_rows(indices, limit=self.num_images, what="images")
        return self._derive(
            parts_of_images(self._parts(), rows), self._lineage and self._lineage.of_images(rows)
        )

    def per_object(self, rows: npt.ArrayLike | None = None) -> AnnotationTable:
        """Return a table whose samples are objects: each "image" holds exactly one object.

        Paths, ids and sizes of an image are repeated for each of its objects, so whatever weighs, draws or
        counts images does so for objects.

        Args:
            rows: Integers ``(n,)`` in ``[0, num_objects)``, in the order wanted; default: every object.

        Raises:
            TypeError: If ``rows`` are not integers.
            IndexError: If a row is outside the table.
        """
        given = None if rows is None else checked_rows(rows, limit=self.num_objects, what="objects")
        every = np.arange(self.num_objects, dtype=np.int64)
        return self._derive(
            parts_of_objects(self._parts(), every if given is None else given),
            self._lineage and self._lineage.of_objects(given),
        )

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
        return self._derive(parts, self._lineage)

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
        return table._come_from(Lineage(path=str(path), key=key, offsets=table.offsets))

    @staticmethod
    def _derive(parts: TableParts, lineage: Lineage | None) -> AnnotationTable:
        return AnnotationTable(**parts)._come_from(lineage)

    def _come_from(self, lineage: Lineage | None) -> AnnotationTable:
        object.__setattr__(self, "_lineage", lineage)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._lineage is not None:
            come = self._lineage
            return _reopen, (come.path, come.key, come.rows, come.by_object, self.class_names)
        parts = self._parts()
        parts["attributes"] = dict(self.attributes)
        return _rebuild, (parts,)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        sizes = f"{self.num_images} images, {self.num_objects} objects, {self.num_classes} classes"
        return f"AnnotationTable({str(self.root)!r}{split}, {sizes})"


def _rebuild(parts: TableParts) -> AnnotationTable:
    return AnnotationTable(**parts)


def _reopen(
    path: str, key: str, rows: IndexArray | None, by_object: bool, class_names: tuple[str, ...]
) -> AnnotationTable:
    table = AnnotationTable.load(Path(path), key=key).with_class_names(class_names)
    if by_object:
        return table.per_object(rows)
    return table if rows is None else table.select(rows)
