"""Convert `Rows` to an `AnnotationTable`: look up images, apply the policy, fill the columns.

Objects are checked in chunks of some ten thousand, with numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.cache import image_stamp
from lit_loader.annotations.columns import offsets_of
from lit_loader.annotations.formats.declared import unite
from lit_loader.annotations.formats.folder import Folder, is_image_name
from lit_loader.annotations.formats.image_sizes import read_image_sizes, read_shown_sizes
from lit_loader.annotations.formats.rows import FLAG_BITS, BoxKind, DeclaredNames, Rows, as_array
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import MAX_ROW_CROSSINGS, Masks, RunLengths, row_crossings
from lit_loader.annotations.places import Places
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.quadrangles import are_flat, enclosing_boxes, rotated_corners
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.errors import AnnotationError
from lit_loader.storage.mirror import is_mirrored

__all__ = ["build_table", "point_boxes"]

_CHUNK_ROWS: Final = 65_536
_CHUNK_POINTS: Final = 2**20
_MAX_MESSAGE_POINTS: Final = 3
_MIN_SIDE_RATIO: Final = 0.1
# Boxes may be written in whole pixels, counted from 0 or from 1.
_ROUNDED_PIXELS: Final = 1.0
_MAX_UNKNOWN_HEIGHT: Final = 2**16  # assumed rows of pixels of an image without a size
_AROUND: Final = {BoxKind.AROUND_POINTS: " around the points", BoxKind.AROUND_ORIENTED: " around the oriented box"}
_Mask: TypeAlias = npt.NDArray[np.bool_]
_all = partial(np.logical_and.reduce, axis=-1)
_any = partial(np.logical_or.reduce, axis=-1)
_Message: TypeAlias = Callable[[int], str]
"""Function of an object's row that returns the message for it; called for reported objects only."""


def build_table(
    rows: Rows,
    folder: Folder,
    *,
    class_names: Sequence[str] | None = None,
    keypoints: KeypointSchema | None = None,
    split: str | None = None,
    num_workers: int | None = None,
    progress: bool = True,
    are_files: bool = True,
) -> AnnotationTable:
    """Return the table of all rows that readers added.

    Args:
        rows: Rows of all files; problems are added to their report.
        folder: Folder of the data set.
        class_names: Classes in the order of their ids, or None for the classes that files list or that occur.
        keypoints: Schema of an object's points, or None for the points that files list or that occur.
        split: The table's split, or None for the one that a file names.
        num_workers: Processes that read image headers, or None to decide by their number.
        progress: Whether to draw a progress bar on a terminal.
        are_files: False if image paths are only names; ``rows`` then has the size of every readable image.

    Raises:
        AnnotationError: For the first problem whose action is ``"raise"``; names file and line.
    """
    declared = unite(rows, class_names=class_names, keypoints=keypoints)
    images = _Images(rows, folder, are_files=are_files)
    images.check_sizes(num_workers=num_workers, progress=progress)
    objects = _Objects(rows, images, declared)
    # Checks modify points, visibility and `keep` in place.
    boxes = objects.check()
    object_rows = objects.table_rows()
    flags = rows.objects.rows()["flags"][object_rows]
    image_rows = np.flatnonzero(images.keep)
    # Images without objects count 0 and stay in the table.
    object_counts = np.bincount(objects.images[object_rows], minlength=len(images.keep))[image_rows]
    paths, ids = ([texts[row] for row in image_rows.tolist()] for texts in (images.paths, rows.images.ids))
    return AnnotationTable(
        root=folder.root,
        image_paths=paths,
        image_ids=None if ids == paths else ids,
        image_stamps=images.stamps[image_rows] if images.stamps[image_rows].any() else None,
        widths=images.sizes[image_rows, 0],
        heights=images.sizes[image_rows, 1],
        class_names=declared.class_names,
        category_ids=declared.class_ids or None,
        offsets=offsets_of(object_counts),
        boxes=boxes[object_rows],
        labels=objects.labels[object_rows],
        areas=_padded(rows.objects.areas, np.nan, len(rows.objects), object_rows),
        masks=None if objects.masks is None else objects.masks.take(object_rows),
        attributes=_attributes(rows, declared.attributes, object_rows),
        split=rows.split if split is None else split,
        report=rows.report,
        **{name: (flags & bit) > 0 for name, bit in FLAG_BITS.items()},
        **objects.oriented_columns(object_rows),
        **objects.keypoint_columns(object_rows),
        **_file_columns(rows, image_rows, object_rows, objects.images[object_rows]),
    )


def point_boxes(
    points: npt.NDArray[np.float32], visibility: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], _Mask]:
    """Return boxes around points, wide and high enough to train on.

    A side shorter than a tenth of the longer side grows to that length around its centre. The box of a single point
    gets sides of a tenth of the image's shorter side, or of one pixel if the image size is unknown.

    Args:
        points: Shape ``(num_objects, num_points, 2)``, pixels.
        visibility: Shape ``(num_objects, num_points)``, 0 for absent points.
        sizes: Width and height of each object's image, shape ``(num_objects, 2)``, 0 if unknown.

    Returns:
        float64 ``(num_objects, 4)``, xyxy, zeros if no point is present; bool ``(num_objects,)``, True where a side
        grew.
    """
    present = (visibility > 0)[..., None]
    low = np.where(present, points, np.inf).min(axis=1).astype(np.float64)
    high = np.where(present, points, -np.inf).max(axis=1).astype(np.float64)
    # Infinite minima would become a box without end.
    is_empty = ~_any(present[..., 0])
    low[is_empty] = 0.0
    high[is_empty] = 0.0
    sides = high - low
    longer = sides.max(axis=1)
    # A single point has no longer side; the image gives the scale.
    min_sides = _MIN_SIDE_RATIO * np.where(longer > 0, longer, sizes.min(axis=1))
    min_sides = np.where(is_empty, 0.0, np.where(min_sides > 0, min_sides, 1.0))[:, None]
    is_short = sides < min_sides
    # Equal on both sides, so the box stays centred on the points.
    growth = np.where(is_short, (min_sides - sides) / 2, 0.0)
    return np.hstack([low - growth, high + growth]), _any(is_short)


class _Images:
    """Image rows resolved to files; several rows of the same file become one image.

    Attributes:
        paths: Path of the image file relative to the root; as in the annotations if the file does not exist.
        sizes: Width and height, shape ``(num_images, 2)``, 0 if unknown.
        keep: True if the image is in the table, shape ``(num_images,)``.
        first_rows: Number of the first row of the same file, shape ``(num_images,)``.
        stamps: `image_stamp` of each image whose header was read or that is missing, else 0. Shape ``(num_images,)``.
    """

    def __init__(self, rows: Rows, folder: Folder, *, are_files: bool) -> None:
        self._rows = rows
        self._folder = folder
        self._are_files = are_files
        self._files = list(rows.files)
        count = len(rows.images.paths)
        self.paths = list(rows.images.paths)
        self.sizes = as_array(rows.images.sizes, np.int32).reshape(-1, 2).copy()
        self.keep: _Mask = np.ones(count, dtype=np.bool_)
        self.first_rows = np.arange(count)
        self.stamps = np.zeros(count, dtype=np.int64)
        self._exists: _Mask = np.ones(count, dtype=np.bool_)
        if are_files:
            self._resolve()
            self._report_missing()

    def _resolve(self) -> None:
        """Look up the file of each image row, and unite rows of the same file."""
        file_names = self._rows.images.file_names
        # Looked up in listings of folders, one per folder, not by one call per image.
        candidates = self._folder.find_images(self._rows.images.paths, map(bool, file_names))
        row_by_path: dict[str, int] = {}
        for number, (file_name, files) in enumerate(zip(file_names, candidates, strict=True)):
            # Most images have one candidate with the name in the annotation and need no further checks.
            if len(files) == 1 and (not file_name or files[0].endswith(f"/{file_name}")):
                path = files[0]
            else:
                path = self._choose(number, file_name, files)
            self.paths[number] = path
            # Annotations may name one file with and without its extension.
            first = row_by_path.setdefault(path, number)
            if first != number:
                self.first_rows[number] = first
                self.keep[number] = False
                message = f"{shorten(path)!r} is the file of an earlier image; both become one image"
                self._problem(number, "same_file", message, "unite")

    def _choose(self, number: int, file_name: str, files: list[str]) -> str:
        """Return the path of an image that has no file, several files, or a file of another name."""
        path = self._rows.images.paths[number]
        extension = f".{file_name.rpartition('.')[2]}"
        if not files:
            # A missing file has the stamp -1, so that the table becomes stale when the file appears.
            self._exists[number] = False
            self.stamps[number] = -1
            return path + extension if is_image_name(extension) else path
        # Candidates come in the order of the known extensions.
        chosen = files[0]
        if len(files) > 1:
            # The annotation's own extension decides between a.jpg and a.png.
            same_extension = [name for name in files if name.lower().endswith(extension.lower())]
            chosen = (same_extension or files)[0]
            self._problem(number, "several_images", f"{files} match; {chosen!r} is used", "choose")
        if file_name and not _is_name_of(file_name, chosen):
            message = f"the annotation names the image file {shorten(file_name)!r}, but its id leads to {chosen!r}"
            self._problem(number, "wrong_filename", message)
        return chosen

    def _report_missing(self) -> None:
        """Report all missing images; the first problem has their count, since under some policies it is an error."""
        missing = np.flatnonzero(~self._exists).tolist()
        if not missing:
            return
        action = self._rows.policy.missing_image
        first_path = self._rows.images.paths[missing[0]]
        stem, _, extension = first_path.rpartition(".")
        # A converted data set often has .jpg in its annotations and .png on the disk, or the reverse.
        similar = next(self._folder.find_images([stem], [True]), []) if is_image_name(f".{extension}") else []
        message = f"there is no image {shorten(first_path)!r}"
        if len(missing) > 1:
            message += f", and {len(missing)} of {len(self.paths)} images are missing in all"
        if similar:
            message += f", but {shorten(similar[0])!r} exists, with another extension"
        elif len(missing) == len(self.paths):
            message += "; set `image_dir` to the folder that the paths are relative to"
        else:
            # The images that exist show that `image_dir` is right.
            message += "; restore the missing files" if len(missing) > 1 else "; restore the missing file"
        self._problem(missing[0], "missing_image", message)
        report = self._rows.report
        for position, number in enumerate(missing[1:], start=1):
            if not report.keeps_detail("missing_image", action):
                report.add_count("missing_image", action, len(missing) - position)
                break
            self._problem(number, "missing_image", f"image {shorten(self._rows.images.paths[number])!r} is missing")
        if action == "drop":
            self.keep[missing] = False

    def check_sizes(self, *, num_workers: int | None, progress: bool) -> None:
        """Check the sizes in the annotations, and read the missing ones."""
        if self._are_files:
            # It would fetch the header of every image of a URL. Data sets refuse such images when they load them.
            if not is_mirrored(self._folder.root) or self._rows.policy.turned_image == "drop":
                self._check_turned(num_workers=num_workers, progress=progress)
            self._read_sizes(num_workers=num_workers, progress=progress)
        self._check_unknown()

    def _check_turned(self, *, num_workers: int | None, progress: bool) -> None:
        """Report each image that EXIF turns onto its side while the annotations give its stored size.

        NOTE [When a cached table is stale] explains what happens if an image changes later.
        """
        root = self._folder.root
        read = partial(read_shown_sizes, root, num_workers=num_workers, progress=progress)

        def select_turned(numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
            upright_sizes, is_turned, _ = read([self.paths[number] for number in numbers.tolist()])
            is_stored_size: _Mask = _all(upright_sizes[:, ::-1] == self.sizes[numbers])
            return numbers[is_turned & is_stored_size]

        # Equal sides look the same either way.
        candidates = np.flatnonzero(self.keep & self._exists & (self.sizes[:, 0] != self.sizes[:, 1]))
        turned = select_turned(candidates)
        # A stamp must be taken before its file is read, or a change in between is missed. Only few images are turned,
        # so it is cheaper to stamp these and read them once more than to stamp all candidates first.
        self.stamps[turned] = [image_stamp(root, self.paths[number]) for number in turned.tolist()]
        turned = select_turned(turned)
        for number in turned.tolist():
            width, height = self.sizes[number].tolist()
            message = f"EXIF turns {shorten(repr(self.paths[number]))} from {width}x{height} to {height}x{width}, and "
            message += f"the annotations say {width}x{height}"
            if self._rows.policy.turned_image == "raise":
                count = f" ({len(turned)} such images)" if len(turned) > 1 else ""
                message += f"{count}. Remove the orientation from its EXIF, or correct the size if the boxes fit the "
                message += "turned image; 'keep' is for data sets with exif_orientation=False"
            self._problem(number, "turned_image", message)

    def _read_sizes(self, *, num_workers: int | None, progress: bool) -> None:
        """Read the size of each image from its header if the annotations do not give it."""
        root = self._folder.root
        unsized = np.flatnonzero(self.keep & self._exists & (self.sizes[:, 0] == 0))
        paths = [self.paths[number] for number in unsized.tolist()]
        # Stamps first: a file that changes while it is read then has another stamp at the next start.
        self.stamps[unsized] = [image_stamp(root, path) for path in paths]
        self.sizes[unsized], reasons = read_image_sizes(root, paths, num_workers=num_workers, progress=progress)
        for position, reason in reasons.items():
            number = int(unsized[position])
            message = f"the size of {shorten(self.paths[number])!r} cannot be read: {reason}"
            self._problem(number, "unreadable_image", message)

    def _check_unknown(self) -> None:
        """Refuse coordinates relative to the size of a missing or unreadable image that the policy keeps."""
        unknown = np.flatnonzero(self.keep & (self.sizes[:, 0] == 0))
        if (self._rows.normalized or self._rows.y_up) and len(unknown):
            kind = "are fractions" if self._rows.normalized else "count from the lower edge"
            path = shorten(self.paths[int(unknown[0])])
            problem = f"coordinates {kind} of the image, and the size of {path!r} is unknown"
            remedy = "choose 'drop' or 'raise' for missing_image and unreadable_image"
            raise AnnotationError(problem, path=self._folder.root, remedy=remedy)

    def _problem(self, number: int, kind: str, message: str, action: str | None = None) -> None:
        """Report a problem of an image, and drop the image if ``action``, by default the policy's, says so."""
        rows = self._rows
        action = action or getattr(rows.policy, kind)
        # Problems are reported for the current file.
        rows.file = self._files[rows.images.files[number]]
        rows.problem(kind, action, message, line=rows.images.lines[number] or None, image=self.paths[number])
        if action == "drop":
            self.keep[number] = False


class _Objects:
    """Object rows, checked in the order of the policy's attributes.

    Attributes:
        images: Image number of each object, shape ``(num_objects,)``.
        labels: Class ids, shape ``(num_objects,)``.
        points: Shape ``(num_objects, num_points, 2)``, zeros where absent.
        visibility: Shape ``(num_objects, num_points)``.
        keep: True if the object is in the table, shape ``(num_objects,)``.
        masks: Masks of all objects, or None if no object has one.
        corners: float32 ``(num_objects, 4, 2)``, NaN rows without corners, or None if no object has some.
        rotated_boxes: float32 ``(num_objects, 5)``, NaN rows without a rotated box, or None if no object has one.
    """

    def __init__(self, rows: Rows, images: _Images, declared: DeclaredNames) -> None:
        objects = rows.objects.rows()
        self._objects = objects
        self._rows = rows
        self._schema = declared.keypoints
        self._class_names = declared.class_names
        self._files = list(rows.files)
        # Objects of rows that were united belong to the first of them.
        self.images = images.first_rows[objects["image"]]
        self._image_paths = images.paths
        ids = {name: i for i, name in enumerate(declared.class_names)}
        # Label -1, an object that is left out, selects the last entry.
        lookup = np.array([*(ids.get(name, -1) for name in rows.class_names), -1], dtype=np.int64)
        self.labels = lookup[objects["label"]]
        self._sizes = images.sizes[self.images]
        self._boxes = objects["box"].copy()
        self._kinds = objects["kind"].copy()
        self.keep: _Mask = images.keep[self.images] & (objects["label"] >= 0)
        self.masks: Masks | None = None
        with np.errstate(over="ignore", invalid="ignore"):  # the policy decides on coordinates that are not finite
            self._convert_boxes()
            self._fill_oriented()
            self._fill_points()
        self._fill_masks()

    def check(self) -> npt.NDArray[np.float32]:
        """Check every object and return the boxes of all, shape ``(num_objects, 4)``.

        Raises:
            AnnotationError: For the first problem whose action is ``"raise"``.
        """
        count = len(self.labels)
        boxes = np.zeros((count, 4), dtype=np.float32)
        # Chunks bound the memory of temporary arrays, also for schemas with many points.
        step = max(1, min(_CHUNK_ROWS, _CHUNK_POINTS // max(1, self.points.shape[1])))
        for start in range(0, count, step):
            chunk = slice(start, min(start + step, count))
            self._check_classes(chunk)
            # Points before boxes, because a box around points depends on the points that are still present.
            if self._schema is not None:
                self._check_points(chunk, self._schema.names)
            boxes[chunk] = self._check_boxes(chunk)
        return boxes

    def table_rows(self) -> npt.NDArray[np.intp]:
        """Return the rows of the table's objects, grouped by image."""
        rows = np.flatnonzero(self.keep)
        # Stable, so that the objects of an image stay in the order of the files.
        return rows[np.argsort(self.images[rows], kind="stable")]

    def keypoint_columns(self, object_rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Return the keypoint columns of some objects, or none if the set has no points."""
        if self._schema is None:
            return {}
        columns = {"keypoints": self.points[object_rows], "visibility": self.visibility[object_rows]}
        return columns | self._schema.columns()

    def _to_pixels(self, xy: npt.NDArray[Any], sizes: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Return points in pixels, with y counted from the upper edge.

        Args:
            xy: Points as in the files, shape ``(..., 2)``.
            sizes: Width and height of their images, shape ``(..., 2)``.
        """
        if self._rows.normalized:
            xy = xy * sizes
        if self._rows.y_up:
            xy = np.stack([xy[..., 0], sizes[..., 1] - xy[..., 1]], axis=-1)
        return xy

    def _convert_boxes(self) -> None:
        """Convert the boxes in the files to pixels; all others are filled in later."""
        explicit = np.flatnonzero(self._kinds == BoxKind.GIVEN)
        corners = self._to_pixels(self._boxes[explicit].reshape(-1, 2, 2), self._sizes[explicit, None])
        if self._rows.y_up:
            # ymin and ymax swap places: the upper edge, which was ymax, becomes ymin.
            corners[..., 1] = corners[:, ::-1, 1]
        self._boxes[explicit] = corners.reshape(-1, 4)

    def _fill_oriented(self) -> None:
        """Fill the columns of oriented boxes, and set the boxes of objects that have no other.

        Raises:
            ValueError: If a reader adds rotated boxes to rows that are not pixels with y downwards.
        """
        columns = self._rows.objects
        count = len(self.labels)
        self.corners: npt.NDArray[np.float32] | None = None
        self.rotated_boxes: npt.NDArray[np.float32] | None = None
        self._is_flat: _Mask = np.zeros(count, dtype=np.bool_)
        quads = []
        if columns.corner_rows:
            rows = as_array(columns.corner_rows)
            corners = as_array(columns.corners, np.float64).reshape(-1, 4, 2)
            self.corners = np.full((count, 4, 2), np.nan, np.float32)
            self.corners[rows] = self._to_pixels(corners, self._sizes[rows][:, None])
            quads.append((rows, self.corners[rows].astype(np.float64)))
        if columns.rotated_rows:
            # Fractions of width and height would turn a rectangle into another shape.
            if self._rows.normalized or self._rows.y_up:
                raise ValueError("a reader of fractions or with y_up must pass four corners instead of a rotated box")
            rows = as_array(columns.rotated_rows)
            self.rotated_boxes = np.full((count, 5), np.nan, np.float32)
            self.rotated_boxes[rows] = as_array(columns.rotated_boxes, np.float64).reshape(-1, 5)
            quads.append((rows, rotated_corners(self.rotated_boxes[rows])))
        # Boxes follow from the float32 numbers, so that a written and reread set has the same boxes.
        for rows, quad in quads:
            self._is_flat[rows] = are_flat(quad)
            around = enclosing_boxes(quad)
            self._report_other_boxes(rows, around)
            is_around = self._kinds[rows] == BoxKind.AROUND_ORIENTED
            self._boxes[rows[is_around]] = around[is_around]

    def _report_other_boxes(self, rows: npt.NDArray[np.intp], around: npt.NDArray[np.float64]) -> None:
        """Report written boxes that contradict the oriented box, and put them around it.

        Args:
            rows: Rows of objects with an oriented box.
            around: Boxes around the oriented boxes, ``(n, 4)``.
        """
        sizes = self._sizes[rows]
        # Tools clip boxes to the image.
        limits = np.tile(np.where(sizes > 0, sizes, np.inf), 2)
        distances = np.abs(np.clip(self._boxes[rows], 0, limits) - np.clip(around, 0, limits)).max(axis=1, initial=0)
        # `not <=`, because NaN fails every comparison.
        is_other = (self._kinds[rows] == BoxKind.GIVEN) & ~(distances <= _ROUNDED_PIXELS)
        box_by_row = dict(zip(rows[is_other].tolist(), around[is_other].tolist(), strict=True))

        def message(row: int) -> str:
            return f"box {self._boxes[row].tolist()} is replaced by {box_by_row[row]}, the box around the oriented box"

        self._report("box_mismatch", "replace", rows[is_other & self.keep[rows]], message)
        self._kinds[rows[is_other]] = BoxKind.AROUND_ORIENTED

    def oriented_columns(self, object_rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Return the columns of the oriented boxes of some objects."""
        columns = {"corners": self.corners, "rotated_boxes": self.rotated_boxes}
        return {name: None if column is None else column[object_rows] for name, column in columns.items()}

    def _fill_points(self) -> None:
        """Copy the points of every object to their positions in the schema."""
        rows = self._rows
        names = () if self._schema is None else self._schema.names
        self.points = np.zeros((len(self.labels), len(names), 2), np.float32)
        self.visibility = np.zeros(self.points.shape[:2], dtype=np.uint8)
        positions = {name: position for position, name in enumerate(names)}
        layouts = self._objects["layout"]
        lengths = np.array([*map(len, rows.layouts), 0], dtype=np.int64)[layouts]  # layout -1 selects the last, 0
        ends = np.cumsum(lengths)
        flat_points = as_array(rows.objects.points, rows.objects.points.typecode).reshape(-1, 2)
        flat_visibility = np.frombuffer(bytes(rows.objects.visibility), dtype=np.uint8)
        # Objects are copied layout by layout: all objects of one layout need the same columns.
        order = np.argsort(layouts, kind="stable")
        bounds = np.searchsorted(layouts[order], np.arange(len(rows.layouts) + 1))
        for number, layout in enumerate(rows.layouts):
            objects = order[bounds[number] : bounds[number + 1]]
            columns = np.array([positions.get(name, -1) for name in layout], dtype=np.int64)
            point_rows = (ends[objects] - lengths[objects])[:, None] + np.arange(len(layout))
            in_schema = np.flatnonzero(columns >= 0)
            points = self._to_pixels(flat_points[point_rows[:, in_schema]], self._sizes[objects, None])
            self.points[objects[:, None], columns[in_schema]] = points
            self.visibility[objects[:, None], columns[in_schema]] = flat_visibility[point_rows[:, in_schema]]
            for outside_schema in np.flatnonzero(columns < 0).tolist():
                with_point = objects[flat_visibility[point_rows[:, outside_schema]] > 0]
                message = f"the point {shorten(layout[outside_schema])!r} is not in the schema"
                self._report("unknown_point", "ignore", with_point, message)

    def _fill_masks(self) -> None:
        """Gather polygons and run lengths, and put boxes around the polygons of objects without a box."""
        columns = self._rows.objects
        if not columns.polygon_rows and not columns.run_lengths:
            return
        count = len(self.labels)
        polygon_rows = as_array(columns.polygon_rows, np.int32)
        lengths = as_array(columns.polygon_lengths, np.int32)
        value_offsets = offsets_of(lengths)
        values = as_array(columns.polygon_values, columns.polygon_values.typecode)
        points = values.reshape(-1, 2).astype(np.float64)
        if self._rows.normalized or self._rows.y_up:
            points = self._to_pixels(points, np.repeat(self._sizes[polygon_rows], lengths // 2, axis=0))
        part_offsets = offsets_of(np.bincount(polygon_rows, minlength=count))
        self._check_outlines(points, value_offsets // 2, part_offsets)
        self._check_run_lengths()
        runs = [columns.run_lengths.get(row, RunLengths((), 0, 0)) for row in range(count)]
        self.masks = Masks(
            part_offsets,
            value_offsets,
            points.astype(np.float32).reshape(-1),
            offsets_of([len(mask.counts) for mask in runs]),
            np.concatenate([np.asarray(mask.counts, np.uint32) for mask in runs]),
            np.array([mask.height for mask in runs], np.int32),
            np.array([mask.width for mask in runs], np.int32),
        )
        boxless = np.flatnonzero(self._kinds == BoxKind.AROUND_POLYGONS)
        if len(boxless):
            # Corners of each polygon, and then of all polygons of each object.
            low = np.minimum.reduceat(points, value_offsets[:-1] // 2)
            high = np.maximum.reduceat(points, value_offsets[:-1] // 2)
            corners = np.tile([np.inf, np.inf, -np.inf, -np.inf], (count, 1))
            np.minimum.at(corners[:, :2], polygon_rows, low)
            np.maximum.at(corners[:, 2:], polygon_rows, high)
            self._boxes[boxless] = corners[boxless]

    def _check_run_lengths(self) -> None:
        """Report and drop the objects whose mask has another size than their image."""
        for row, mask in self._rows.objects.run_lengths.items():
            width, height = self._sizes[row].tolist()
            if width and height and self.keep[row] and (mask.width, mask.height) != (width, height):
                size = f"{mask.width} x {mask.height}"
                self._drop_malformed(row, f"a mask of {size} pixels in an image of {width} x {height}")

    def _check_outlines(
        self, points: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], part_offsets: npt.NDArray[np.int64]
    ) -> None:
        """Report and drop the objects whose mask would take too long to draw for every sample."""
        heights = self._sizes[:, 1]
        limits = np.where(heights > 0, heights, _MAX_UNKNOWN_HEIGHT)
        # Each edge crosses at most every row of pixels; the exact count is only needed above this bound.
        max_crossings = np.diff(starts[part_offsets]) * limits
        for row in np.flatnonzero((max_crossings > MAX_ROW_CROSSINGS) & self.keep).tolist():
            # The object's polygons, with starts relative to its first point.
            parts = starts[part_offsets[row] : part_offsets[row + 1] + 1]
            crossings = row_crossings(points[parts[0] : parts[-1]], parts - parts[0], int(limits[row]))
            if crossings > MAX_ROW_CROSSINGS:
                limit = f"more than MAX_ROW_CROSSINGS={MAX_ROW_CROSSINGS}; simplify the polygons"
                outlines = f"polygons with {parts[-1] - parts[0]} points whose outlines"
                self._drop_malformed(row, f"{outlines} cross {crossings} rows of pixels, {limit}")

    def _drop_malformed(self, row: int, message: str) -> None:
        self._report("malformed", self._rows.policy.malformed, np.array([row]), message)
        self.keep[row] = False

    def _check_classes(self, chunk: slice) -> None:
        names = list(self._rows.class_names)

        def message(row: int) -> str:
            name = names[self._objects["label"][chunk.start + row]]
            return f"class {name!r} is not in class_names={shorten(str(self._class_names))}"

        self._apply(chunk, "unknown_class", self.labels[chunk] < 0, message)

    def _check_points(self, chunk: slice, names: Sequence[str]) -> None:
        """Check points, and fill in the boxes around points."""
        points = self.points[chunk]
        visibility = self.visibility[chunk]
        sizes = self._sizes[chunk]

        def message(wrong: _Mask, rule: str) -> _Message:
            def text(row: int) -> str:
                positions = np.flatnonzero(wrong[row])
                point_texts = [f"{names[i]!r} {points[row, i].tolist()}" for i in positions[:_MAX_MESSAGE_POINTS]]
                point_texts += ["..."] if len(positions) > _MAX_MESSAGE_POINTS else []
                count = "1 point is" if len(positions) == 1 else f"{len(positions)} points are"
                image = f"(image {sizes[row, 0]} x {sizes[row, 1]})"
                return f"{count} {rule} {image}: {', '.join(point_texts)}"

            return text

        invalid: _Mask = ~_all(np.isfinite(points)) & (visibility > 0)
        self._apply(chunk, "invalid_keypoint", _any(invalid), message(invalid, "not finite"))
        # Whatever the policy says: a dropped object needs no points.
        visibility[invalid] = 0
        points[visibility == 0] = 0.0
        # Without a size nothing is outside.
        has_size = _all(sizes > 0)[:, None]
        outside = _any((points < 0) | (points > sizes[:, None])) & has_size & (visibility > 0)
        self._apply(chunk, "keypoint_outside", _any(outside), message(outside, "outside the image"))
        if self._rows.policy.keypoint_outside == "absent":
            visibility[outside] = 0
            points[outside] = 0.0
        around = np.flatnonzero(self._kinds[chunk] == BoxKind.AROUND_POINTS)
        if around.size:
            boxes = self._boxes[chunk]
            boxes[around], is_wider = point_boxes(points[around], visibility[around], sizes[around])
            self._report(
                "narrow_points",
                "widen",
                chunk.start + around[is_wider & self.keep[chunk][around]],
                lambda row: f"points on or near one line; its box is {boxes[row - chunk.start].tolist()}",
            )

    def _check_boxes(self, chunk: slice) -> npt.NDArray[np.float32]:
        kinds = self._kinds[chunk]
        # Messages show the box before this check changes it.
        written = self._boxes[chunk]
        sizes = self._sizes[chunk]

        def message(rule: str) -> _Message:
            def text(row: int) -> str:
                width, height = sizes[row].tolist()
                size = f"image {width} x {height}" if width and height else "image size unknown"
                around = _AROUND.get(kinds[row], "")
                return f"box {written[row].tolist()}{around} {rule} ({size})"

            return text

        with np.errstate(over="ignore", invalid="ignore"):
            finite: _Mask = _all(np.isfinite(written.astype(np.float32)))
        self._apply(chunk, "non_finite", ~finite, message("is not finite"))
        # Infinite numbers would trigger every check that follows.
        boxes = np.where(finite[:, None], written, 0.0)
        low = boxes[:, :2]
        high = boxes[:, 2:]
        self._apply(chunk, "swapped", _any(low > high), message("has its corners swapped"))
        boxes = np.hstack([np.minimum(low, high), np.maximum(low, high)])
        has_size = _all(sizes > 0)
        upper = np.tile(np.where(has_size[:, None], sizes, np.inf), 2)
        clipped = np.clip(boxes, np.where(has_size, 0.0, -np.inf)[:, None], upper)
        # Boxes around points are clipped with the others, but their points have been reported instead.
        is_reported: _Mask = np.isin(kinds, (BoxKind.GIVEN, BoxKind.AROUND_POLYGONS, BoxKind.AROUND_ORIENTED))
        outside = _any(clipped != boxes) & is_reported
        self._apply(chunk, "out_of_image", outside, message("reaches beyond the image"))
        if self._rows.policy.out_of_image == "clip":
            boxes = clipped
        # Compared in float32, because a thin box can lose its area by rounding.
        boxes32 = boxes.astype(np.float32)
        is_whole_image = kinds == BoxKind.WHOLE_IMAGE
        # The box around a diagonal line has an area, the oriented box has none.
        flat = (_any(boxes32[:, 2:] <= boxes32[:, :2]) & ~is_whole_image) | self._is_flat[chunk]
        self._apply(chunk, "degenerate", flat, message("has no area inside the image"))
        boxes32[is_whole_image, 2:] = sizes[is_whole_image]
        return boxes32

    def _apply(self, chunk: slice, kind: str, wrong: _Mask, message: _Message) -> None:
        """Report the wrong objects of a chunk, and drop them if the policy says so."""
        action = getattr(self._rows.policy, kind)
        objects = chunk.start + np.flatnonzero(wrong & self.keep[chunk])
        self._report(kind, action, objects, lambda row: message(row - chunk.start))
        if action == "drop":
            self.keep[objects] = False

    def _report(self, kind: str, action: str, objects: npt.NDArray[np.intp], message: _Message | str) -> None:
        rows = self._rows
        for num_reported, row in enumerate(objects.tolist()):
            # The report keeps the details of the first few; the others are counted at once.
            if action != "raise" and not rows.report.keeps_detail(kind, action):
                rows.report.add_count(kind, action, len(objects) - num_reported)
                break
            record = self._objects[row]
            rows.file = self._files[record["file"]]
            index = None if record["index"] < 0 else int(record["index"])
            text = message if isinstance(message, str) else message(row)
            image = self._image_paths[self.images[row]]
            rows.problem(kind, action, text, line=int(record["line"]) or None, index=index, image=image)


def _file_columns(
    rows: Rows,
    image_rows: npt.NDArray[np.intp],
    object_rows: npt.NDArray[np.intp],
    image_of_object: npt.NDArray[np.int32],
) -> dict[str, Any]:
    """Return the columns of numbers and places that some images and objects have in the annotation files.

    Args:
        rows: Rows of all files.
        image_rows: Rows of the images.
        object_rows: Rows of the objects.
        image_of_object: Row of the image of each of these objects.
    """
    source_ids = as_array(rows.images.source_ids, np.int64)
    files = list(rows.files)
    lists = rows.entry_lists
    # Number 0 is "", no file.
    image_files = as_array(rows.images.files)
    image_numbers = np.where(image_files > 0, image_files, -1).astype(np.int32)
    image_positions = as_array(rows.images.lines)
    object_files, lines, indices = (rows.objects.rows()[name][object_rows] for name in ("file", "line", "index"))
    # Most objects are in the file of their image, whose name is then stored once.
    has_own_file = (object_files != image_files[image_of_object]) & (object_files > 0)
    object_numbers = np.where(has_own_file, object_files, np.int32(-1))
    # Index -1, none, becomes position 0, the whole file.
    object_positions = np.where(lines == 0, -1 - indices, lines)
    return {
        "source_ids": source_ids[image_rows] if (source_ids >= 0).any() else None,
        "object_ids": _padded(rows.objects.object_ids, -1, len(rows.objects), object_rows),
        "image_places": Places.from_files(files, image_numbers[image_rows], image_positions[image_rows], lists=lists),
        "object_places": Places.from_files(files, object_numbers, object_positions, lists=lists),
    }


def _padded(column: array[Any], missing: float, count: int, selected: npt.NDArray[np.intp]) -> npt.NDArray[Any] | None:
    """Return the selected rows of a column that may end early, or None if the column is empty."""
    if not column:
        return None
    padded: npt.NDArray[Any] = np.full(count, missing, dtype=column.typecode)
    padded[: len(column)] = column
    return padded[selected]


def _is_name_of(file_name: str, path: str) -> bool:
    """Return True if a file name in an annotation, with or without extension, is the name of the image at ``path``."""
    image_name = path.rpartition("/")[2].lower()
    return file_name.replace("\\", "/").rpartition("/")[2].lower() in (image_name, image_name.rpartition(".")[0])


def _attributes(
    rows: Rows, declared: Sequence[tuple[str, tuple[str, ...]]], object_rows: npt.NDArray[np.intp]
) -> dict[str, Attribute]:
    """Return the attribute columns, -1 where an object has no value; `Rows.check_cells` has limited their size."""
    cells = {
        (name, value): (column, value_id)
        for column, (name, values) in enumerate(declared)
        for value_id, value in enumerate(values)
    }
    # Each pair of names is looked up once, not once per object.
    pair_cells = np.array([cells[pair] for pair in rows.attribute_values], dtype=np.int32).reshape(-1, 2)
    columns, value_ids = pair_cells[as_array(rows.objects.attribute_values, np.int32)].T
    # One row per attribute, so that each column of the table is contiguous.
    ids = np.full((len(declared), len(rows.objects)), -1, dtype=np.int32)
    ids[columns, as_array(rows.objects.attribute_rows, np.int32)] = value_ids
    return {
        name: Attribute(ids=column_ids[object_rows].astype(np.int64), names=values)
        for (name, values), column_ids in zip(declared, ids, strict=True)
    }
