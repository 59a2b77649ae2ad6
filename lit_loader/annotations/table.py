"""Annotation table that every format is read into: images, their objects and the class names.

NOTE [Columns are declared once]
    A field made by `_column` is a column of `COLUMNS`. The constructor, the checks, `select`, `per_object`, `save`,
    `load`, the functions of `merge` and the command line's ``convert`` loop over these declarations, so that none of
    them can forget a column.

NOTE [A derived table is rows of a file]
    Images may be selected, objects turned into samples and classes renumbered, in any order and any number of times.
    The result is always one of two things: images of the table in the cache file with all of their objects, except for
    objects of dropped classes, or single objects of it, under some class names. A derived table is therefore pickled
    as file, key, renamings, row numbers, which of the two it is, and classes. Any other operation on rows must keep to
    that or drop the lineage.
"""

# ruff: noqa: RUF009 # `_column` makes a field

from __future__ import annotations

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
    checked_names,
    frozen_array,
    gather_ragged,
    offsets_of,
)
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import Masks
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.places import Place, Places
from lit_loader.annotations.problems import ReadReport
from lit_loader.annotations.quadrangles import box_corners, has_numbers, rotated_corners
from lit_loader.annotations.table_file import read_table, write_table
from lit_loader.errors import CacheError
from lit_loader.types import IndexArray

__all__ = ["AnnotationTable", "Attribute", "COLUMNS"]


_MAX_FLOAT: Final = np.finfo(np.float32).max
_AREA: Final = {"optional": True, "missing": np.nan, "limits": (0, _MAX_FLOAT)}
_ORIENTED: Final = {"optional": True, "missing": np.nan, "limits": (-_MAX_FLOAT, _MAX_FLOAT)}
_Points: TypeAlias = npt.NDArray[np.float32]
_Visibility: TypeAlias = npt.NDArray[np.uint8]


def _column(
    rows: Literal["images", "objects", "classes"], kind: type[np.generic] | type[RaggedColumn], *shape: int, **spec: Any
) -> Any:
    """Declare a column; see NOTE [Columns are declared once]."""
    required = {} if "default" not in spec else {"default": spec.pop("default")}
    return field(**required, metadata={"spec": ColumnSpec(rows=rows, kind=kind, shape=shape, **spec)})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AnnotationTable:
    """Images and objects of a data set as immutable columns.

    Every array is read-only (``torch.tensor`` copies one; ``torch.from_numpy`` warns about it). The objects of image
    ``i`` are the rows ``offsets[i]:offsets[i + 1]`` of every per-object column. Numeric columns accept any array-like,
    text columns any sequence of strings. ``len(table)`` is the number of images.

    Args:
        root: Folder of the data set; made absolute.
        image_paths: One path per image, relative to ``root``, with ``/`` between its parts.
        image_ids: Id by which the annotations refer to each image (its stem or relative name); default:
            ``image_paths``.
        source_ids: int64 ``(num_images,)``, the annotation file's own image numbers (``id`` of COCO's images), -1 for
            an image without one; or None.
        image_stamps: int64 ``(num_images,)``, `image_stamp` of each image that the table depends on, 0 for others; or
            None. A cached table is stale if one of them has changed.
        image_places: `Places` of ``num_images`` rows in the annotation files, or None; see `place_of_image`.
        class_names: Class names by id, without the background.
        category_ids: int64 ``(num_classes,)``, the file's own class numbers, or None.
        widths: int32 ``(num_images,)`` pixels according to the annotations; 0 = unknown; default: all 0.
        heights: As ``widths``.
        regions: int32 ``(num_images, 4)``, the part of each image file that a row describes, as left, top, right and
            bottom in pixels of the upright image, or None for whole files; a row of zeros is a whole file. Sizes, boxes
            and keypoints are then relative to the region's left upper corner; masks cover the whole file.
        file_sizes: int32 ``(num_images, 2)``, width and height of the image file that a region is a part of, 0 =
            unknown; or None.
        shards: int32 ``(num_images,)``, number of the packed shard that holds each image, in the order of the objects
            of the `Catalog` in ``root``, -1 for an image in none; or None for images that are files. Tables of one root
            number the same shards, so concatenation does not renumber them.
        offsets: int64 ``(num_images + 1,)``.
        boxes: float32 ``(num_objects, 4)``, xyxy, pixels, finite; of an oriented object the box around it.
        corners: float32 ``(num_objects, 4, 2)``, x and y of the four corners of oriented objects in the order of the
            annotation, pixels, NaN for other objects; or None.
        rotated_boxes: float32 ``(num_objects, 5)``: centre x and y, width, height (pixels) and angle (degrees, as
            torchvision's ``CXCYWHR``: counter-clockwise on the screen) of oriented objects, NaN for other objects; or
            None. An object has ``corners`` or a rotated box, not both.
        labels: int64 ``(num_objects,)``, class ids from 0.
        difficult: bool ``(num_objects,)``; default: all False.
        truncated: As ``difficult``.
        occluded: As ``difficult``.
        crowd: As ``difficult``.
        object_ids: int64 ``(num_objects,)``, the file's own object numbers (``id`` of COCO's annotations), -1 for an
            object without one; or None.
        areas: float32 ``(num_objects,)``, square pixels according to the annotations (in COCO the area of the mask),
            NaN for an object without one; or None.
        object_places: `Places` of ``num_objects`` rows in the annotation files, or None; see `place_of_object`.
        masks: `Masks` of ``num_objects`` rows, or None.
        keypoints: float32 ``(num_objects, K, 2)`` pixels, finite, or None.
        visibility: uint8 ``(num_objects, K)``: 0 absent, 1 hidden, 2 visible; required with ``keypoints``.
        keypoint_names: K names; required with ``keypoints``.
        flip_pairs: Pairs of keypoint positions that swap when an image is mirrored.
        normalization_pair: The two keypoint positions whose distance normalizes errors, or None.
        keypoint_sigmas: K standard deviations for the object keypoint similarity, see `KeypointSchema`; or empty.
        skeleton: Pairs of keypoint positions that a drawing connects by a line.
        attributes: Further named values per object.
        unlabelled_classes: Names of classes whose objects may be visible in the images without being annotated.
        split: Name of the split, or None.
        report: Problems that the reader reported.

    Raises:
        ValueError: If columns contradict each other; names the column.
        UnsafePathError: If an image path is absolute or leads out of the root.

    Runs in: main and worker processes; threads may share a table. There is nothing to close.

    Pickling: a table from a cache file is pickled as the file's name, its selected images or objects, and its classes;
    unpickling maps the file again. Any other table is pickled as its arrays.
    """

    root: Path
    image_paths: Sequence[str] = _column("images", TextColumn)
    image_ids: Sequence[str] = _column("images", TextColumn, default=None)
    source_ids: IndexArray | None = _column("images", np.int64, default=None, optional=True, missing=-1)
    image_stamps: IndexArray | None = _column("images", np.int64, default=None, optional=True, missing=0)
    image_places: Places | None = _column("images", Places, default=None, optional=True)
    class_names: tuple[str, ...]
    category_ids: IndexArray | None = _column("classes", np.int64, default=None, optional=True)
    widths: npt.NDArray[np.int32] = _column("images", np.int32, default=None, limits=(0, np.inf))
    heights: npt.NDArray[np.int32] = _column("images", np.int32, default=None, limits=(0, np.inf))
    regions: npt.NDArray[np.int32] | None = _column(
        "images", np.int32, 4, default=None, optional=True, limits=(0, np.inf)
    )
    file_sizes: npt.NDArray[np.int32] | None = _column(
        "images", np.int32, 2, default=None, optional=True, limits=(0, np.inf)
    )
    shards: npt.NDArray[np.int32] | None = _column(
        "images", np.int32, default=None, optional=True, missing=-1, limits=(-1, np.inf)
    )
    offsets: IndexArray
    boxes: npt.NDArray[np.float32] = _column("objects", np.float32, 4)
    corners: _Points | None = _column("objects", np.float32, 4, 2, default=None, **_ORIENTED)
    rotated_boxes: _Points | None = _column("objects", np.float32, 5, default=None, **_ORIENTED)
    labels: IndexArray = _column("objects", np.int64)
    difficult: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    truncated: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    occluded: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    crowd: npt.NDArray[np.bool_] = _column("objects", np.bool_, default=None)
    object_ids: IndexArray | None = _column("objects", np.int64, default=None, optional=True, missing=-1)
    areas: npt.NDArray[np.float32] | None = _column("objects", np.float32, default=None, **_AREA)
    object_places: Places | None = _column("objects", Places, default=None, optional=True)
    masks: Masks | None = _column("objects", Masks, default=None, optional=True)
    keypoints: _Points | None = _column("objects", np.float32, -1, 2, default=None, optional=True)
    visibility: _Visibility | None = _column("objects", np.uint8, -1, default=None, optional=True, limits=(0, 2))
    keypoint_names: tuple[str, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] = ()
    normalization_pair: tuple[int, int] | None = None
    keypoint_sigmas: tuple[float, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    unlabelled_classes: tuple[str, ...] = ()
    split: str | None = None
    report: ReadReport = field(default_factory=ReadReport)
    _lineage: _Lineage | None = field(default=None, init=False)  # None unless the rows are from a cache file

    if TYPE_CHECKING:  # the constructor accepts more types, such as lists, than the fields have afterwards

        def __init__(self, *, root: Path | str, offsets: npt.ArrayLike, **columns: Any) -> None: ...

    def __post_init__(self) -> None:
        paths = COLUMNS["image_paths"].convert("", self.image_paths, rows=len(self.image_paths), num_points=0)
        # The paths are converted first, because `image_ids` defaults to them.
        values: dict[str, Any] = {
            "image_paths": paths,
            "image_ids": paths if self.image_ids is None else self.image_ids,
            "root": Path(self.root).absolute(),
            "class_names": checked_names("class_names", self.class_names),
            "unlabelled_classes": checked_names("unlabelled_classes", self.unlabelled_classes),
            "keypoint_names": (),
            "flip_pairs": (),
            "keypoint_sigmas": (),
            "skeleton": (),
            "offsets": frozen_array(self.offsets, np.int64, "offsets"),
        }
        # All three are present or all are absent, so the set has one element.
        if len({self.keypoints is None, self.visibility is None, not self.keypoint_names}) > 1:
            raise ValueError("keypoints, visibility and keypoint_names go together: pass all of them or none")
        if self.keypoint_schema is not None:
            # The schema has checked the names and pairs, and made tuples of them.
            values |= self.keypoint_schema.columns()
        else:
            self._refuse_schema()
        unknown_classes = sorted(set(values["unlabelled_classes"]) - set(values["class_names"]))
        if unknown_classes:
            raise ValueError(f"unlabelled_classes {unknown_classes} are not among the classes {values['class_names']}")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        counts = {"images": len(paths), "objects": len(self.labels), "classes": len(self.class_names)}
        shape = (counts["images"] + 1,)
        if self.offsets.shape != shape:
            raise ValueError(f"offsets has shape {self.offsets.shape}; expected {shape} to match the other columns")
        check_offsets(self.offsets, total=counts["objects"], name="offsets")
        num_points = len(self.keypoint_names)
        for name, spec in COLUMNS.items():
            column = spec.convert(name, getattr(self, name), rows=counts[spec.rows], num_points=num_points)
            object.__setattr__(self, name, column)
        _check_paths(paths)
        _check_oriented(self.corners, self.rotated_boxes)
        _check_ids(self.labels, low=0, names=self.class_names, column="labels", names_field="class_names")
        attributes = {}
        for name, attribute in self.attributes.items():
            column = f"attribute {name!r}"
            ids = _ATTRIBUTE.convert(column, attribute.ids, rows=counts["objects"], num_points=0)
            names = checked_names(column, attribute.names)
            _check_ids(ids, low=-1, names=names, column=column, names_field="values")
            attributes[name] = Attribute(ids=ids, names=names)
        # The dataclass is frozen; a proxy keeps callers from changing the mapping in place as well.
        object.__setattr__(self, "attributes", MappingProxyType(attributes))

    def _refuse_schema(self) -> None:
        """Raise ValueError if a table without keypoints describes some."""
        names = ("flip_pairs", "normalization_pair", "keypoint_sigmas", "skeleton")
        values = [f"{name}={value}" for name in names if (value := getattr(self, name))]
        if values:
            raise ValueError(
                f"{', '.join(values)} describes keypoints, but the table has none; remove it or pass keypoints"
            )

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
        """Number of classes, including classes without objects."""
        return len(self.class_names)

    @cached_property
    def image_numbers(self) -> IndexArray:
        """Unique number of each image, int64 ``(num_images,)``: the ``image_id`` of samples and predictions.

        These are ``source_ids`` if every image has one and all differ, else positions in the table.
        """
        ids = self.source_ids
        # Ids may repeat in a table concatenated from several sets.
        if ids is not None and ids.min(initial=0) >= 0 and len(np.unique(ids)) == len(ids):
            return ids
        return np.arange(self.num_images)

    def image_path(self, index: int) -> Path:
        """Return the absolute path of an image."""
        return self.root / self.image_paths[index]

    def image_id(self, index: int) -> str:
        """Return the id by which the annotations refer to an image."""
        return self.image_ids[index]

    def objects(self, index: int) -> slice:
        """Return the rows of an image's objects."""
        if not -self.num_images <= index < self.num_images:
            raise IndexError(f"image {index} is outside a table of {self.num_images} images")
        # A negative index counts from the end, as for a list.
        index %= self.num_images
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def place_of_image(self, image_row: int) -> Place | None:
        """Return the place of an image in the annotation files, or None if it is unknown.

        Raises:
            IndexError: If the row is outside the table.
        """
        row = range(self.num_images)[image_row]
        return None if self.image_places is None else self.image_places.place(row, "image")

    def place_of_object(self, object_row: int) -> Place | None:
        """Return the place of an object in the annotation files, or None if it is unknown.

        Args:
            object_row: Row of the per-object columns.

        Raises:
            IndexError: If the row is outside the table.
        """
        row = range(self.num_objects)[object_row]
        if self.object_places is None:
            return None
        # `side="right"` skips images without objects, whose offsets are equal.
        image = int(np.searchsorted(self.offsets, row, side="right")) - 1
        source = None if self.image_places is None else self.image_places.source(image)
        return self.object_places.place(row, "object", default_source=source)

    @property
    def keypoint_schema(self) -> KeypointSchema | None:
        """Schema of the keypoints, or None without keypoints."""
        if self.keypoints is None:
            return None
        return KeypointSchema(
            names=self.keypoint_names,
            flip_pairs=self.flip_pairs,
            normalization_pair=self.normalization_pair,
            sigmas=self.keypoint_sigmas,
            skeleton=self.skeleton,
        )

    def labels_of(self, by: str | None = None) -> tuple[IndexArray, tuple[str, ...]]:
        """Return the label of each object, and the label names.

        Args:
            by: None for the classes, or the name of an attribute.

        Returns:
            int64 ``(num_objects,)`` positions in the names, -1 for an object without a value; the names.

        Raises:
            ValueError: If the attribute does not exist.
        """
        # Every function of labels takes `by`, so that attributes can be balanced and counted like classes.
        if by is None:
            return self.labels, self.class_names
        if by not in self.attributes:
            raise ValueError(f"expected an attribute, one of {sorted(self.attributes)}; got {by=}")
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
        # One bincount over (image, label) cells instead of one per image.
        cells = (self.image_of_object() * len(names) + ids)[has_value]
        counts = np.bincount(cells, minlength=self.num_images * len(names)).astype(np.int64)
        return counts.reshape(self.num_images, len(names))

    def image_of_object(self) -> IndexArray:
        """Return the image of each object, int64 ``(num_objects,)``."""
        return np.repeat(np.arange(self.num_images, dtype=np.int64), np.diff(self.offsets))

    def has_orientation(self) -> npt.NDArray[np.bool_]:
        """Return True for each object with ``corners`` or a rotated box, bool ``(num_objects,)``."""
        is_oriented = np.zeros(self.num_objects, np.bool_)
        if self.corners is not None:
            is_oriented |= has_numbers(self.corners)
        if self.rotated_boxes is not None:
            is_oriented |= has_numbers(self.rotated_boxes)
        return is_oriented

    def oriented_corners(self, rows: npt.ArrayLike | slice | None = None) -> npt.NDArray[np.float32]:
        """Return the corners of objects: as annotated, of their rotated box, or else of their axis-aligned box.

        Args:
            rows: Rows of the per-object columns ``(n,)``, a slice as `objects` returns it, or None for all objects.

        Returns:
            float32 ``(n, 4, 2)``, x and y in pixels. The corners of a box follow each other from the left top one
            clockwise on the screen; a rotated box has the same order before it is turned.

        Raises:
            IndexError: If a row is outside the table.
        """
        selection = slice(None) if rows is None else rows if isinstance(rows, slice) else np.asarray(rows, np.int64)
        corners: npt.NDArray[np.float32] = box_corners(self.boxes[selection])
        if self.rotated_boxes is not None:
            rotated = self.rotated_boxes[selection]
            # float64 corners of a huge box become infinite in float32, as its enclosing box does.
            with np.errstate(over="ignore"):
                turned = rotated_corners(rotated).astype(np.float32)
            corners = np.where(has_numbers(rotated)[:, None, None], turned, corners)
        if self.corners is not None:
            annotated = self.corners[selection]
            corners = np.where(has_numbers(annotated)[:, None, None], annotated, corners)
        return corners

    def select(self, indices: npt.ArrayLike) -> AnnotationTable:
        """Return a table of some images, in the order of ``indices``; repeated indices repeat the image.

        Args:
            indices: Integers ``(n,)`` in ``[0, num_images)``; pass ``numpy.flatnonzero(mask)`` for a mask.

        Raises:
            TypeError: If ``indices`` are not integers.
            IndexError: If an index is outside the table.
        """
        # The new lineage is composed with the old one, so that it always refers to rows of the file.
        rows = _checked_rows(indices, limit=self.num_images, unit="images")
        objects, offsets = gather_ragged(self.offsets, rows)
        lineage = self._lineage
        if lineage is not None:
            lineage = replace(lineage, rows=rows if lineage.rows is None else lineage.rows[rows])
        return self._taken(lineage, images=rows, objects=objects, offsets=offsets)

    def per_object(self, rows: npt.ArrayLike | None = None) -> AnnotationTable:
        """Return a table whose samples are objects: each "image" holds exactly one object.

        Paths, ids and sizes of an image are repeated for each of its objects, so code that weights, samples or counts
        images then works on objects.

        Args:
            rows: Integers ``(n,)`` in ``[0, num_objects)``, in the order of the result; default: every object.

        Raises:
            TypeError: If ``rows`` are not integers.
            IndexError: If a row is outside the table.
        """
        all_objects = np.arange(self.num_objects, dtype=np.int64)
        objects = all_objects if rows is None else _checked_rows(rows, limit=self.num_objects, unit="objects")
        # `side="right"` skips images without objects, whose offsets are equal.
        images = np.searchsorted(self.offsets, objects, side="right") - 1
        lineage = self._lineage
        if lineage is not None:
            file_rows = lineage.rows
            if file_rows is not None and not lineage.by_object:
                # From image rows of the file to the rows of their objects.
                file_rows, _ = gather_ragged(lineage.offsets, file_rows)
            if rows is not None:
                file_rows = objects if file_rows is None else file_rows[objects]
            lineage = replace(lineage, rows=file_rows, by_object=True)
        return self._taken(lineage, images=images, objects=objects, offsets=np.arange(len(objects) + 1))

    def without_crowds(self) -> AnnotationTable:
        """Return a table without crowd objects, and without images that had nothing else.

        Images without any object stay. Returns this table if it has no crowd objects.
        """
        return self.without_objects(self.crowd)

    def without_objects(self, is_dropped: npt.NDArray[np.bool_]) -> AnnotationTable:
        """Return a table without some objects, and without images that had nothing else.

        Images without any object stay. Returns this table if nothing is dropped.

        Args:
            is_dropped: bool ``(num_objects,)``.
        """
        if not is_dropped.any():
            return self
        objects = np.flatnonzero(~is_dropped)
        counts = np.bincount(self.image_of_object()[objects], minlength=self.num_images)
        images = np.flatnonzero((counts > 0) | (np.diff(self.offsets) == 0))
        # No lineage: an image with only some of its objects is not a row of the file.
        return self._taken(None, images=images, objects=objects, offsets=offsets_of(counts[images]))

    def with_class_names(
        self, class_names: Sequence[str], *, category_ids: npt.ArrayLike | None = None
    ) -> AnnotationTable:
        """Return a table whose classes are numbered as in ``class_names``; this table if they are already.

        Args:
            class_names: All classes of the table, and possibly others.
            category_ids: New ``category_ids``, or None to keep the table's own. These are dropped if
                ``class_names`` adds a class, which has none.

        Raises:
            ValueError: If ``class_names`` lacks a class of the table.
        """
        names = tuple(class_names)
        ids = self.category_ids
        same_ids = category_ids is None or np.array_equal(category_ids, () if ids is None else ids)
        if names == self.class_names and same_ids:
            return self
        new_labels = {name: label for label, name in enumerate(names)}
        missing = sorted(set(self.class_names) - new_labels.keys())
        if missing:
            raise ValueError(f"class_names={names} lacks the table's classes {missing}; add them")
        lookup = np.array([new_labels[name] for name in self.class_names], dtype=np.int64)
        # `argsort` inverts the lookup: it gives the old class of each new one.
        if category_ids is None and ids is not None and len(names) == len(lookup):
            category_ids = ids[np.argsort(lookup)]
        labels = lookup[self.labels]
        return _with_lineage(self, self._lineage, class_names=names, labels=labels, category_ids=category_ids)

    def with_renamed_classes(self, names: Mapping[str, str | None]) -> AnnotationTable:
        """Return a table with renamed, merged and dropped classes; this table if nothing changes.

        The objects of dropped classes go, and all images stay. Classes are numbered in the order of first occurrence of
        their new names; ``category_ids`` are dropped.

        Args:
            names: New name of each class that changes, the same for classes that are merged, None for dropped ones.

        Raises:
            ValueError: If the table lacks one of the classes.
        """
        unknown = sorted(set(names) - set(self.class_names))
        if unknown:
            raise ValueError(f"classes {unknown} are not among the table's {self.class_names}")
        new_names = [names.get(name, name) for name in self.class_names]
        if new_names == list(self.class_names):
            return self
        class_names = tuple(dict.fromkeys(name for name in new_names if name is not None))
        lookup = np.array([-1 if name is None else class_names.index(name) for name in new_names], dtype=np.int64)
        labels = lookup[self.labels]
        table = self
        objects = np.flatnonzero(labels >= 0)
        # Without dropped objects the other columns stay views of the cache file.
        if len(objects) < self.num_objects:
            counts = np.bincount(self.image_of_object()[objects], minlength=self.num_images)
            images = np.arange(self.num_images)
            table = self._taken(None, images=images, objects=objects, offsets=offsets_of(counts))
        unlabelled = [names.get(name, name) for name in self.unlabelled_classes]
        return _with_lineage(
            table,
            None if self._lineage is None else self._lineage.renamed(names, table.offsets),
            class_names=class_names,
            labels=labels[objects],
            category_ids=None,
            unlabelled_classes=tuple(dict.fromkeys(name for name in unlabelled if name is not None)),
        )

    def with_unlabelled_classes(self, names: Sequence[str]) -> AnnotationTable:
        """Return a table with these ``unlabelled_classes``."""
        return _with_lineage(self, self._lineage, unlabelled_classes=tuple(names))

    @property
    def cache_key(self) -> str | None:
        """Key of the cache file that the rows are from, or None."""
        return None if self._lineage is None else self._lineage.key

    def save(self, path: Path, *, key: str) -> None:
        """Write the table to a file for ``load``; ``key`` identifies the sources that it was made from."""
        write_table(path, self._parts(), COLUMNS, key=key)

    @classmethod
    def load(cls, path: Path, *, key: str) -> AnnotationTable:
        """Map a table that ``save`` wrote, after checking everything in the file.

        Raises:
            CacheError: If the file is missing, damaged, or has another key.
        """
        try:
            table = cls(**read_table(path, COLUMNS, key=key))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise CacheError(f"{path} does not hold a valid table ({error})", remedy="delete it") from None
        # Set only now, because the constructor knows nothing about files.
        object.__setattr__(table, "_lineage", _Lineage(path=str(path), key=key, offsets=table.offsets))
        return table

    def _taken(
        self, lineage: _Lineage | None, *, images: IndexArray, objects: IndexArray, offsets: IndexArray
    ) -> AnnotationTable:
        rows = {"images": images, "objects": objects}
        columns = {
            name: spec.take(getattr(self, name), rows[spec.rows]) for name, spec in COLUMNS.items() if spec.rows in rows
        }
        attributes = {
            name: Attribute(ids=_ATTRIBUTE.take(attribute.ids, objects), names=attribute.names)
            for name, attribute in self.attributes.items()
        }
        return _with_lineage(self, lineage, offsets=offsets, attributes=attributes, **columns)

    def _parts(self) -> dict[str, Any]:
        """Return the constructor arguments of this table."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def __reduce__(self) -> tuple[Any, ...]:
        # The file is mapped again on the other side, so its pages are shared between processes.
        if self._lineage is not None:
            lineage = self._lineage
            # Plain values, because they are pickled for every worker.
            ids = None if self.category_ids is None else tuple(self.category_ids.tolist())
            source = (lineage.path, lineage.key, lineage.renamings, lineage.rows, lineage.by_object)
            return _reopen, (*source, self.class_names, ids, self.unlabelled_classes)
        # A mapping proxy cannot be pickled.
        return partial(AnnotationTable, **self._parts() | {"attributes": dict(self.attributes)}), ()

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        sizes = f"{self.num_images} images, {self.num_objects} objects, {self.num_classes} classes"
        return f"AnnotationTable({str(self.root)!r}{split}, {sizes})"


COLUMNS: Final[Mapping[str, ColumnSpec]] = MappingProxyType(
    {f.name: f.metadata["spec"] for f in fields(AnnotationTable) if "spec" in f.metadata}
)
"""The columns by name; see NOTE [Columns are declared once].

Attributes are also per-object columns, but each data set names its own.
"""

_ATTRIBUTE: Final = ColumnSpec(rows="objects", kind=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lineage:
    """Rows of a cache file that a table consists of; see NOTE [A derived table is rows of a file].

    Attributes:
        path: The cache file.
        key: The file's key.
        offsets: int64, ``offsets`` of the table in the file, after the renamings.
        renamings: Arguments of `with_renamed_classes`, in the order of the calls; rows count after them.
        rows: int64, image rows in the file, or object rows if ``by_object``; None for all rows.
        by_object: True if each image of the table holds exactly one object.
    """

    path: str
    key: str
    offsets: IndexArray
    renamings: tuple[Mapping[str, str | None], ...] = ()
    rows: IndexArray | None = None
    by_object: bool = False

    def file_table(self) -> AnnotationTable:
        """Return the table in the file, after the renamings."""
        table = AnnotationTable.load(Path(self.path), key=self.key)
        for names in self.renamings:
            table = table.with_renamed_classes(names)
        return table

    def renamed(self, names: Mapping[str, str | None], offsets: IndexArray) -> _Lineage | None:
        """Return the lineage after a renaming; None if rows are objects, whose numbers a dropped class would change.

        Args:
            names: The argument of `with_renamed_classes`.
            offsets: ``offsets`` of the renamed table.
        """
        if self.by_object:
            return None
        # The file may lack classes that the table got from other tables.
        table = self.file_table()
        file_names = {old: new for old, new in names.items() if old in table.class_names}
        if self.rows is not None:
            offsets = table.with_renamed_classes(file_names).offsets
        return replace(self, offsets=offsets, renamings=(*self.renamings, file_names))


def _with_lineage(table: AnnotationTable, lineage: _Lineage | None, **changes: Any) -> AnnotationTable:
    """Return a table with changed columns that consists of some rows of a cache file."""
    # `replace` runs the checks again, and loses the lineage because it is not an argument of the constructor.
    changed = replace(table, **changes)
    object.__setattr__(changed, "_lineage", lineage)
    return changed


def _reopen(
    path: str,
    key: str,
    renamings: tuple[Mapping[str, str | None], ...],
    rows: IndexArray | None,
    by_object: bool,
    class_names: tuple[str, ...],
    category_ids: tuple[int, ...] | None,
    unlabelled_classes: tuple[str, ...],
) -> AnnotationTable:
    """Unpickle a table from its cache file."""
    lineage = _Lineage(path=path, key=key, offsets=np.empty(0, dtype=np.int64), renamings=renamings)
    table = lineage.file_table().with_class_names(class_names, category_ids=category_ids)
    # A class that the file lacks may have come and gone, and has taken the numbers of all classes along.
    if category_ids is None and table.category_ids is not None:
        table = _with_lineage(table, table._lineage, category_ids=None)
    if unlabelled_classes != table.unlabelled_classes:
        table = table.with_unlabelled_classes(unlabelled_classes)
    if by_object:
        return table.per_object(rows)
    return table if rows is None else table.select(rows)


def _checked_rows(indices: npt.ArrayLike, *, limit: int, unit: str) -> IndexArray:
    rows = np.asarray(indices)
    if rows.size and rows.dtype.kind not in "iu":
        raise TypeError(f"expected integer indices, got {rows.dtype}; for a mask pass numpy.flatnonzero(mask)")
    if rows.ndim != 1:
        raise TypeError(f"expected indices of shape (n,), got {rows.shape}")
    if rows.size and (rows.min() < 0 or rows.max() >= limit):
        raise IndexError(f"indices {rows.min()}..{rows.max()} are outside a table of {limit} {unit}")
    return rows.astype(np.int64)


def _check_ids(ids: IndexArray, *, low: int, names: Sequence[str], column: str, names_field: str) -> None:
    if len(ids) and not low <= int(ids.min()) <= int(ids.max()) < len(names):
        raise ValueError(f"{column} {ids.min()}..{ids.max()} are outside the {len(names)} {names_field}")


def _check_oriented(corners: _Points | None, rotated_boxes: _Points | None) -> None:
    """Raise ValueError if an object is partly NaN, has both kinds of oriented boxes, or a negative side."""
    present = []
    for name, column in (("corners", corners), ("rotated_boxes", rotated_boxes)):
        if column is None:
            continue
        is_nan = np.isnan(column.reshape(len(column), int(np.prod(column.shape[1:]))))
        partly = np.flatnonzero(is_nan.any(axis=1) & ~is_nan.all(axis=1))
        if len(partly):
            row = int(partly[0])
            raise ValueError(f"{name}[{row}] = {column[row].tolist()} must be finite, or all NaN without one")
        present.append(~is_nan[:, 0])
    if len(present) == 2 and (both := np.flatnonzero(present[0] & present[1])).size:
        raise ValueError(f"object {both[0]} has corners and a rotated box; leave one of them NaN")
    # NaN compares as False.
    if rotated_boxes is not None and (negative := np.flatnonzero((rotated_boxes[:, 2:4] < 0).any(axis=1))).size:
        row = int(negative[0])
        raise ValueError(f"rotated_boxes[{row}] = {rotated_boxes[row].tolist()} has a negative width or height")


def _check_paths(paths: TextColumn) -> None:
    """Raise UnsafePathError for the first unsafe path."""
    # A search over all bytes at once picks the suspects; only these few are decoded and checked one by one.
    data = paths.data
    is_suspect = np.diff(paths.offsets) == 0
    if data.size:
        # An empty path at the end starts behind the last byte.
        starts = np.minimum(paths.offsets[:-1], data.size - 1)
        is_suspect |= data[starts] == ord("/")
        double_dots = np.flatnonzero((data[1:] == ord(".")) & (data[:-1] == ord(".")))
        bad_chars = np.flatnonzero((data == 0) | (data == ord("\\")))
        positions = np.concatenate([bad_chars, double_dots])
        is_suspect[np.searchsorted(paths.offsets, positions, side="right") - 1] = True
    for row in np.flatnonzero(is_suspect):
        check_relative(paths[int(row)])
