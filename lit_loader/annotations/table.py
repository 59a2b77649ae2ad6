"""The table that every annotation format is read into: images, their objects, the names of the classes.

NOTE [Columns are declared once]
    A field made by `_column` is a column of `COLUMNS`: the constructor, the checks, `select`, `per_object`, `save` and
    `load`, the functions of `merge` and the command line's ``convert`` go through these declarations, so that a column
    cannot be forgotten in one of them.

NOTE [A derived table is rows of a file]
    Images may be selected, objects be made samples of their own and classes renumbered in any order and number of
    times. What results is always one of two things: images of the table in the cache file with all of their objects,
    or single objects of it, under some class names. So a derived table is pickled as file, key, row numbers, which of
    the two it is, and classes; other work on rows must keep to that or drop the lineage.
"""

# ruff: noqa: RUF009 # `_column` makes a field

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.columns import (
    Attribute,
    ColumnSpec,
    RaggedColumn,
    TextColumn,
    check_offsets,
    frozen_array,
    gather_ragged,
)
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import Masks
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import ReadReport
from lit_loader.annotations.table_file import read_table, write_table
from lit_loader.errors import CacheError
from lit_loader.types import IndexArray

__all__ = ["AnnotationTable", "Attribute", "COLUMNS"]


_AREA: Final = {"optional": True, "missing": np.nan, "limits": (0, np.finfo(np.float32).max)}
_Points: TypeAlias = npt.NDArray[np.float32]
_Seen: TypeAlias = npt.NDArray[np.uint8]


def _column(
    rows: Literal["images", "objects", "classes"],
    kind: type[np.generic] | type[RaggedColumn],
    *shape: int,
    **spec: Any,
) -> Any:
    """Declare a column; see NOTE [Columns are declared once]."""
    required = {} if "default" not in spec else {"default": spec.pop("default")}
    return field(**required, metadata={"spec": ColumnSpec(rows=rows, kind=kind, shape=shape, **spec)})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AnnotationTable:
    """Images and objects of a data set as immutable columns.

    Every array is read-only (``torch.tensor`` copies one; ``torch.from_numpy`` warns about it). Objects
    of image ``i`` are the rows ``offsets[i]:offsets[i + 1]`` of every per-object column. Columns may be given as
    anything that numpy makes arrays of, strings as any sequence. ``len(table)`` is the number of images.

    Args:
        root: The data set's folder; made absolute.
        image_paths: One path an image, relative to ``root``, with ``/`` between its parts.
        image_ids: The id by which the annotations call each image (its stem or relative name); default:
            ``image_paths``.
        source_ids: int64 ``(num_images,)``, the numbers that the annotation file gives its images (``id`` of COCO's
            images), -1 where it gives none; or None.
        image_stamps: int64 ``(num_images,)``, what `image_stamp` returned for each image that the table depends on, 0
            for others; or None. A cached table is stale if one of them has changed.
        class_names: Class id = position; the background is not among them.
        category_ids: int64 ``(num_classes,)``, the numbers that the file gives its classes, or None.
        widths: int32 ``(num_images,)`` pixels as the annotations have them; 0 = unknown; default: all 0.
        heights: As ``widths``.
        offsets: int64 ``(num_images + 1,)``.
        boxes: float32 ``(num_objects, 4)``, xyxy, pixels, finite.
        labels: int64 ``(num_objects,)``, class ids from 0.
        difficult: bool ``(num_objects,)``; default: all False.
        truncated: As ``difficult``.
        occluded: As ``difficult``.
        crowd: As ``difficult``.
        object_ids: int64 ``(num_objects,)``, the numbers that the file gives its objects (``id`` of COCO's
            annotations), -1 where it gives none; or None.
        areas: float32 ``(num_objects,)``, square pixels as the annotations have them (COCO: of the
            mask), NaN where they do not; or None.
        masks: `Masks` of ``num_objects`` rows, or None.
        keypoints: float32 ``(num_objects, K, 2)`` pixels, finite, or None.
        visibility: uint8 ``(num_objects, K)``: 0 absent, 1 hidden, 2 visible; goes with ``keypoints``.
        keypoint_names: K names; goes with ``keypoints``.
        flip_pairs: Pairs of keypoint positions that change places when an image is mirrored.
        normalization_pair: The two keypoint positions whose distance an error is divided by, or None.
        attributes: Further named values per object.
        split: Name of the split, or None.
        report: What the reader found wrong.

    Raises:
        ValueError: If columns contradict each other; names the column.
        UnsafePathError: If an image path is absolute or leaves the root.

    Runs in: main and worker processes; shared between threads freely. Owns nothing that must be closed.

    Pickling: a table that came from a cache file travels as that file's name, the images or objects taken
    from it and its classes, and is mapped again on the other side; any other table travels as
    its arrays.
    """

    root: Path
    image_paths: Sequence[str] = _column("images", TextColumn)
    image_ids: Sequence[str] = _column("images", TextColumn, default=None)
    source_ids: IndexArray | None = _column("images", np.int64, default=None, optional=True, missing=-1)
    image_stamps: IndexArray | None = _column("images", np.int64, default=None, optional=True, missing=0)
    class_names: tuple[str, ...]
    category_ids: IndexArray | None = _column("classes", np.int64, default=None, optional=True)
    widths: npt.NDArray[np.int32] = _column("images", np.int32, default=None, limits=(0, np.inf))
    heights: npt.NDArray[np.int32] = _column("images", np.int32, default=None, limits=(0, np.inf))
    offsets: IndexArray
    boxes: npt.NDArray[np.float32] = _column("objects", np.float32, 4)
    labels: IndexArray = _column("objects", np.int64)
    difficult: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    truncated: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    occluded: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    crowd: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    object_ids: IndexArray | None = _column("objects", np.int64, default=None, optional=True, missing=-1)
    areas: npt.NDArray[np.float32] | None = _column("objects", np.float32, default=None, **_AREA)
    masks: Masks | None = _column("objects", Masks, default=None, optional=True)
    keypoints: _Points | None = _column("objects", np.float32, -1, 2, default=None, optional=True)
    visibility: _Seen | None = _column("objects", np.uint8, -1, default=None, optional=True, limits=(0, 2))
    keypoint_names: tuple[str, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] = ()
    normalization_pair: tuple[int, int] | None = None
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    split: str | None = None
    report: ReadReport = field(default_factory=ReadReport)
    _lineage: _Lineage | None = field(default=None, init=False)  # set where the rows are known to be a file's

    if TYPE_CHECKING:  # columns may be given as lists, too: what a field holds is not all that it takes

        def __init__(self, *, root: Path | str, offsets: npt.ArrayLike, **columns: Any) -> None: ...

    def __post_init__(self) -> None:
        paths = COLUMNS["image_paths"].convert("", self.image_paths, rows=len(self.image_paths), num_points=0)
        values: dict[str, Any] = {
            "image_paths": paths,
            "image_ids": paths if self.image_ids is None else self.image_ids,
            "root": Path(self.root).absolute(),
            "class_names": tuple(self.class_names),
            "keypoint_names": tuple(self.keypoint_names),
            "flip_pairs": tuple(_pair(pair) for pair in self.flip_pairs),
            "normalization_pair": None if self.normalization_pair is None else _pair(self.normalization_pair),
            "offsets": frozen_array(self.offsets, np.int64, "offsets"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check_names()
        counts = {"images": len(paths), "objects": len(self.labels), "classes": len(self.class_names)}
        if self.offsets.shape != (shape := (counts["images"] + 1,)):
            raise ValueError(f"offsets has shape {self.offsets.shape}; the other columns ask for {shape}")
        check_offsets(self.offsets, total=counts["objects"], what="offsets")
        num_points = len(self.keypoint_names)
        for name, spec in COLUMNS.items():
            column = spec.convert(name, getattr(self, name), rows=counts[spec.rows], num_points=num_points)
            object.__setattr__(self, name, column)
        _check_paths(paths)
        _check_ids(self.labels, low=0, names=self.class_names, what="labels", of="class_names")
        attributes = {}
        for name, given in self.attributes.items():
            ids = _ATTRIBUTE.convert(f"attribute {name!r}", given.ids, rows=counts["objects"], num_points=0)
            attributes[name] = attribute = Attribute(ids=ids, names=tuple(given.names))
            _check_distinct(attribute.names, what=f"attribute {name!r}")
            _check_ids(ids, low=-1, names=attribute.names, what=f"attribute {name!r}", of="values")
        object.__setattr__(self, "attributes", MappingProxyType(attributes))

    def _check_names(self) -> None:
        _check_distinct(self.class_names, what="class_names")
        _check_distinct(self.keypoint_names, what="keypoint_names")
        given = {self.keypoints is None, self.visibility is None, not self.keypoint_names}
        if len(given) > 1:
            raise ValueError("keypoints, visibility and keypoint_names go together: give all of them or none")
        if self.keypoint_names:
            _ = self.keypoint_schema  # raises, naming the field
        elif self.flip_pairs or self.normalization_pair:
            pairs, normalization_pair = self.flip_pairs, self.normalization_pair
            raise ValueError(f"{pairs=} and {normalization_pair=} name positions; there are no keypoints")

    def __len__(self) -> int:
        return len(self.image_paths)

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

    @cached_property
    def image_numbers(self) -> IndexArray:
        """A different number for each image, int64 ``(num_images,)``: the ``image_id`` of samples and predictions.

        These are ``source_ids`` if every image has one and no two have the same, as two sets end to end may; else the
        positions in the table.
        """
        ids = self.source_ids
        has_ids = ids is not None and ids.min(initial=0) >= 0 and len(np.unique(ids)) == len(ids)
        return ids if ids is not None and has_ids else np.arange(self.num_images)

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
        """What the keypoints are, or None without keypoints."""
        if self.keypoints is None:
            return None
        pairs, pair = self.flip_pairs, self.normalization_pair
        return KeypointSchema(names=self.keypoint_names, flip_pairs=pairs, normalization_pair=pair)

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
            raise ValueError(f"expected an attribute, one of {sorted(self.attributes)}; got by={by!r}")
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
        rows = _checked_rows(indices, limit=self.num_images, what="images")
        objects, offsets = gather_ragged(self.offsets, rows)
        lineage = self._lineage
        if lineage is not None:
            lineage = replace(lineage, rows=rows if lineage.rows is None else lineage.rows[rows])
        return self._taken(lineage, images=rows, objects=objects, offsets=offsets)

    def per_object(self, rows: npt.ArrayLike | None = None) -> AnnotationTable:
        """Return a table whose samples are objects: each "image" holds exactly one object.

        Paths, ids and sizes of an image are repeated for each of its objects, so whatever weighs, draws or
        counts images does so for objects.

        Args:
            rows: Integers ``(n,)`` in ``[0, num_objects)``, in the order of the result; default: every object.

        Raises:
            TypeError: If ``rows`` are not integers.
            IndexError: If a row is outside the table.
        """
        every = np.arange(self.num_objects, dtype=np.int64)
        objects = every if rows is None else _checked_rows(rows, limit=self.num_objects, what="objects")
        images = np.searchsorted(self.offsets, objects, side="right") - 1
        lineage = self._lineage
        if lineage is not None:
            in_file = lineage.rows
            if in_file is not None and not lineage.by_object:
                in_file, _ = gather_ragged(lineage.offsets, in_file)
            if rows is not None:
                in_file = objects if in_file is None else in_file[objects]
            lineage = replace(lineage, rows=in_file, by_object=True)
        return self._taken(lineage, images=images, objects=objects, offsets=np.arange(len(objects) + 1))

    def without_crowds(self) -> AnnotationTable:
        """Return the table without objects marked as crowd, and without images of which none is left.

        The table itself if it has no such object.
        """
        if not self.crowd.any():
            return self
        kept = np.flatnonzero(~self.crowd)
        counts = np.bincount(self.image_of_object()[kept], minlength=self.num_images)
        images = np.flatnonzero((counts > 0) | (np.diff(self.offsets) == 0))
        offsets = np.concatenate([[0], np.cumsum(counts[images])])
        return self._taken(None, images=images, objects=kept, offsets=offsets)

    def with_class_names(
        self, class_names: Sequence[str], *, category_ids: npt.ArrayLike | None = None
    ) -> AnnotationTable:
        """Return the table with its classes numbered as in ``class_names``, itself if they are already.

        Args:
            class_names: Every class of the table, and others if need be.
            category_ids: The column of that name, or None for the ids that the table has: if one of the classes has
                none, the result has no such column.

        Raises:
            ValueError: If a class of the table is missing.
        """
        names, ids = tuple(class_names), self.category_ids
        same_ids = category_ids is None or np.array_equal(category_ids, () if ids is None else ids)
        if names == self.class_names and same_ids:
            return self
        places = {name: place for place, name in enumerate(names)}
        missing = sorted(set(self.class_names) - places.keys())
        if missing:
            raise ValueError(f"class_names={names} lack {missing} of the table; name them too")
        lookup = np.array([places[name] for name in self.class_names], dtype=np.int64)
        if category_ids is None and ids is not None and len(names) == len(lookup):
            category_ids = ids[np.argsort(lookup)]
        changes = {"class_names": names, "labels": lookup[self.labels], "category_ids": category_ids}
        return self._changed(self._lineage, **changes)

    @property
    def cache_key(self) -> str | None:
        """The key of the cache file that the rows come from, or None."""
        return None if self._lineage is None else self._lineage.key

    def save(self, path: Path, *, key: str) -> None:
        """Write the table to a file that ``load`` maps; ``key`` identifies what it was made from."""
        write_table(path, self._parts(), COLUMNS, key=key)

    @classmethod
    def load(cls, path: Path, *, key: str) -> AnnotationTable:
        """Map a table that ``save`` wrote; nothing in the file is trusted.

        Raises:
            CacheError: If there is no such file, it is damaged, or it was made under another key.
        """
        try:
            table = cls(**read_table(path, COLUMNS, key=key))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CacheError(f"{path} does not hold a valid table ({error}); delete it") from None
        object.__setattr__(table, "_lineage", _Lineage(path=str(path), key=key, offsets=table.offsets))
        return table

    def _taken(
        self, lineage: _Lineage | None, *, images: IndexArray, objects: IndexArray, offsets: IndexArray
    ) -> AnnotationTable:
        rows = {"images": images, "objects": objects}
        columns = {n: s.take(getattr(self, n), rows[s.rows]) for n, s in COLUMNS.items() if s.rows in rows}
        attributes = {
            name: Attribute(ids=_ATTRIBUTE.take(attribute.ids, objects), names=attribute.names)
            for name, attribute in self.attributes.items()
        }
        return self._changed(lineage, offsets=offsets, attributes=attributes, **columns)

    def _changed(self, lineage: _Lineage | None, **changes: Any) -> AnnotationTable:
        table = replace(self, **changes)
        object.__setattr__(table, "_lineage", lineage)
        return table

    def _parts(self) -> dict[str, Any]:
        """Return the arguments that build this table again."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._lineage is not None:
            come, ids = self._lineage, self.category_ids
            classes = (self.class_names, None if ids is None else tuple(ids.tolist()))
            return _reopen, (come.path, come.key, come.rows, come.by_object, *classes)
        return partial(AnnotationTable, **self._parts() | {"attributes": dict(self.attributes)}), ()

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        sizes = f"{self.num_images} images, {self.num_objects} objects, {self.num_classes} classes"
        return f"AnnotationTable({str(self.root)!r}{split}, {sizes})"


_FIELDS: Final = [each for each in fields(AnnotationTable) if "spec" in each.metadata]
COLUMNS: Final[Mapping[str, ColumnSpec]] = MappingProxyType({f.name: f.metadata["spec"] for f in _FIELDS})
"""The columns by name; see NOTE [Columns are declared once]. Attributes are columns of objects too, with names of
their own."""

_ATTRIBUTE: Final = ColumnSpec(rows="objects", kind=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lineage:
    """Which rows of which cache file a table holds; see NOTE [A derived table is rows of a file].

    Attributes:
        path: The cache file.
        key: The key that it was written under.
        offsets: int64, ``offsets`` of the table in the file.
        rows: int64, images of the file's table, or objects of it when ``by_object``, or None for all of them.
        by_object: Whether each image of the table holds exactly one object.
    """

    path: str
    key: str
    offsets: IndexArray
    rows: IndexArray | None = None
    by_object: bool = False


def _reopen(path: str, key: str, rows: IndexArray | None, by_object: bool, *classes: Any) -> AnnotationTable:
    names, category_ids = classes
    table = AnnotationTable.load(Path(path), key=key).with_class_names(names, category_ids=category_ids)
    if by_object:
        return table.per_object(rows)
    return table if rows is None else table.select(rows)


def _checked_rows(given: npt.ArrayLike, *, limit: int, what: str) -> IndexArray:
    rows = np.asarray(given)
    if rows.size and rows.dtype.kind not in "iu":
        raise TypeError(f"indices are {rows.dtype}, not integers; for a mask pass numpy.flatnonzero(mask)")
    if rows.ndim != 1:
        raise TypeError(f"indices of shape {rows.shape} must be a vector")
    if rows.size and (rows.min() < 0 or rows.max() >= limit):
        raise IndexError(f"indices {rows.min()}..{rows.max()} leave the table of {limit} {what}")
    return rows.astype(np.int64)


def _pair(pair: tuple[int, int]) -> tuple[int, int]:
    a, b = pair
    return operator.index(a), operator.index(b)


def _check_ids(ids: IndexArray, *, low: int, names: Sequence[str], what: str, of: str) -> None:
    if len(ids) and not low <= int(ids.min()) <= int(ids.max()) < len(names):
        raise ValueError(f"{what} {ids.min()}..{ids.max()} leave the {len(names)} {of}")


def _check_distinct(names: Sequence[str], *, what: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{what} holds {name!r}; every name must be a string that is not empty")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise ValueError(f"{what} holds {twice[:5]} more than once; names must differ")


def _check_paths(paths: TextColumn) -> None:
    """Find unsafe paths by looking at all bytes at once; only suspects are looked at one by one."""
    data, starts = paths.data, paths.offsets[:-1]
    suspect = np.diff(paths.offsets) == 0
    if data.size:
        suspect |= data[np.minimum(starts, data.size - 1)] == ord("/")
        dots = np.flatnonzero((data[1:] == ord(".")) & (data[:-1] == ord(".")))
        odd = np.concatenate([np.flatnonzero((data == 0) | (data == ord("\\"))), dots])
        suspect[np.searchsorted(paths.offsets, odd, side="right") - 1] = True
    for row in np.flatnonzero(suspect):
        check_relative(paths[int(row)])
