"""Columnar builder that readers fill, one row per image and object.

NOTE [Limits]
    Every row takes some bytes of an annotation file, so the number of rows needs no limit. A table, however, has
    one cell per object in every column of points and attributes: a few bytes can declare a thousand columns, which a
    file of a million objects turns into a thousand million cells. `Rows.check_cells` therefore allows as many cells
    as a small table has, or a number in proportion to the values in the files.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.folder import join_path
from lit_loader.annotations.formats.policy import ReadPolicy, allowed_actions
from lit_loader.annotations.formats.text_file import read_with_state
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import RunLengths
from lit_loader.annotations.places import DEFAULT_LISTS
from lit_loader.annotations.problems import Problem, ReadReport, shorten
from lit_loader.errors import AnnotationError, UnsafePathError

__all__ = [
    "BoxKind",
    "DeclaredNames",
    "FLAG_BITS",
    "MAX_COORDINATE",
    "MAX_NAME_CHARS",
    "MAX_POINTS",
    "OBJECT",
    "Rows",
    "append_column",
    "as_array",
    "wrong_attribute",
]

MAX_NAME_CHARS: Final = 256
"""Maximum length of the name of a class, a point, an attribute or an attribute value."""

MAX_POINTS: Final = 2_048
"""Most points that an object of a COCO or YOLO file may have."""

MAX_COORDINATE: Final = 1e28
"""Exclusive upper bound of the numbers of polygons and oriented boxes: a fraction times any image size fits float32.

Boxes and points only have to be finite in float32."""

_MAX_PIXELS: Final = 2**31 - 1
_EMPTY_MAPPING: Final[Mapping[str, Any]] = MappingProxyType({})
_OBJECT_FIELDS: Final = ("image", "label", "layout", "file", "line", "index", "kind", "flags")
_NO_STAMP: Final = (-1, 0)  # size and time of a file without a stamp; a real size is never negative
_FREE_CELLS: Final = 2**22  # see NOTE [Limits]
_CELLS_PER_VALUE: Final = 64


class BoxKind(IntEnum):
    """Source of an object's box: the file, its oriented box, its present points, its polygons, or the whole image.

    `lit_loader.annotations.formats.rules.point_boxes` gives the box around points.
    """

    GIVEN = 0
    AROUND_POINTS = 1
    WHOLE_IMAGE = 2
    AROUND_POLYGONS = 3
    AROUND_ORIENTED = 4


# A module constant, because looking up an enum member for every object is slow.
_GIVEN: Final = BoxKind.GIVEN


@dataclass(frozen=True, kw_only=True)
class DeclaredNames:
    """Names that a file lists, whether or not an object uses them.

    Attributes:
        class_names: Classes in the order of their ids; empty if the file lists none.
        class_ids: The file's own number of each class; empty if it has none.
        keypoints: Schema of an object's points, or None.
        attributes: Pairs of an attribute name and its values in order.
    """

    class_names: tuple[str, ...] = ()
    class_ids: tuple[int, ...] = ()
    keypoints: KeypointSchema | None = None
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()


FLAG_BITS: Final = {"difficult": 1, "truncated": 2, "occluded": 4, "crowd": 8}
"""Bit of each flag in the field ``flags`` of `OBJECT`."""

OBJECT: Final = np.dtype([("box", "f8", 4), *((name, "i4") for name in _OBJECT_FIELDS)])
"""Record of one object in memory.

- ``box``: xmin, ymin, xmax, ymax.
- ``image``: Image number.
- ``label``: Number of the class name, -1 if the object is left out.
- ``layout``: Number of the tuple of point names, -1 without points.
- ``file``: Number of the annotation file.
- ``line``: Line in the file, ``-1 - i`` for entry i of a list, or 0.
- ``index``: Position in the file, or -1.
- ``kind``: A `BoxKind`.
- ``flags``: Sum of the `FLAG_BITS` that are set.
"""

# Packing all fields of an object at once takes half the time of appending to one array per field.
_PACK: Final = Struct(f"4d{len(_OBJECT_FIELDS)}i")


@dataclass(slots=True)
class ImageColumns:
    """Columns with one row per image.

    Attributes:
        paths: Path relative to the root, not yet looked up on disk.
        ids: Id by which the annotations refer to the image.
        sizes: Width and height, flattened; 0 where the file has none.
        file_names: File name in the annotation, if the path is not taken from it; else "".
        files: Number of the annotation file.
        lines: Line in the annotation file, ``-1 - i`` for entry i of a list, or 0.
        source_ids: The file's own number of the image, or -1.
    """

    paths: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("i"))
    file_names: list[str] = field(default_factory=list)
    files: array[int] = field(default_factory=lambda: array("i"))
    lines: array[int] = field(default_factory=lambda: array("i"))
    source_ids: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class ObjectColumns:
    """Columns with one row per object, and the ragged columns that refer to those rows.

    Attributes:
        packed: `OBJECT` records.
        points: x and y of the points of all objects, concatenated.
        visibility: Visibility of the same points.
        attribute_rows: Object row of each attribute value.
        attribute_values: Number of each (attribute, value) pair.
        polygon_rows: Object row of each polygon.
        polygon_lengths: Number of values in each polygon.
        polygon_values: x, y, x, y, ... of all polygons, concatenated.
        run_lengths: Run-length masks by object row.
        corner_rows: Object row of each oriented box with four corners.
        corners: x, y, x, y, ... of the corners of these objects, concatenated.
        rotated_rows: Object row of each rotated box.
        rotated_boxes: Centre, width, height and angle of these objects, concatenated.
        object_ids: The file's own number of the object, or -1; may end at the last object that has one.
        areas: The file's own area of the object, or NaN; may end early like ``object_ids``.
    """

    packed: bytearray = field(default_factory=bytearray)
    points: array[float] = field(default_factory=lambda: array("f"))
    visibility: bytearray = field(default_factory=bytearray)
    attribute_rows: array[int] = field(default_factory=lambda: array("i"))
    attribute_values: array[int] = field(default_factory=lambda: array("i"))
    polygon_rows: array[int] = field(default_factory=lambda: array("i"))
    polygon_lengths: array[int] = field(default_factory=lambda: array("i"))
    polygon_values: array[float] = field(default_factory=lambda: array("f"))
    run_lengths: dict[int, RunLengths] = field(default_factory=dict)
    corner_rows: array[int] = field(default_factory=lambda: array("i"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    rotated_rows: array[int] = field(default_factory=lambda: array("i"))
    rotated_boxes: array[float] = field(default_factory=lambda: array("d"))
    object_ids: array[int] = field(default_factory=lambda: array("q"))
    areas: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        return len(self.packed) // _PACK.size

    def rows(self) -> npt.NDArray[np.void]:
        """Return the records as a view; no object can be added while the view exists."""
        return as_array(self.packed, OBJECT)


class Rows:
    """Builder to which a reader adds images, objects and problems, row by row.

    It is all that `lit_loader.annotations.formats.Reader.read` has to call. Adding rows never looks at the disk, so
    each worker process fills its own `Rows`, which the main process joins.

    Args:
        root: Folder of the data set, as a real absolute path.
        policy: What to do about problems.
        given_classes: Class names in the order of their ids as the caller passed them, or None.

    Attributes:
        report: Problems so far.
        split: Split that a file names, or None.
        y_up: True if y counts upwards from the lower edge of the image.
        stamps: Size and time (ns) of each file, concatenated in the order of ``files``; -1 and 0 without a stamp.
        raised: Error raised because the policy says ``"raise"``, or None.
        entry_lists: Names of the lists of images and of objects in a file, for places of entries.
        find_line: Function of an annotation file and an object's position in it that returns the object's line.
            It is called for reported objects only.
    """

    def __init__(self, root: Path, policy: ReadPolicy, given_classes: Sequence[str] | None = None) -> None:
        self.root = root
        self.policy = policy
        self.given_classes = given_classes
        self.files: dict[str, int] = {}
        self.stamps: array[int] = array("q")
        self.file = ""
        self.report = ReadReport()
        self.split: str | None = None
        self.y_up = False
        self._normalized = False
        self.images = ImageColumns()
        self.objects = ObjectColumns()
        self.declared: dict[DeclaredNames, list[int]] = {}  # with the numbers of the files that declare it
        self.class_names: dict[str, int] = {}
        self.layouts: dict[tuple[str, ...], int] = {}
        self.attribute_values: dict[tuple[str, str], int] = {}
        self.raised: AnnotationError | None = None
        self.entry_lists = DEFAULT_LISTS
        self.find_line: Callable[[str, int], int | None] = _unknown_line
        self._image_numbers: dict[str, int] = {}
        self._point_names: tuple[str, ...] = ()  # from the latest `declare`

    @property
    def file(self) -> str:
        """The annotation file being read, relative to the root; every problem is reported for it."""
        return self._file_name

    @file.setter
    def file(self, file: str) -> None:
        self._file_name = file
        self._file_number = self.files.setdefault(file, len(self.files))
        if 2 * self._file_number == len(self.stamps):
            self.stamps.extend(_NO_STAMP)

    def put_stamp(self, size: int, mtime_ns: int) -> None:
        """Record size and time (ns) of `file`, taken before it was read."""
        position = 2 * self._file_number
        self.stamps[position : position + 2] = array("q", (size, mtime_ns))

    def read_bytes(self, *, max_bytes: int) -> bytes:
        """Return the content of `file`, and record its stamp.

        Raises:
            AnnotationError: If it is not a regular file, cannot be read, or is larger than ``max_bytes``.
        """
        data, state = read_with_state(f"{self.root}/{self._file_name}", max_bytes=max_bytes)
        self.put_stamp(state.st_size, state.st_mtime_ns)
        return data

    def stamps_of(self, files: Sequence[str]) -> list[int] | None:
        """Return size and time (ns) of each file, concatenated, or None if a file has no stamp."""
        stamps = np.array(self.stamps, dtype=np.int64).reshape(-1, 2)
        # An unknown file gets the entry of "" (number 0), which never has a stamp.
        stamps = stamps[[self.files.get(file, 0) for file in files]]
        return None if (stamps[:, 0] < 0).any() else stamps.reshape(-1).tolist()

    def __getstate__(self) -> dict[str, Any]:
        # `join` rebuilds the index from the paths, so a worker does not have to send it.
        return {**vars(self), "_image_numbers": {}}

    @property
    def normalized(self) -> bool:
        """True if boxes and points are fractions of the image's width and height.

        Points are then stored as float64: a fraction rounded to float32 does not give back the same float32 pixel.
        """
        return self._normalized

    @normalized.setter
    def normalized(self, normalized: bool) -> None:
        self._normalized = normalized
        columns = self.objects
        if normalized and columns.points.typecode == "f":
            # A reader may set this after it has added objects.
            columns.points = array("d", columns.points)
            columns.polygon_values = array("d", columns.polygon_values)

    # -- adding rows -----------------------------------------------------------------------------------

    def declare(
        self,
        *,
        class_names: Sequence[str] = (),
        class_ids: Sequence[int] = (),
        keypoints: KeypointSchema | None = None,
        attributes: Mapping[str, Sequence[str]] = _EMPTY_MAPPING,
    ) -> None:
        """Record the names that this file lists, in its order.

        Names that only occur in objects are appended to the table's names later, sorted.

        Args:
            class_names: Classes in the order of their ids.
            class_ids: The file's own number of each class, such as COCO's ``category_id``.
            keypoints: Schema of an object's points. ``object(points=...)`` without ``point_names`` uses it until the
                next call, so every file with points either declares them or passes ``point_names`` each time.
            attributes: Possible values of each attribute.
        """
        declared = DeclaredNames(
            class_names=tuple(class_names),
            class_ids=tuple(class_ids),
            keypoints=keypoints,
            attributes=tuple((name, tuple(values)) for name, values in attributes.items()),
        )
        self.declared.setdefault(declared, []).append(self._file_number)
        # Objects of this file need not repeat the names.
        self._point_names = () if keypoints is None else keypoints.names

    def image(
        self,
        path: str,
        *,
        folder: str = ".",
        line: int | None = None,
        image_id: str | None = None,
        width: float = 0,
        height: float = 0,
        file_name: str = "",
        source_id: int | None = None,
    ) -> int:
        """Add an image and return its number; a path added before returns its first number and keeps its first values.

        A path without an image extension means the first existing file with one of the known extensions.

        Args:
            path: Path in the file, relative to ``folder``; not trusted.
            folder: Folder relative to the root, "." for the root; trusted.
            line: Line in the file, or ``-1 - i`` for entry i of a list, which ``find_line`` converts to a line.
            image_id: Id by which the annotations refer to the image; default: ``path``.
            width: Pixels, 0 if unknown.
            height: Pixels, 0 if unknown.
            file_name: Image file name in the annotation, if ``path`` was built from an id and has no extension.
            source_id: The file's own number of the image, such as COCO's ``id``.

        Raises:
            UnsafePathError: If the path leads out of the root.
        """
        try:
            # The path is checked before anything is stored.
            joined = join_path(folder, path)
        except UnsafePathError as error:
            # A negative number is a position for which the line must be looked up.
            if line is not None and line < 0:
                line = self.find_line(self.file, line)
            raise UnsafePathError(error.message, path=self.root / self.file, line=line) from None
        number = self._image_numbers.get(joined)
        # Annotations of one image may be spread over several lines or files.
        if number is not None:
            return number
        images = self.images
        number = len(images.paths)
        self._image_numbers[joined] = number
        images.paths.append(joined)
        images.ids.append(path if image_id is None else image_id)
        images.sizes.extend(self._size(width, height, line))
        images.file_names.append(file_name)
        images.files.append(self._file_number)
        images.lines.append(line or 0)
        # A JSON file may have integers of any size, an array of int64 may not.
        if source_id is not None and not -(2**63) <= source_id < 2**63:
            self.not_read("ids of more than 64 bits")
            source_id = None
        images.source_ids.append(-1 if source_id is None else source_id)
        return number

    def object(
        self,
        image: int,
        *,
        class_name: str,
        box: Sequence[float] | None,
        points: npt.ArrayLike | None = None,
        visibility: npt.ArrayLike | None = None,
        point_names: tuple[str, ...] | None = None,
        attributes: Mapping[str, str] = _EMPTY_MAPPING,
        difficult: bool = False,
        truncated: bool = False,
        occluded: bool = False,
        crowd: bool = False,
        polygons: Sequence[Sequence[float]] = (),
        run_lengths: RunLengths | None = None,
        oriented: Sequence[float] = (),
        object_id: int | None = None,
        area: float | None = None,
        line: int | None = None,
        index: int | None = None,
    ) -> None:
        """Add an object.

        Args:
            image: Number from `image`.
            class_name: Class of the object.
            box: xmin, ymin, xmax, ymax in pixels (or fractions), or None for a box as in `BoxKind`.
            points: ``(K, 2)``, one row per name, or None if all points are absent.
            visibility: ``(K,)`` 0 absent, 1 hidden, 2 visible, or None if all points are visible.
            point_names: K names, or None for the names that the file declared.
            attributes: Further values by name.
            difficult: Flag.
            truncated: Flag.
            occluded: Flag.
            crowd: Flag.
            polygons: Mask as polygons: x, y, x, y, ... of at least three points in pixels (or fractions).
            run_lengths: Mask as run lengths.
            oriented: Oriented box: x and y of its four corners in order, in pixels (or fractions), or centre x and y,
                width, height in pixels and angle in degrees, as in the table's ``rotated_boxes``; empty without one.
            object_id: The file's own number of the object, such as COCO's ``id``, of 64 bits.
            area: The file's own area in square pixels.
            line: Line in the file, or ``-1 - i`` for entry i of a list.
            index: Position of the object in the file, from 0, where it locates the object better than a line.

        Raises:
            ValueError: If points, names and visibility differ in length, the box does not have four numbers, or the
                oriented box neither eight nor five.
            AnnotationError: If a name, a polygon or an oriented box is invalid and the policy says ``"raise"``.
        """
        label = self.class_names.get(class_name, -1)
        # Most objects have nothing new to check, and then this is faster than a call.
        has_unchecked = label < 0 or attributes or polygons or oriented
        if has_unchecked and (error := self._object_error(class_name, label, attributes, polygons, oriented)):
            self.malformed(error, line=line, index=index)
            return
        layout = -1 if points is None else self._add_points(point_names, points, visibility)
        kind = _GIVEN if box is not None else _kind_without_box(points, polygons, oriented)
        box = (0, 0, 0, 0) if box is None else box
        if len(box) != 4:
            raise ValueError(f"expected a box of 4 numbers, got {len(box)}")
        if label < 0:
            label = self.class_names.setdefault(class_name, len(self.class_names))
        # Most objects have no flag, and testing for one takes half the time of the sum.
        has_flag = difficult or truncated or occluded or crowd
        flags = difficult | truncated << 1 | occluded << 2 | crowd << 3 if has_flag else 0
        if polygons:
            self._add_polygons(len(self.objects), polygons)
        if attributes:
            self.add_attributes(len(self.objects), attributes)
        if oriented:
            rotated = len(oriented) == 5
            (self.objects.rotated_rows if rotated else self.objects.corner_rows).append(len(self.objects))
            (self.objects.rotated_boxes if rotated else self.objects.corners).extend(oriented)
        if run_lengths is not None:
            self.objects.run_lengths[len(self.objects)] = run_lengths
        if object_id is not None:
            append_column(self.objects.object_ids, len(self.objects), [object_id], missing=-1)
        if area is not None:
            append_column(self.objects.areas, len(self.objects), [area], missing=math.nan)
        numbers = (image, label, layout, self._file_number, line or 0, -1 if index is None else index, kind, flags)
        self.objects.packed += _PACK.pack(*box, *numbers)

    def _object_error(
        self,
        class_name: str,
        label: int,
        attributes: Mapping[str, str],
        polygons: Sequence[Sequence[float]],
        oriented: Sequence[float],
    ) -> str | None:
        """Return a message if a name, a polygon or the oriented box of an object is invalid, else None."""
        # A name is checked at its first occurrence only; later ones are found in the dicts.
        error = _name_error("class", class_name) if label < 0 else None
        for pair in attributes.items():
            if pair not in self.attribute_values:
                error = error or wrong_attribute(*pair)
        return error or _polygons_error(polygons) or _oriented_error(oriented)

    def malformed(self, message: str, *, line: int | None = None, index: int | None = None) -> None:
        """Report an entry that violates its format, or raise, as the policy says."""
        self.problem("malformed", self.policy.malformed, message, line=line, index=index)

    def problem(
        self,
        kind: str,
        action: str,
        message: str,
        *,
        line: int | None = None,
        index: int | None = None,
        image: str | None = None,
    ) -> None:
        """Add a problem to the report.

        Args:
            kind: Kind of the problem.
            action: Action of the reader.
            message: The wrong value and the rule.
            line: Line in the current file, from 1, or -1 - i for entry i of its list of images, or None.
            index: Position of the object in the file, or None.
            image: Path of the image, or None.

        Raises:
            AnnotationError: If ``action`` is ``"raise"``; names file and line.
        """
        # Finding the line may mean parsing the file again, so it is skipped if the report would not keep the detail.
        if action != "raise" and not self.report.keeps_detail(kind, action):
            self.report.add_count(kind, action, 1)
            return
        entry = None
        if line is None or line < 0:
            # As in the places of the table.
            if line is not None:
                entry = f"{self.entry_lists[0]}[{-1 - line}]"
            elif index is not None:
                entry = f"{self.entry_lists[1]}[{index}]"
            position = index if line is None else line
            line = None if position is None else self.find_line(self.file, position)
        if action == "raise":
            # The object's position helps in files of one long line.
            text = "" if index is None else f"object {index}: "
            other_actions = [name for name in allowed_actions().get(kind, ()) if name != "raise"]
            # The user chooses if there are several.
            settings = {f"policy.{kind}": other_actions[0] if len(other_actions) == 1 else ...}
            path = self.root / self.file
            self.raised = AnnotationError(text + message, path=path, line=line, remedy="correct it", settings=settings)
            raise self.raised
        self.report.add(
            Problem(
                kind=kind,
                action=action,
                file=self.file,
                message=shorten(message),
                line=line,
                object_index=index,
                entry=entry,
                image=image,
            )
        )

    def not_read(self, name: str, count: int = 1) -> None:
        """Count values that have no column in the table, by their name in the format."""
        if count:
            self.report.add_count(name, "not read", count)

    # -- joining --------------------------------------------------------------------------------------------

    def join(self, other: Rows) -> None:
        """Append the rows that another process has read; ``other`` must not be used afterwards."""
        # Assigning to both converts the points of both to float64 before they are concatenated.
        self.normalized = self.normalized or other.normalized
        other.normalized = self.normalized
        objects = self.objects
        first_object = len(self.objects)
        first_file = len(self.files)
        files = _number_names(self.files, other.files)
        self.stamps.frombytes(as_array(other.stamps, "2i8")[files >= first_file].tobytes())
        # Records are appended first and then renumbered in place, through a view.
        objects.packed += other.objects.packed
        added = objects.rows()[first_object:]
        added["image"] = self._join_images(other, files)[added["image"]]
        # Index -1, which means none, selects the appended -1.
        added["label"] = np.append(_number_names(self.class_names, other.class_names), -1)[added["label"]]
        added["layout"] = np.append(_number_names(self.layouts, other.layouts), -1)[added["layout"]]
        added["file"] = files[added["file"]]
        for name in ("points", "visibility", "polygon_lengths", "polygon_values", "corners", "rotated_boxes"):
            # These columns have no numbers that refer to other columns.
            getattr(objects, name).extend(getattr(other.objects, name))
        # These columns hold numbers of objects, which move behind the objects here.
        for name in ("polygon_rows", "attribute_rows", "corner_rows", "rotated_rows"):
            getattr(objects, name).extend(first_object + row for row in getattr(other.objects, name))
        objects.run_lengths |= {first_object + row: runs for row, runs in other.objects.run_lengths.items()}
        # Short columns are filled up to the first object of ``other``.
        append_column(objects.object_ids, first_object, other.objects.object_ids, missing=-1)
        append_column(objects.areas, first_object, other.objects.areas, missing=math.nan)
        pair_numbers = _number_names(self.attribute_values, other.attribute_values)
        objects.attribute_values.frombytes(pair_numbers[as_array(other.objects.attribute_values)].tobytes())
        for declared, file_numbers in other.declared.items():
            self.declared.setdefault(declared, []).extend(files[file_numbers].tolist())
        self.report.merge(other.report)
        # The first file that names a split wins, as in one process.
        self.split = self.split or other.split
        self.y_up = self.y_up or other.y_up

    def _join_images(self, other: Rows, files: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Append the images of ``other`` that are new, and return the number of each of its images here."""
        images = self.images
        added = other.images
        # Unpickled `Rows` come without their index.
        self._image_numbers = self._image_numbers or {path: number for number, path in enumerate(images.paths)}
        num_images = len(images.paths)
        numbers = _number_names(self._image_numbers, added.paths)
        is_new = (numbers >= num_images).tolist()
        for name in ("paths", "ids", "file_names", "lines", "source_ids"):
            getattr(images, name).extend(compress(getattr(added, name), is_new))
        images.files.frombytes(files[as_array(added.files)[is_new]].tobytes())
        images.sizes.frombytes(as_array(added.sizes).reshape(-1, 2)[is_new].tobytes())
        return numbers

    def check_cells(self, kind: str, *, num_names: int, num_values: int) -> None:
        """Refuse a table that would be far larger than its files; see NOTE [Limits].

        Args:
            kind: "keypoints" or "attributes".
            num_names: Number of columns in the table.
            num_values: Number of values in the files.

        Raises:
            AnnotationError: If the table would have too many cells.
        """
        # A table has a cell for each object and name, even where no object has a value.
        num_objects = len(self.objects)
        if num_names * num_objects > max(_FREE_CELLS, _CELLS_PER_VALUE * num_values):
            cells = f"{kind}: {num_names} names for {num_objects} objects with only {num_values} values"
            problem = f"{cells} would make a table far larger than its files"
            remedy = f"correct the names, or pass {kind}=False"
            raise AnnotationError(problem, path=self.root / self.file, remedy=remedy)

    def add_attributes(self, row: int, attributes: Mapping[str, str]) -> None:
        """Add attribute values, already checked, to the object in a row."""
        numbers = self.attribute_values
        # Most objects share few pairs, so a pair is stored as a number.
        for pair in attributes.items():
            self.objects.attribute_rows.append(row)
            self.objects.attribute_values.append(numbers.setdefault(pair, len(numbers)))

    def _add_polygons(self, row: int, polygons: Sequence[Sequence[float]]) -> None:
        for polygon in polygons:
            self.objects.polygon_rows.append(row)
            self.objects.polygon_lengths.append(len(polygon))
            self.objects.polygon_values.extend(polygon)

    def _add_points(
        self, names: tuple[str, ...] | None, points: npt.ArrayLike, visibility: npt.ArrayLike | None
    ) -> int:
        """Add the points of the next object, and return the number of their layout."""
        names = self._point_names if names is None else names
        num_points = len(names)
        xy = np.asarray(points, dtype=np.float64)
        flags = np.asarray(np.full(num_points, 2) if visibility is None else visibility, dtype=np.uint8)
        # A mismatch is a mistake in the reader, not in a file.
        if not names or xy.shape != (num_points, 2) or flags.shape != (num_points,):
            expected = f"points ({num_points}, 2) and visibility ({num_points},) for {num_points} names, at least one"
            raise ValueError(f"expected {expected}, got points {xy.shape} and visibility {flags.shape}")
        # A coordinate beyond float32 becomes infinite here; the policy's invalid_keypoint decides on it later.
        with np.errstate(over="ignore"):
            self.objects.points.frombytes(xy.astype(self.objects.points.typecode).tobytes())
        # Stored flat: objects may have different numbers of points until their file's schema is united with others.
        self.objects.visibility += flags.tobytes()
        return self.layouts.setdefault(names, len(self.layouts))

    def _size(self, width: float, height: float, line: int | None) -> tuple[int, int]:
        # NaN fails the comparisons.
        if 1 <= width <= _MAX_PIXELS and 1 <= height <= _MAX_PIXELS and width % 1 == height % 1 == 0:
            return int(width), int(height)
        # Without any size there is nothing to report: the format may not have sizes.
        if width or height:
            message = f"image size must be two whole numbers >= 1, got {str(width)[:30]} x {str(height)[:30]}"
            self.problem("bad_size", self.policy.bad_size, message, line=line)
        return 0, 0


def _kind_without_box(
    points: npt.ArrayLike | None, polygons: Sequence[Sequence[float]], oriented: Sequence[float]
) -> BoxKind:
    if oriented:
        return BoxKind.AROUND_ORIENTED
    if points is not None:
        return BoxKind.AROUND_POINTS
    return BoxKind.AROUND_POLYGONS if polygons else BoxKind.WHOLE_IMAGE


def _unknown_line(file: str, index: int) -> None:
    return None


def _name_error(kind: str, name: str) -> str | None:
    if 0 < len(name) <= MAX_NAME_CHARS:
        return None
    return f"the name of the {kind} has {len(name)} characters; 1 to {MAX_NAME_CHARS} are allowed"


def wrong_attribute(name: str, value: str) -> str | None:
    """Return a message if the name of an attribute or of its value is too long or empty, else None."""
    return _name_error("attribute", name) or _name_error(f"attribute {name!r}", value)


def _polygons_error(polygons: Sequence[Sequence[float]]) -> str | None:
    """Return a message if a polygon is invalid, else None."""
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            return f"a polygon must have x and y of at least 3 points, got {len(polygon)} numbers"
        if not all(abs(value) < MAX_COORDINATE for value in polygon):  # False for NaN, so do not invert it
            return f"a polygon has a coordinate that is not finite or beyond {MAX_COORDINATE:g}"
    return None


def _oriented_error(oriented: Sequence[float]) -> str | None:
    """Return a message if an oriented box is invalid, else None."""
    # Another number of values is a mistake in the reader, not in a file.
    if len(oriented) not in (0, 5, 8):
        raise ValueError(f"expected an oriented box of 8 or 5 numbers, got {len(oriented)}")
    if not all(abs(value) < MAX_COORDINATE for value in oriented):  # False for NaN, so do not invert it
        return f"an oriented box has a number that is not finite or beyond {MAX_COORDINATE:g}"
    if len(oriented) == 5 and min(oriented[2:4]) < 0:
        return f"an oriented box has width {oriented[2]:g} and height {oriented[3]:g}, one of them negative"
    return None


def append_column(column: array[Any], first: int, values: npt.ArrayLike, *, missing: float) -> None:
    """Append the values of objects from row ``first`` on; earlier rows without a value get ``missing``."""
    added = np.asarray(values, dtype=column.typecode)
    if added.size:
        column.extend([missing] * (first - len(column)))
        column.frombytes(added.tobytes())


def _number_names(numbers: dict[Any, int], names: Iterable[Any]) -> npt.NDArray[np.int32]:
    """Return the number of each name; new names are added with the next numbers."""
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int32)


def as_array(column: Any, dtype: Any = np.int32) -> npt.NDArray[Any]:
    """Return a column as an array view; the column cannot grow while the view exists."""
    # An empty column gets no view, so that it can still grow.
    return np.frombuffer(column, dtype=dtype) if len(column) else np.zeros(0, dtype=dtype)
