"""From `Rows` to an `AnnotationTable`: images are looked up, the policy is applied, columns are filled.

Objects are checked some ten thousand at a time, with numpy.
"""

from __future__ import annotations

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
from lit_loader.annotations.formats.rows import BoxKind, Declared, Rows, as_array
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import MAX_ROW_CROSSINGS, Masks, RunLengths, row_crossings
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.errors import AnnotationError

__all__ = ["build_table", "point_boxes"]

_CHUNK_ROWS: Final = 65_536
_CHUNK_POINTS: Final = 2**20
_SHOWN_POINTS: Final = 3
_LEAST_SIDE: Final = 0.1
_MAX_UNKNOWN_HEIGHT: Final = 2**16  # of an image without a size, in pixels
_Mask: TypeAlias = npt.NDArray[np.bool_]
_all = partial(np.logical_and.reduce, axis=-1)
_any = partial(np.logical_or.reduce, axis=-1)
_Message: TypeAlias = Callable[[int], str]


def build_table(
    rows: Rows,
    folder: Folder,
    *,
    class_names: Sequence[str] | None = None,
    keypoints: KeypointSchema | None = None,
    split: str | None = None,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Return the table of what readers found.

    Args:
        rows: What they found; the report is completed.
        folder: The data set's folder.
        class_names: The classes in the order of their ids, or None for those that files list or that occur.
        keypoints: The points of an object, or None for those that files list or that occur.
        split: The table's split, or None for the one that a file names.
        num_workers: Processes that read the headers of images, or None to decide by their number.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: For the first problem whose action is ``"raise"``; names file and line.
    """
    declared = unite(rows, class_names=class_names, keypoints=keypoints)
    images = _Images(rows, folder)
    images.check_turned(num_workers=num_workers, progress=progress)
    images.read_sizes(num_workers=num_workers, progress=progress)
    objects = _Objects(rows, images, declared)
    boxes = objects.check()
    kept = np.flatnonzero(objects.keep)
    kept = kept[np.argsort(objects.images[kept], kind="stable")]
    of_table = np.flatnonzero(images.keep)
    counts = np.bincount(objects.images[kept], minlength=len(images.keep))[of_table]
    flags = rows.objects.rows()["flags"][kept]
    points: dict[str, Any] = {}
    if declared.keypoints is not None:
        points = {"keypoints": objects.points[kept], "visibility": objects.visibility[kept]}
        points |= declared.keypoints.columns()
    paths, ids = ([column[i] for i in of_table.tolist()] for column in (images.paths, rows.images.ids))
    return AnnotationTable(
        root=folder.root,
        image_paths=paths,
        image_ids=None if ids == paths else ids,
        image_stamps=images.stamps[of_table] if images.stamps[of_table].any() else None,
        class_names=declared.class_names,
        category_ids=declared.class_ids or None,
        source_ids=_padded(rows.images.source_ids, np.int64, -1, len(images.keep), of_table),
        object_ids=_padded(rows.objects.object_ids, np.int64, -1, len(objects.keep), kept),
        areas=_padded(rows.objects.areas, np.float32, np.nan, len(objects.keep), kept),
        masks=None if objects.masks is None else objects.masks.take(kept),
        widths=images.sizes[of_table, 0],
        heights=images.sizes[of_table, 1],
        offsets=offsets_of(counts),
        boxes=boxes[kept],
        labels=objects.labels[kept],
        difficult=(flags & 1) > 0,
        truncated=(flags & 2) > 0,
        occluded=(flags & 4) > 0,
        crowd=(flags & 8) > 0,
        attributes=_attributes(rows, declared.attributes, kept),
        split=rows.split if split is None else split,
        report=rows.report,
        **points,
    )


def point_boxes(
    points: npt.NDArray[np.float32], visibility: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], _Mask]:
    """Return the boxes around points, wide and high enough to train on.

    A side is at least a tenth of the longer side, and the box of a single point a tenth of the image's shorter side
    (one pixel if the size is unknown); a shorter side grows around its centre.

    Args:
        points: Shape ``(num_objects, num_points, 2)``, pixels.
        visibility: Shape ``(num_objects, num_points)``, 0 for absent points.
        sizes: Width and height of each object's image, shape ``(num_objects, 2)``, 0 if unknown.

    Returns:
        float64 ``(num_objects, 4)``, xyxy, zeros without a present point; which boxes have a side that grew.
    """
    present = (visibility > 0)[..., None]
    low = np.where(present, points, np.inf).min(axis=1).astype(np.float64)
    high = np.where(present, points, -np.inf).max(axis=1).astype(np.float64)
    is_empty = ~_any(present[..., 0])
    low[is_empty] = high[is_empty] = 0.0
    sides = high - low
    longer = sides.max(axis=1)
    least = _LEAST_SIDE * np.where(longer > 0, longer, sizes.min(axis=1))
    least = np.where(is_empty, 0.0, np.where(least > 0, least, 1.0))[:, None]
    is_short = sides < least
    growth = np.where(is_short, (least - sides) / 2, 0.0)
    return np.hstack([low - growth, high + growth]), _any(is_short)


class _Images:
    """The images of `Rows`, looked up in their folders; several rows of one file become one image.

    Attributes:
        paths: Relative to the root, as found; where nothing was found, as the annotations have them.
        sizes: Width and height, shape ``(num_images, 2)``, 0 if unknown.
        keep: Whether the image is in the table, shape ``(num_images,)``.
        united: For each row the first one of the same image, shape ``(num_images,)``.
        stamps: `image_stamp` of each image whose header was read, or that is missing; else 0. Shape ``(num_images,)``.
    """

    def __init__(self, rows: Rows, folder: Folder) -> None:
        self._rows, self._folder = rows, folder
        self.paths = list(rows.images.paths)
        count = len(self.paths)
        self.sizes = as_array(rows.images.sizes, np.int32).reshape(-1, 2).copy()
        self.keep: _Mask = np.ones(count, dtype=np.bool_)
        self.united = np.arange(count)
        self.stamps = np.zeros(count, dtype=np.int64)
        self._exists: _Mask = np.ones(count, dtype=np.bool_)
        self._files = list(rows.files)
        number_of: dict[str, int] = {}
        names = rows.images.file_names
        images = folder.find_images(rows.images.paths, map(bool, names))
        self._missing: list[int] = []
        for number, (stated, files) in enumerate(zip(names, images, strict=True)):
            found = files[0] if files else ""
            if len(files) != 1 or (stated and not found.endswith(f"/{stated}")):
                found = self._choose(number, stated, files)
            self.paths[number] = found
            first = number_of.setdefault(found, number)
            if first != number:  # the same file under several names
                self.united[number], self.keep[number] = first, False
                self._problem(number, "same_file", "unite", f"{shorten(found)!r} is an image before, too")
        self._report_missing()

    def _choose(self, number: int, stated: str, found: list[str]) -> str:
        """Return the path of an image of which no, another or several files were found; or where it would be."""
        policy, path = self._rows.policy, self._rows.images.paths[number]
        ending = f".{stated.rpartition('.')[2]}"
        if not found:
            self._exists[number], self.stamps[number] = False, -1
            self._missing.append(number)
            return path + ending if is_image_name(ending) else path
        chosen = found[0]
        if len(found) > 1:
            alike = [name for name in found if name.lower().endswith(ending.lower())]
            chosen = (alike or found)[0]
            message = f"{found} belong to it; {chosen!r} is used"
            self._problem(number, "several_images", "choose", message)
        if stated and not _is_name_of(stated, chosen):
            message = f"the annotation calls the image {shorten(stated)!r}; {chosen!r} was found"
            self._problem(number, "wrong_filename", policy.wrong_filename, message)
        return chosen

    def _report_missing(self) -> None:
        """Report the images that are missing: one problem, with the first of them and their number."""
        if not self._missing:
            return
        rows = self._rows
        action = rows.policy.missing_image
        first = self._missing[0]
        further = self._missing[1:]
        message = f"there is no image {shorten(rows.images.paths[first])!r}"
        if further:
            message += f", and {len(self._missing)} of {len(self.paths)} images are missing in all"
        stem, _, ending = rows.images.paths[first].rpartition(".")
        similar = next(self._folder.find_images([stem], [True]), []) if is_image_name(f".{ending}") else []
        if similar:
            message += f", but {shorten(similar[0])!r} is, with another ending"
        else:
            message += "; `image_dir` is the folder that holds the paths"
        self._problem(first, "missing_image", action, message)
        if further:
            rows.report.add_count("missing_image", action, len(further))
        if action == "drop":
            self.keep[further] = False

    def check_turned(self, *, num_workers: int | None, progress: bool) -> None:
        """Report each image that EXIF turns onto its side while the annotations state its stored size.

        See NOTE [When a cached table is stale] on images that change later.
        """
        action, root = self._rows.policy.turned_image, self._folder.root
        read = partial(read_shown_sizes, root, num_workers=num_workers, progress=progress)

        def turned(numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
            upright_sizes, is_turned, _ = read([self.paths[number] for number in numbers.tolist()])
            is_stored_size: _Mask = _all(upright_sizes[:, ::-1] == self.sizes[numbers])
            return numbers[is_turned & is_stored_size]

        stated = np.flatnonzero(self.keep & self._exists & (self.sizes[:, 0] != self.sizes[:, 1]))
        numbers = turned(stated)
        # Few images are left: their stamps are taken, and then they are read again, so that a change is not missed.
        self.stamps[numbers] = [image_stamp(root, self.paths[number]) for number in numbers.tolist()]
        numbers = turned(numbers)
        for number in numbers.tolist():
            width, height = self.sizes[number].tolist()
            message = f"EXIF turns {shorten(repr(self.paths[number]))} from {width}x{height} to {height}x{width}, and "
            message += f"the annotations say {width}x{height}: the boxes were drawn on the pixels as stored"
            if action == "raise":
                count = f" ({len(numbers)} such images)" if len(numbers) > 1 else ""
                message += f"{count}. Remove the orientation from its EXIF, or correct the size if the boxes fit the "
                message += "turned image; 'keep' is for data sets with exif_orientation=False"
            self._problem(number, "turned_image", action, message)

    def read_sizes(self, *, num_workers: int | None, progress: bool) -> None:
        """Read the header of each image whose size the annotations do not say."""
        policy = self._rows.policy
        root = self._folder.root
        unsized = np.flatnonzero(self.keep & self._exists & (self.sizes[:, 0] == 0))
        paths = [self.paths[number] for number in unsized.tolist()]
        self.stamps[unsized] = [image_stamp(root, path) for path in paths]  # before they are read
        found = read_image_sizes(root, paths, num_workers=num_workers, progress=progress)
        self.sizes[unsized], reasons = found
        for position, reason in reasons.items():
            number = int(unsized[position])
            message = f"the size of {shorten(self.paths[number])!r} cannot be read: {reason}"
            self._problem(number, "unreadable_image", policy.unreadable_image, message)
        unknown = np.flatnonzero(self.keep & (self.sizes[:, 0] == 0))
        if (self._rows.normalized or self._rows.y_up) and len(unknown):
            kind = "are fractions" if self._rows.normalized else "count from the lower edge"
            path = shorten(self.paths[int(unknown[0])])
            message = f"coordinates {kind} of the image, and the size of {path!r} is unknown; "
            message += "choose 'drop' or 'raise' for missing_image and unreadable_image"
            raise AnnotationError(message, path=root)

    def _problem(self, number: int, kind: str, action: str, message: str) -> None:
        rows = self._rows
        rows.file = self._files[rows.images.files[number]]
        rows.problem(kind, action, message, line=rows.images.lines[number] or None)
        if action == "drop":
            self.keep[number] = False


class _Objects:
    """The objects of `Rows`, checked in the order of the policy's attributes.

    Attributes:
        images: Number of each object's image, shape ``(num_objects,)``.
        labels: Class ids, shape ``(num_objects,)``.
        points: Shape ``(num_objects, num_points, 2)``, zeros where absent.
        visibility: Shape ``(num_objects, num_points)``.
        keep: Whether the object is in the table.
        masks: Of every object, or None if none has one.
    """

    def __init__(self, rows: Rows, images: _Images, declared: Declared) -> None:
        self._objects = objects = rows.objects.rows()
        self._rows, self._schema, class_names = rows, declared.keypoints, declared.class_names
        self._class_names, self._files = class_names, list(rows.files)
        self.images = images.united[objects["image"]]
        ids = {name: i for i, name in enumerate(class_names)}
        lookup = np.array([*(ids.get(name, -1) for name in rows.class_names), -1], dtype=np.int64)
        self.labels = lookup[objects["label"]]
        self._sizes = images.sizes
        self._boxes, self._kinds = objects["box"], objects["kind"]
        self.keep: _Mask = images.keep[self.images] & (objects["label"] >= 0)
        self._fill_points()
        self._fill_masks()

    def check(self) -> npt.NDArray[np.float32]:
        """Check every object and return the boxes of all, shape ``(num_objects, 4)``.

        Raises:
            AnnotationError: For the first problem whose action is ``"raise"``.
        """
        count = len(self.labels)
        boxes = np.zeros((count, 4), dtype=np.float32)
        step = max(1, min(_CHUNK_ROWS, _CHUNK_POINTS // max(1, self.points.shape[1])))
        for start in range(0, count, step):
            chunk = slice(start, min(start + step, count))
            boxes[chunk] = self._check_chunk(chunk)
        return boxes

    def _fill_points(self) -> None:
        """Give the points of every object their places in the schema."""
        rows, schema = self._rows, self._schema
        names = () if schema is None else schema.names
        self.points = np.zeros((len(self.labels), len(names), 2), rows.objects.points.typecode)
        self.visibility = np.zeros(self.points.shape[:2], dtype=np.uint8)
        places = {name: place for place, name in enumerate(names)}
        layouts = self._objects["layout"]
        lengths = np.array([*map(len, rows.layouts), 0], dtype=np.int64)[layouts]  # -1 is the last one
        ends = np.cumsum(lengths)
        flat = as_array(rows.objects.points, rows.objects.points.typecode).reshape(-1, 2)
        seen = np.frombuffer(bytes(rows.objects.visibility), dtype=np.uint8)
        order = np.argsort(layouts, kind="stable")
        bounds = np.searchsorted(layouts[order], np.arange(len(rows.layouts) + 1))
        for number, given in enumerate(rows.layouts):
            objects = order[bounds[number] : bounds[number + 1]]
            place = np.array([places.get(name, -1) for name in given], dtype=np.int64)
            of_point = (ends[objects] - lengths[objects])[:, None] + np.arange(len(given))
            known = np.flatnonzero(place >= 0)
            self.points[objects[:, None], place[known]] = flat[of_point[:, known]]
            self.visibility[objects[:, None], place[known]] = seen[of_point[:, known]]
            for column in np.flatnonzero(place < 0).tolist():
                some = objects[seen[of_point[:, column]] > 0]
                message = f"the point {shorten(given[column])!r} is not one of the schema's"
                self._report("unknown_point", "ignore", some, message)

    def _fill_masks(self) -> None:
        """Gather polygons and run lengths, and put boxes around the polygons of objects without one."""
        columns, count, self.masks = self._rows.objects, len(self.labels), None
        if not columns.polygon_rows and not columns.run_lengths:
            return
        of_polygon = as_array(columns.polygon_rows, np.int32)
        lengths = as_array(columns.polygon_lengths, np.int32)
        value_offsets = offsets_of(lengths)
        values = as_array(columns.polygon_values, columns.polygon_values.typecode)
        points = values.reshape(-1, 2).astype(np.float64)
        sizes = self._sizes[self.images]
        if self._rows.normalized:
            points *= np.repeat(sizes[of_polygon], lengths // 2, axis=0)
        if self._rows.y_up:
            points[:, 1] = np.repeat(sizes[of_polygon, 1], lengths // 2) - points[:, 1]
        part_offsets = offsets_of(np.bincount(of_polygon, minlength=count))
        self._check_outlines(points, value_offsets // 2, part_offsets, sizes[:, 1])
        runs = [columns.run_lengths.get(row, RunLengths((), 0, 0)) for row in range(count)]
        for row, given in columns.run_lengths.items():
            width, height = sizes[row].tolist()
            if width and height and self.keep[row] and (given.width, given.height) != (width, height):
                found = f"a mask of {given.width} x {given.height} pixels in an image of {width} x {height}"
                self._report("malformed", self._rows.policy.malformed, np.array([row]), found)
                self.keep[row] = False
        self.masks = Masks(
            part_offsets,
            value_offsets,
            points.astype(np.float32).reshape(-1),
            offsets_of([len(given.counts) for given in runs]),
            np.concatenate([np.asarray(given.counts, np.uint32) for given in runs]),
            np.array([given.height for given in runs], np.int32),
            np.array([given.width for given in runs], np.int32),
        )
        boxless = np.flatnonzero(self._kinds == BoxKind.AROUND_POLYGONS)
        if len(boxless):
            low = np.minimum.reduceat(points, value_offsets[:-1] // 2)
            high = np.maximum.reduceat(points, value_offsets[:-1] // 2)
            corners = np.tile([np.inf, np.inf, -np.inf, -np.inf], (count, 1))
            np.minimum.at(corners[:, :2], of_polygon, low)
            np.maximum.at(corners[:, 2:], of_polygon, high)
            self._boxes = self._boxes.copy()
            self._boxes[boxless] = corners[boxless]

    def _check_outlines(
        self,
        points: npt.NDArray[np.float64],
        starts: npt.NDArray[np.int64],
        part_offsets: npt.NDArray[np.int64],
        heights: npt.NDArray[np.int32],
    ) -> None:
        """Report the objects whose mask would take too long to draw for every sample."""
        limits = np.where(heights > 0, heights, _MAX_UNKNOWN_HEIGHT)
        most_crossings = np.diff(starts[part_offsets]) * limits
        for row in np.flatnonzero((most_crossings > MAX_ROW_CROSSINGS) & self.keep).tolist():
            parts = starts[part_offsets[row] : part_offsets[row + 1] + 1]
            crossings = row_crossings(points[parts[0] : parts[-1]], parts - parts[0], int(limits[row]))
            if crossings <= MAX_ROW_CROSSINGS:
                continue
            message = (
                f"{parts[-1] - parts[0]} points of polygons whose outlines cross {crossings} rows of pixels"
            )
            message += f"; at most MAX_ROW_CROSSINGS={MAX_ROW_CROSSINGS} are drawn, so simplify the polygons"
            self._report("malformed", self._rows.policy.malformed, np.array([row]), message)
            self.keep[row] = False

    def _check_chunk(self, chunk: slice) -> npt.NDArray[np.float32]:
        sizes, labels, rows = self._sizes[self.images[chunk]], self.labels[chunk], self._rows
        first, names = chunk.start, list(rows.class_names)

        def unknown(row: int) -> str:
            name = names[self._objects["label"][first + row]]
            return f"class {name!r} is not among class_names={shorten(str(self._class_names))}"

        self._apply(chunk, "unknown_class", rows.policy.unknown_class, labels < 0, unknown)
        boxes = self._boxes[chunk]
        if rows.normalized:
            given = self._kinds[chunk] != BoxKind.AROUND_POLYGONS  # which are in pixels already
            with np.errstate(over="ignore", invalid="ignore"):
                boxes = np.where(given[:, None], boxes * np.tile(sizes, 2), boxes)
        if rows.y_up:
            given = self._kinds[chunk] == BoxKind.GIVEN
            boxes = boxes.copy()
            boxes[given, 1::2] = sizes[given, 1:] - boxes[given, 3::-2]  # the upper edge becomes ymin
        return self._check_boxes(chunk, self._check_points(chunk, boxes, sizes), sizes)

    def _check_points(
        self, chunk: slice, boxes: npt.NDArray[np.float64], sizes: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float64]:
        """Check points, and return the boxes, those of objects without a box put around their points."""
        if self._schema is None:
            return boxes
        policy, points, seen = self._rows.policy, self.points[chunk], self.visibility[chunk]
        if self._rows.normalized:
            with np.errstate(over="ignore", invalid="ignore"):
                points[:] = (points * sizes[:, None]).astype(np.float32)
        if self._rows.y_up:
            points[..., 1] = sizes[:, 1:].astype(np.float32) - points[..., 1]
        bad: _Mask = ~_all(np.isfinite(points)) & (seen > 0)
        message = self._point_message(points, bad, "not finite")
        self._apply(chunk, "invalid_keypoint", policy.invalid_keypoint, _any(bad), message)
        seen[bad] = 0
        points[seen == 0] = 0.0
        known = _all(sizes > 0)[:, None]
        outside = _any((points < 0) | (points > sizes[:, None])) & known & (seen > 0)
        message = self._point_message(points, outside, "outside the image", sizes)
        self._apply(chunk, "keypoint_outside", policy.keypoint_outside, _any(outside), message)
        if policy.keypoint_outside == "absent":
            seen[outside] = 0
            points[outside] = 0.0
        around = np.flatnonzero(self._kinds[chunk] == BoxKind.AROUND_POINTS)
        if around.size:
            boxes = boxes.copy()
            boxes[around], is_wider = point_boxes(points[around], seen[around], sizes[around])
            self._report(
                "narrow_points",
                "widen",
                chunk.start + around[is_wider & self.keep[chunk][around]],
                lambda row: (
                    f"its points are on or near one line; its box is {boxes[row - chunk.start].tolist()}"
                ),
            )
        return boxes

    def _point_message(
        self,
        points: npt.NDArray[np.float32],
        wrong: _Mask,
        rule: str,
        sizes: npt.NDArray[np.int32] | None = None,
    ) -> _Message:
        def message(row: int) -> str:
            assert self._schema is not None
            places, names = np.flatnonzero(wrong[row]), self._schema.names
            shown = [f"{names[place]!r} {points[row, place].tolist()}" for place in places[:_SHOWN_POINTS]]
            shown += ["..."] if len(places) > _SHOWN_POINTS else []
            where = "" if sizes is None else f" of {sizes[row, 0]} x {sizes[row, 1]}"
            count = "1 point is" if len(places) == 1 else f"{len(places)} points are"
            return f"{count} {rule}{where}: {', '.join(shown)}"

        return message

    def _check_boxes(
        self, chunk: slice, written: npt.NDArray[np.float64], sizes: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        policy, kinds = self._rows.policy, self._kinds[chunk]
        given: _Mask = np.isin(kinds, (BoxKind.GIVEN, BoxKind.AROUND_POLYGONS))

        def message(rule: str) -> _Message:
            def text(row: int) -> str:
                width, height = sizes[row].tolist()
                size = f"image {width} x {height}" if width and height else "image size unknown"
                around = " around the points" if kinds[row] == BoxKind.AROUND_POINTS else ""
                return f"box {written[row].tolist()}{around} {rule} ({size})"

            return text

        with np.errstate(over="ignore", invalid="ignore"):
            finite: _Mask = _all(np.isfinite(written.astype(np.float32)))
        self._apply(chunk, "non_finite", policy.non_finite, ~finite, message("is not finite"))
        boxes = np.where(finite[:, None], written, 0.0)
        low, high = boxes[:, :2], boxes[:, 2:]
        self._apply(chunk, "swapped", policy.swapped, _any(low > high), message("has its corners exchanged"))
        boxes = np.hstack([np.minimum(low, high), np.maximum(low, high)])
        known = _all(sizes > 0)
        limits = np.tile(np.where(known[:, None], sizes, np.inf), 2)
        clipped = np.clip(boxes, np.where(known, 0.0, -np.inf)[:, None], limits)
        outside = _any(clipped != boxes) & given
        self._apply(chunk, "out_of_image", policy.out_of_image, outside, message("reaches beyond the image"))
        if policy.out_of_image == "clip":
            boxes = clipped
        single = boxes.astype(np.float32)
        whole = kinds == BoxKind.WHOLE_IMAGE
        flat = _any(single[:, 2:] <= single[:, :2]) & ~whole
        self._apply(chunk, "degenerate", policy.degenerate, flat, message("has no area inside the image"))
        single[whole, 2:] = sizes[whole]
        return single

    def _apply(self, chunk: slice, kind: str, action: str, wrong: _Mask, message: _Message) -> None:
        """Report the objects of a chunk that are wrong, and drop them under ``"drop"``."""
        found = np.flatnonzero(wrong & self.keep[chunk])
        self._report(kind, action, chunk.start + found, lambda row: message(row - chunk.start))
        if action == "drop":
            self.keep[chunk.start + found] = False

    def _report(self, kind: str, action: str, objects: npt.NDArray[np.intp], message: _Message | str) -> None:
        rows = self._rows
        for done, row in enumerate(objects.tolist()):
            if action != "raise" and not rows.report.keeps_detail(kind, action):
                rows.report.add_count(kind, action, len(objects) - done)
                break
            file, line, index = (self._objects[name][row].item() for name in ("file", "line", "index"))
            rows.file, line, index = self._files[file], line or None, None if index < 0 else index
            text = message if isinstance(message, str) else message(row)
            rows.problem(kind, action, text, line=line, index=index)


def _padded(column: Any, dtype: Any, missing: float, count: int, taken: Any) -> npt.NDArray[Any] | None:
    """Return a column that may end early, or None if the files have no values for it."""
    if not len(column):
        return None
    padded: npt.NDArray[Any] = np.full(count, missing, dtype=dtype)
    padded[: len(column)] = as_array(column, dtype)
    found: npt.NDArray[Any] = padded[taken]
    return found


def _is_name_of(stated: str, path: str) -> bool:
    """Whether a file name in an annotation, with or without ending, is that of the image that was found."""
    image = path.rpartition("/")[2].lower()
    return stated.replace("\\", "/").rpartition("/")[2].lower() in (image, image.rpartition(".")[0])


def _attributes(
    rows: Rows, listed: Sequence[tuple[str, tuple[str, ...]]], kept: npt.NDArray[np.intp]
) -> dict[str, Attribute]:
    """Return the columns of attributes, -1 where an object has no value; `Rows.check_cells` has bounded them."""
    places = {
        (name, value): (column, number)
        for column, (name, values) in enumerate(listed)
        for number, value in enumerate(values)
    }
    of_pair = np.array([places[pair] for pair in rows.attribute_values], dtype=np.int32).reshape(-1, 2)
    columns, numbers = of_pair[as_array(rows.objects.attribute_values, np.int32)].T
    ids = np.full((len(listed), len(rows.objects)), -1, dtype=np.int32)
    ids[columns, as_array(rows.objects.attribute_rows, np.int32)] = numbers
    return {
        name: Attribute(ids=of[kept].astype(np.int64), names=values)
        for (name, values), of in zip(listed, ids, strict=True)
    }
