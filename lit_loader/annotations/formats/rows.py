"""What readers find, kept as columns: images, objects, points, attributes, masks, and names that files declare.

NOTE [Limits]
    Every row comes from some bytes of an annotation file, so rows need no limit of their own. A table, however, has a
    cell for every object in each column of points and attributes. A file of a few bytes could make a thousand columns,
    and one of a million objects then a thousand million cells. `Rows.check_cells` allows as many cells as a small table
    has, or in proportion to the values that were written.
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
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.text_file import read_with_state
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import RunLengths
from lit_loader.annotations.problems import Problem, ReadReport, shorten
from lit_loader.errors import AnnotationError, UnsafePathError

__all__ = [
    "BoxKind",
    "Declared",
    "MAX_COORDINATE",
    "MAX_NAME_CHARS",
    "OBJECT",
    "Rows",
    "append_column",
    "as_array",
    "wrong_attribute",
]

MAX_NAME_CHARS: Final = 256
"""The longest name of a class, a point, an attribute or one of its values."""

MAX_COORDINATE: Final = 1e28
"""Coordinates of polygons are smaller, so that fractions of any image give float32; boxes and points only have to be
finite in float32."""

_MAX_PIXELS: Final = 2**31 - 1
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_OF_OBJECT: Final = ("image", "label", "layout", "file", "line", "index", "kind", "flags")
_NO_STAMP: Final = (-1, 0)
_FREE_CELLS: Final = 2**22
_CELLS_PER_VALUE: Final = 64


class BoxKind(IntEnum):
    """Where an object's box comes from."""

    GIVEN = 0
    AROUND_POINTS = 1
    WHOLE_IMAGE = 2
    AROUND_POLYGONS = 3


_GIVEN: Final = BoxKind.GIVEN


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Names that a file lists, whether they occur in it or not.

    Attributes:
        class_names: Classes in the order of their ids, or empty if the file lists none.
        class_ids: The number that the file gives each of them, or empty.
        keypoints: The points of an object, or None.
        attributes: Pairs of an attribute's name and its values in order.
    """

    class_names: tuple[str, ...] = ()
    class_ids: tuple[int, ...] = ()
    keypoints: KeypointSchema | None = None
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()


OBJECT: Final = np.dtype([("box", "f8", 4), *((name, "i4") for name in _OF_OBJECT)])
"""An object in memory.

Its box; the numbers of its image, its class name (-1 if it is left out), the tuple of names that its points have
(-1 without points) and its annotation file; the line there or 0, and its position there or -1; a `BoxKind`; bits of
flags: 1 difficult, 2 truncated, 4 occluded, 8 crowd.
"""

_PACK: Final = Struct(f"4d{len(_OF_OBJECT)}i")  # takes half the time of a column each


@dataclass(slots=True)
class ImageColumns:
    """A row for each image.

    Attributes:
        paths: Relative to the root, not looked up yet.
        ids: What the annotations call the image.
        sizes: Width and height of each, 0 where the file has none.
        file_names: What the file itself calls the image's file, where the path comes from elsewhere; else "".
        files: Number of the annotation file.
        lines: Line in it, or 0.
        source_ids: Number that the file gives it, or -1; as long as the last image that has one.
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
    """A row for each object.

    Attributes:
        packed: The rows as `OBJECT` has them.
        points: x and y of the points of all objects, one after the other.
        visibility: Of these points.
        attribute_rows: The object of each value of an attribute.
        attribute_values: Number of each pair of an attribute and its value.
        polygon_rows: The object of each polygon.
        polygon_lengths: Values of each polygon.
        polygon_values: x, y, x, y, ... of all polygons, one after the other.
        run_lengths: Masks given as run lengths, by object.
        object_ids: Number that the file gives it, or -1; as long as the last object that has one.
        areas: Area that the file gives it, or NaN; as ``object_ids``.
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
    object_ids: array[int] = field(default_factory=lambda: array("q"))
    areas: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        return len(self.packed) // _PACK.size

    def rows(self) -> npt.NDArray[np.void]:
        """Return the rows; none can be added while the array is there."""
        return as_array(self.packed, OBJECT)


class Rows:
    """What a reader adds to, row by row: the only thing that `lit_loader.annotations.formats.Reader.read` has to call.

    Nothing is looked up on disk here, so worker processes fill `Rows` of their own, which are joined afterwards.

    Args:
        root: The data set's folder, real and absolute.
        policy: What to do about problems.
        given_classes: The classes in the order of their ids as the caller gives them, or None.

    Attributes:
        report: Problems so far.
        split: The split that a file names, or None.
        y_up: Whether y counts from the lower edge of the image upwards.
        raised: The error that the policy has made of a problem, or None.
        find_line: Returns the line of an object by its file and its position there, for what is reported.
    """

    def __init__(self, root: Path, policy: ReadPolicy, given_classes: Sequence[str] | None = None) -> None:
        self.root, self.policy, self.given_classes = root, policy, given_classes
        self.files: dict[str, int] = {}
        self._stamps: array[int] | None = None
        self.file = ""
        self.report = ReadReport()
        self.split: str | None = None
        self.y_up = self._normalized = False
        self.images, self.objects = ImageColumns(), ObjectColumns()
        self.declared: dict[Declared, list[int]] = {}  # with the files that declare it
        self.class_names: dict[str, int] = {}
        self.layouts: dict[tuple[str, ...], int] = {}
        self.attribute_values: dict[tuple[str, str], int] = {}
        self.raised: AnnotationError | None = None
        self.find_line: Callable[[str, int], int | None] = _unknown_line
        self._image_of: dict[str, int] = {}
        self._names: tuple[str, ...] = ()  # of points, as declared last

    @property
    def file(self) -> str:
        """The annotation file that is read now, relative to the root: the place of every problem."""
        return self._name_of_file

    @file.setter
    def file(self, file: str) -> None:
        self._name_of_file, self._file = file, self.files.setdefault(file, len(self.files))
        if self._stamps is not None and 2 * self._file == len(self._stamps):
            self._stamps.extend(_NO_STAMP)

    def start_stamps(self) -> None:
        """Keep the stamps of files that `put_stamp` and `read_bytes` note from now on."""
        self._stamps = array("q", _NO_STAMP * len(self.files))

    def put_stamp(self, size: int, mtime_ns: int) -> None:
        """Note size and time (ns) of `file` as they were before it was read, if stamps are kept."""
        if self._stamps is not None:
            self._stamps[2 * self._file], self._stamps[2 * self._file + 1] = size, mtime_ns

    def read_bytes(self, *, max_bytes: int) -> bytes:
        """Return the whole of `file`, and note its stamp.

        Raises:
            AnnotationError: If it is not a regular file, cannot be read, or is larger than ``max_bytes``.
        """
        data, state = read_with_state(f"{self.root}/{self._name_of_file}", max_bytes=max_bytes)
        self.put_stamp(state.st_size, state.st_mtime_ns)
        return data

    def stamps_of(self, files: Sequence[str]) -> list[int] | None:
        """Return size and time (ns) of each file, one after the other, or None if a file has no stamp."""
        if self._stamps is None:
            return None
        stamps = np.frombuffer(self._stamps, dtype=np.int64).reshape(-1, 2)
        stamps = stamps[[self.files.get(file, 0) for file in files]]  # that of "" is none
        return None if (stamps[:, 0] < 0).any() else stamps.reshape(-1).tolist()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_image_of": {}}  # `join` makes it again where it is needed

    @property
    def normalized(self) -> bool:
        """Whether boxes and points are fractions of the image's width and height.

        Points are then kept in float64, since a fraction in float32 does not give the pixel in float32 again.
        """
        return self._normalized

    @normalized.setter
    def normalized(self, normalized: bool) -> None:
        self._normalized, columns = normalized, self.objects
        if normalized and columns.points.typecode == "f":
            columns.points = array("d", columns.points)
            columns.polygon_values = array("d", columns.polygon_values)

    # -- what a file says -----------------------------------------------------------------------------------

    def declare(
        self,
        *,
        class_names: Sequence[str] = (),
        class_ids: Sequence[int] = (),
        keypoints: KeypointSchema | None = None,
        attributes: Mapping[str, Sequence[str]] = _NONE,
    ) -> None:
        """Note names that this file lists, in its order; what occurs besides is appended, sorted.

        Args:
            class_names: Classes in the order of their ids.
            class_ids: The number that the file gives each of them, as COCO's ``category_id``.
            keypoints: The points of an object. ``object(points=...)`` without ``point_names`` means these,
                until another file declares its own; so a file with points declares them, or names them each time.
            attributes: For each attribute the values that it can have.
        """
        listed = tuple((name, tuple(values)) for name, values in attributes.items())
        classes, ids = tuple(class_names), tuple(class_ids)
        declared = Declared(class_names=classes, class_ids=ids, keypoints=keypoints, attributes=listed)
        self.declared.setdefault(declared, []).append(self._file)
        self._names = () if keypoints is None else keypoints.names

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
        """Return the number of an image; the same path again is the same image, with its first values.

        A path without an image's ending means the first file that has one.

        Args:
            path: As the file has it, relative to ``folder``; not trusted.
            folder: Folder relative to the root, "." for the root; trusted.
            line: Line in the file, or a number below 0 that ``find_line`` makes one of.
            image_id: What the annotations call the image; by default ``path``.
            width: Pixels, 0 if unknown.
            height: Pixels, 0 if unknown.
            file_name: What the file calls the image's file, if ``path`` was made of an id and has no ending.
            source_id: Number that the file gives the image, as COCO's ``id``.

        Raises:
            UnsafePathError: If the path leads out of the root.
        """
        try:
            joined = join_path(folder, path)
        except UnsafePathError as error:
            if line is not None and line < 0:
                line = self.find_line(self.file, line)
            raise UnsafePathError(error.message, path=self.root / self.file, line=line) from None
        number = self._image_of.get(joined)
        if number is not None:
            return number
        images = self.images
        number = self._image_of[joined] = len(images.paths)
        images.paths.append(joined)
        images.ids.append(path if image_id is None else image_id)
        images.sizes.extend(self._size(width, height, line))
        images.file_names.append(file_name)
        images.files.append(self._file)
        images.lines.append(line or 0)
        if source_id is not None:
            self._put_id(images.source_ids, number, source_id)
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
        attributes: Mapping[str, str] = _NONE,
        difficult: bool = False,
        truncated: bool = False,
        occluded: bool = False,
        crowd: bool = False,
        polygons: Sequence[Sequence[float]] = (),
        run_lengths: RunLengths | None = None,
        object_id: int | None = None,
        area: float | None = None,
        line: int | None = None,
        index: int | None = None,
    ) -> None:
        """Add an object.

        Args:
            image: What `image` returned.
            class_name: Its class.
            box: xmin, ymin, xmax, ymax in pixels (or fractions). None for the box around the points that are
                present (see `lit_loader.annotations.formats.rules.point_boxes`), without points around the polygons,
                and without these the whole image.
            points: ``(K, 2)``, one row for each name, or None if all are absent.
            visibility: ``(K,)`` 0 absent, 1 hidden, 2 visible, or None if all are visible.
            point_names: K names, or None for those that the file has declared.
            attributes: Further values by name.
            difficult: Flag.
            truncated: Flag.
            occluded: Flag.
            crowd: Flag.
            polygons: Its mask: x, y, x, y, ... of each part, at least three points in pixels (or fractions).
            run_lengths: Its mask, if it is given so.
            object_id: Number that the file gives the object, as COCO's ``id``.
            area: Square pixels as the file has it.
            line: Line in the file.
            index: Position of the object in the file, counted from 0, where that helps more than a line.

        Raises:
            ValueError: If points, names and visibility do not fit each other, or the box has not four numbers.
            AnnotationError: If a name is empty or too long, or a polygon is none, and the policy says ``"raise"``.
        """
        label, numbers = self.class_names.get(class_name), self.attribute_values
        wrong = None if label is not None else _wrong_name("class", class_name)
        if attributes:
            for pair in attributes.items():
                if wrong is None and pair not in numbers:
                    wrong = wrong_attribute(*pair)
        if polygons:
            wrong = wrong or _wrong_polygons(polygons)
        if wrong:
            self.malformed(wrong, line=line, index=index)
            return
        objects, layout, kind = self.objects, -1, _GIVEN
        if points is not None:
            names = self._names if point_names is None else point_names
            self._add_points(names, points, visibility)
            layout = self.layouts.setdefault(names, len(self.layouts))
        if box is None:
            box = (0, 0, 0, 0)
            without_points = BoxKind.AROUND_POLYGONS if polygons else BoxKind.WHOLE_IMAGE
            kind = without_points if points is None else BoxKind.AROUND_POINTS
        if label is None:
            label = self.class_names[class_name] = len(self.class_names)
        flags = difficult | truncated << 1 | occluded << 2 | crowd << 3
        index = -1 if index is None else index
        if len(box) != 4:
            raise ValueError(f"a box has 4 numbers, got {len(box)}")
        objects.packed += _PACK.pack(*box, image, label, layout, self._file, line or 0, index, kind, flags)
        if not (
            polygons or attributes or object_id is not None or area is not None or run_lengths is not None
        ):
            return
        row = len(objects) - 1
        for polygon in polygons:
            objects.polygon_rows.append(row)
            objects.polygon_lengths.append(len(polygon))
            objects.polygon_values.extend(polygon)
        if run_lengths is not None:
            objects.run_lengths[row] = run_lengths
        if object_id is not None:
            self._put_id(objects.object_ids, row, object_id)
        if area is not None:
            _put(objects.areas, row, area, missing=math.nan)
        if attributes:
            self.add_attributes(row, attributes)

    def malformed(self, message: str, *, line: int | None = None, index: int | None = None) -> None:
        """Report something that is not as its format asks, or raise, as the policy says."""
        self.problem("malformed", self.policy.malformed, message, line=line, index=index)

    def problem(
        self, kind: str, action: str, message: str, *, line: int | None = None, index: int | None = None
    ) -> None:
        """Add a problem to the report.

        Raises:
            AnnotationError: If ``action`` is ``"raise"``; names file and line.
        """
        if action != "raise" and not self.report.keeps_detail(kind, action):
            self.report.add_count(kind, action, 1)
            return
        if line is None or line < 0:
            place = index if line is None else line
            line = None if place is None else self.find_line(self.file, place)
        if action == "raise":
            text = "" if index is None else f"object {index}: "
            text += f"{message}; correct it, or choose ReadPolicy({kind}=...)"
            self.raised = AnnotationError(text, path=self.root / self.file, line=line)
            raise self.raised
        where = {"file": self.file, "message": shorten(message)}
        self.report.add(Problem(kind=kind, action=action, line=line, object_index=index, **where))

    def not_read(self, what: str, count: int = 1) -> None:
        """Count something that a file holds and the table has no column for, by its name in the format."""
        if count:
            self.report.add_count(what, "not read", count)

    def _put_id(self, column: array[int], row: int, number: int) -> None:
        if -(2**63) <= number < 2**63:
            _put(column, row, number, missing=-1)
        else:
            self.not_read("ids of more than 64 bits")

    # -- joining --------------------------------------------------------------------------------------------

    def join(self, other: Rows) -> None:
        """Append what another process has read."""
        self.normalized = other.normalized = self.normalized or other.normalized
        objects, first_object = self.objects, len(self.objects)
        first_file = len(self.files)
        files = _lookup(self.files, other.files)
        if self._stamps is not None and other._stamps is not None:
            stamps = np.frombuffer(other._stamps, dtype=np.int64).reshape(-1, 2)
            self._stamps.frombytes(stamps[files >= first_file].tobytes())
        objects.packed += other.objects.packed
        theirs = objects.rows()[first_object:]
        theirs["image"] = self._join_images(other, files)[theirs["image"]]
        theirs["label"] = np.append(_lookup(self.class_names, other.class_names), -1)[theirs["label"]]
        theirs["layout"] = np.append(_lookup(self.layouts, other.layouts), -1)[theirs["layout"]]
        theirs["file"] = files[theirs["file"]]
        for name in ("points", "visibility", "polygon_lengths", "polygon_values"):
            getattr(objects, name).extend(getattr(other.objects, name))
        objects.polygon_rows.extend(first_object + row for row in other.objects.polygon_rows)
        objects.run_lengths |= {first_object + row: runs for row, runs in other.objects.run_lengths.items()}
        append_column(objects.object_ids, first_object, other.objects.object_ids, missing=-1)
        append_column(objects.areas, first_object, other.objects.areas, missing=math.nan)
        objects.attribute_rows.extend(first_object + row for row in other.objects.attribute_rows)
        values = _lookup(self.attribute_values, other.attribute_values)
        objects.attribute_values.frombytes(values[as_array(other.objects.attribute_values)].tobytes())
        for declared, numbers in other.declared.items():
            self.declared.setdefault(declared, []).extend(files[numbers].tolist())
        self.report.merge(other.report)
        self.split = self.split or other.split
        self.y_up = self.y_up or other.y_up

    def _join_images(self, other: Rows, files: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Append the images that are not here yet, and return the number of each here."""
        mine, added = self.images, other.images
        self._image_of = self._image_of or {path: number for number, path in enumerate(mine.paths)}
        first = len(mine.paths)
        numbers = _lookup(self._image_of, added.paths)
        is_new = (numbers >= first).tolist()
        for name in ("paths", "ids", "file_names", "lines"):
            getattr(mine, name).extend(compress(getattr(added, name), is_new))
        for number, source_id in zip(
            numbers[is_new].tolist(), compress(added.source_ids, is_new), strict=False
        ):
            _put(mine.source_ids, number, source_id, missing=-1)
        mine.files.frombytes(files[as_array(added.files)[is_new]].tobytes())
        mine.sizes.frombytes(as_array(added.sizes).reshape(-1, 2)[is_new].tobytes())
        return numbers

    def check_cells(self, what: str, *, names: int, written: int) -> None:
        """Refuse a table that would be far larger than its files: see NOTE [Limits].

        Args:
            what: "keypoints" or "attributes".
            names: How many columns there would be.
            written: How many values the files hold.

        Raises:
            AnnotationError: If so.
        """
        objects = len(self.objects)
        if names * objects > max(_FREE_CELLS, _CELLS_PER_VALUE * written):
            message = f"{what}: {names} names for {objects} objects, with {written} values in all, would make a table"
            message += f" far larger than its files; correct the names, or pass {what}=False"
            raise AnnotationError(message, path=self.root / self.file)

    def add_attributes(self, row: int, attributes: Mapping[str, str]) -> None:
        """Give the object with a number values of attributes; `object` does, and checks them before."""
        numbers = self.attribute_values
        for pair in attributes.items():
            self.objects.attribute_rows.append(row)
            self.objects.attribute_values.append(numbers.setdefault(pair, len(numbers)))

    def _add_points(
        self, names: tuple[str, ...], points: npt.ArrayLike, visibility: npt.ArrayLike | None
    ) -> None:
        places, count = np.asarray(points, dtype=np.float64), len(names)
        seen = np.full(count, 2, np.uint8) if visibility is None else np.asarray(visibility, dtype=np.uint8)
        if not names or places.shape != (count, 2) or seen.shape != (count,):
            shapes = f"points {places.shape} and visibility {seen.shape}"
            raise ValueError(f"{shapes} must be those of {count} names")
        with np.errstate(over="ignore"):
            self.objects.points.frombytes(places.astype(self.objects.points.typecode).tobytes())
        self.objects.visibility += seen.tobytes()

    def _size(self, width: float, height: float, line: int | None) -> tuple[int, int]:
        if 1 <= width <= _MAX_PIXELS and 1 <= height <= _MAX_PIXELS and width % 1 == height % 1 == 0:
            return int(width), int(height)
        if width or height:
            message = f"a size of {str(width)[:30]} x {str(height)[:30]} is not two whole numbers from 1"
            self.problem("bad_size", self.policy.bad_size, message, line=line)
        return 0, 0


def _unknown_line(file: str, index: int) -> None:
    return None


def _wrong_name(what: str, name: str) -> str | None:
    if 0 < len(name) <= MAX_NAME_CHARS:
        return None
    return f"the name of the {what} has {len(name)} characters; 1 to {MAX_NAME_CHARS} are read"


def wrong_attribute(name: str, value: str) -> str | None:
    """Return what is wrong with the names of an attribute and of its value, or None."""
    return _wrong_name("attribute", name) or _wrong_name(f"attribute {name!r}", value)


def _wrong_polygons(polygons: Sequence[Sequence[float]]) -> str | None:
    """Return what is wrong with polygons, or None."""
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            return f"a polygon of {len(polygon)} numbers; x and y of at least three points expected"
        if not all(abs(value) < MAX_COORDINATE for value in polygon):  # NaN is not
            return f"a polygon with a coordinate that is not finite or beyond {MAX_COORDINATE:g}"
    return None


def _put(column: array[Any], row: int, value: float, *, missing: float) -> None:
    column.extend([missing] * (row - len(column)))
    column.append(value)


def append_column(column: array[Any], first: int, theirs: npt.ArrayLike, *, missing: float) -> None:
    """Append values of objects from number ``first`` on, with ``missing`` for those before that have none."""
    values = np.asarray(theirs, dtype=column.typecode)
    if values.size:
        column.extend([missing] * (first - len(column)))
        column.frombytes(values.tobytes())


def _lookup(mine: dict[Any, int], added: Iterable[Any]) -> npt.NDArray[np.int32]:
    """Return the number in ``mine`` of each added name; new names get the next numbers."""
    return np.array([mine.setdefault(name, len(mine)) for name in added], dtype=np.int32)


def as_array(column: Any, dtype: Any = np.int32) -> npt.NDArray[Any]:
    """Return a column as an array; the column cannot grow while the array is there."""
    return np.frombuffer(column, dtype=dtype) if len(column) else np.zeros(0, dtype=dtype)
