"""Judges collected objects by the policy, some ten thousand at a time, and makes the table of what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.report import ReadReport, shorten
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.formats.collected import BoxKind, CollectedAttribute, CollectedImages, CollectedObjects
from lit_loader.formats.policy import ReadPolicy

__all__ = ["Judge"]

_CHUNK_ROWS: Final = 65_536
_CHUNK_POINTS: Final = 2**20
_SHOWN_POINTS: Final = 3
_Mask: TypeAlias = npt.NDArray[np.bool_]
_Message: TypeAlias = Callable[[int], str]


class _Problem(Protocol):
    def __call__(
        self, kind: str, action: str, message: str, *, file: str, line: int | None, index: int | None
    ) -> None: ...


class Judge:
    """Applies a policy to what a builder collected.

    Args:
        images: The images; those that are not kept are judged already.
        objects: The objects.
        names: Class names in the order of ``objects.labels``.
        class_names: The classes in the order of their ids, or None for ``names`` sorted.
        schema: The points of an object, or None.
        normalized: Whether coordinates are fractions of the image.
        policy: What to do.
        problem: Adds a problem to the report, or raises.
        report: The report; becomes the table's.
        files: The annotation files, by number.
    """

    def __init__(
        self,
        *,
        images: CollectedImages,
        objects: CollectedObjects,
        names: tuple[str, ...],
        class_names: tuple[str, ...] | None,
        schema: KeypointSchema | None,
        normalized: bool,
        policy: ReadPolicy,
        problem: _Problem,
        report: ReadReport,
        files: tuple[str, ...],
    ) -> None:
        self._images, self._objects, self._files = images, objects, files
        self._names, self._schema, self._normalized = names, schema, normalized
        self._policy, self._problem, self._report = policy, problem, report
        self.class_names = tuple(sorted(names)) if class_names is None else class_names
        ids = {name: i for i, name in enumerate(self.class_names)}
        lookup = np.array([ids.get(name, -1) for name in names], dtype=np.int64)
        count = len(objects.images)
        self._image_of = np.frombuffer(objects.images, dtype=np.int32) if count else np.zeros(0, np.int32)
        raw = np.frombuffer(objects.labels, dtype=np.int32) if count else np.zeros(0, np.int32)
        self._labels = lookup[raw] if count else np.zeros(0, np.int64)
        self._sizes = np.stack([_int32(images.widths), _int32(images.heights)], axis=1)
        self._keep_image: _Mask = np.frombuffer(bytes(images.keep), dtype=np.bool_)
        self._keep: _Mask = self._keep_image[self._image_of]
        self._boxes = np.frombuffer(objects.boxes, dtype=np.float64).reshape(-1, 4) if count else _NO_BOXES
        self._kinds = np.frombuffer(bytes(objects.kinds), dtype=np.uint8)
        self._points: npt.NDArray[np.float32] | None = None
        self._visibility: npt.NDArray[np.uint8] | None = None
        if schema is not None:
            shape = (count, len(schema.names))
            flat = np.frombuffer(objects.points, dtype=np.float32) if count else np.zeros(0, np.float32)
            seen = np.frombuffer(objects.visibility, dtype=np.uint8) if count else np.zeros(0, np.uint8)
            self._points, self._visibility = flat.reshape(*shape, 2), seen.reshape(shape)

    def table(
        self, *, root: Path, split: str | None, attributes: Mapping[str, CollectedAttribute]
    ) -> AnnotationTable:
        """Judge every object and return the table of those that are kept.

        Raises:
            AnnotationError: For the first problem whose action is ``"raise"``.
        """
        count = len(self._labels)
        single = np.zeros((count, 4), dtype=np.float32)
        step = _CHUNK_ROWS
        if self._schema is not None:
            step = max(1, min(step, _CHUNK_POINTS // len(self._schema.names)))
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            single[rows] = self._chunk(rows)
        kept = np.flatnonzero(self._keep)
        kept = kept[np.argsort(self._image_of[kept], kind="stable")]
        images = np.flatnonzero(self._keep_image)
        offsets = np.zeros(len(images) + 1, dtype=np.int64)
        per_image = np.bincount(self._image_of[kept], minlength=len(self._keep_image))
        np.cumsum(per_image[images], out=offsets[1:])
        flags = np.frombuffer(bytes(self._objects.flags), dtype=np.uint8)[kept]
        points: dict[str, Any] = {}
        if self._schema is not None and self._points is not None and self._visibility is not None:
            points = {
                "keypoints": self._points[kept],
                "visibility": self._visibility[kept],
                "keypoint_names": self._schema.names,
                "flip_pairs": self._schema.flip_pairs,
                "interocular": self._schema.interocular,
            }
        paths = [self._images.paths[i] for i in images.tolist()]
        ids = [self._images.ids[i] for i in images.tolist()]
        return AnnotationTable(
            root=root,
            image_paths=paths,
            image_ids=None if ids == paths else ids,
            class_names=self.class_names,
            widths=self._sizes[images, 0],
            heights=self._sizes[images, 1],
            offsets=offsets,
            boxes=single[kept],
            labels=self._labels[kept],
            difficult=(flags & 1) > 0,
            truncated=(flags & 2) > 0,
            occluded=(flags & 4) > 0,
            crowd=(flags & 8) > 0,
            attributes={name: _attribute(attributes[name], count, kept) for name in sorted(attributes)},
            split=split,
            report=self._report,
            **points,
        )

    def _chunk(self, rows: slice) -> npt.NDArray[np.float32]:
        sizes = self._sizes[self._image_of[rows]]
        labels, names = self._labels[rows], self.class_names
        first = rows.start

        def unknown(row: int) -> str:
            name = self._names[self._objects.labels[first + row]]
            return f"class {name!r} is not among class_names={shorten(str(names))}"

        self._judge(rows, "unknown_class", self._policy.unknown_class, labels < 0, unknown)
        boxes = self._boxes[rows]
        if self._normalized:
            with np.errstate(over="ignore", invalid="ignore"):
                boxes = boxes * np.tile(sizes, 2)
        if self._points is not None:
            boxes = self._judge_points(rows, boxes, sizes)
        return self._judge_boxes(rows, boxes, sizes)

    def _judge_points(
        self, rows: slice, boxes: npt.NDArray[np.float64], sizes: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float64]:
        """Judge points and return the boxes with those of box-less objects put around their points."""
        assert self._points is not None
        assert self._visibility is not None
        points, seen = self._points[rows], self._visibility[rows]
        if self._normalized:
            with np.errstate(over="ignore", invalid="ignore"):
                points *= sizes[:, None].astype(np.float32)
        bad: _Mask = ~_all(np.isfinite(points)) & (seen > 0)
        message = self._point_message(points, bad, "not finite")
        self._judge(rows, "bad_point", self._policy.bad_point, _any(bad), message)
        seen[bad] = 0
        points[seen == 0] = 0.0
        known = _all(sizes > 0)[:, None]
        outside = _any((points < 0) | (points > sizes[:, None])) & known & (seen > 0)
        message = self._point_message(points, outside, "outside the image", sizes)
        action = self._policy.point_outside
        self._judge(rows, "point_outside", action, _any(outside), message)
        if action == "absent":
            seen[outside] = 0
            points[outside] = 0.0
        around = np.flatnonzero(self._kinds[rows] == BoxKind.AROUND_POINTS)
        if around.size:
            boxes = boxes.copy()
            there = (seen[around] > 0)[..., None]
            low = np.where(there, points[around], np.inf).min(axis=1)
            high = np.where(there, points[around], -np.inf).max(axis=1)
            boxes[around] = np.where(_any(there[..., 0])[:, None], np.hstack([low, high]), 0.0)
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
            places = np.flatnonzero(wrong[row])
            shown = ", ".join(
                f"{self._schema.names[place]!r} {points[row, place].tolist()}"
                for place in places[:_SHOWN_POINTS]
            )
            more = ", ..." if len(places) > _SHOWN_POINTS else ""
            where = "" if sizes is None else f" of {sizes[row, 0]} x {sizes[row, 1]}"
            count = "1 point is" if len(places) == 1 else f"{len(places)} points are"
            return f"{count} {rule}{where}: {shown}{more}"

        return message

    def _judge_boxes(
        self, rows: slice, written: npt.NDArray[np.float64], sizes: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        policy, kinds = self._policy, self._kinds[rows]
        given: _Mask = kinds == BoxKind.GIVEN

        def message(rule: str) -> _Message:
            def text(row: int) -> str:
                width, height = sizes[row].tolist()
                size = f"image {width} x {height}" if width and height else "image size unknown"
                around = " around the points" if kinds[row] == BoxKind.AROUND_POINTS else ""
                return f"box {written[row].tolist()}{around} {rule} ({size})"

            return text

        with np.errstate(over="ignore", invalid="ignore"):
            finite: _Mask = _all(np.isfinite(written.astype(np.float32)))
        self._judge(rows, "non_finite", policy.non_finite, ~finite, message("is not finite"))
        boxes = np.where(finite[:, None], written, 0.0)
        low, high = boxes[:, :2], boxes[:, 2:]
        swapped = _any(low > high)
        self._judge(rows, "swapped", policy.swapped, swapped, message("has its corners exchanged"))
        boxes = np.hstack([np.minimum(low, high), np.maximum(low, high)])
        known = _all(sizes > 0)
        limits = np.tile(np.where(known[:, None], sizes, np.inf), 2)
        clipped = np.clip(boxes, np.where(known, 0.0, -np.inf)[:, None], limits)
        outside = _any(clipped != boxes) & given
        reason = message("reaches beyond the image")
        self._judge(rows, "out_of_image", policy.out_of_image, outside, reason)
        if policy.out_of_image == "clip":
            boxes = clipped
        single = boxes.astype(np.float32)
        whole = kinds == BoxKind.WHOLE
        degenerate = _any(single[:, 2:] <= single[:, :2]) & ~whole
        self._judge(
            rows, "degenerate", policy.degenerate, degenerate, message("has no area inside the image")
        )
        single[whole, 2:] = sizes[whole]
        return single

    def _judge(self, rows: slice, kind: str, action: str, wrong: _Mask, message: _Message) -> None:
        """Report the kept rows of a chunk that are wrong, and drop them under ``"drop"``."""
        found = np.flatnonzero(wrong & self._keep[rows])
        objects = self._objects
        for done, row in enumerate(found.tolist()):
            if action != "raise" and not self._report.wants_detail(kind, action):
                self._report.add_count(kind, action, len(found) - done)
                break
            place = rows.start + row
            file, index = self._files[objects.files[place]], objects.indices[place]
            line = objects.lines[place] or None
            self._problem(
                kind, action, message(row), file=file, line=line, index=None if index < 0 else index
            )
        if action == "drop":
            self._keep[rows.start + found] = False


_NO_BOXES: Final = np.zeros((0, 4), dtype=np.float64)


def _all(mask: _Mask) -> _Mask:
    every: _Mask = np.logical_and.reduce(mask, axis=-1)
    return every


def _any(mask: _Mask) -> _Mask:
    some: _Mask = np.logical_or.reduce(mask, axis=-1)
    return some


def _int32(column: Any) -> npt.NDArray[np.int32]:
    return np.frombuffer(column, dtype=np.int32) if len(column) else np.zeros(0, dtype=np.int32)


def _attribute(column: CollectedAttribute, count: int, kept: npt.NDArray[np.intp]) -> Attribute:
    names = sorted(column.names)
    places = {name: place for place, name in enumerate(names)}
    lookup = np.array([places[name] for name in column.names], dtype=np.int64)
    ids = np.full(count, -1, dtype=np.int64)
    ids[_int32(column.rows)] = lookup[_int32(column.ids)]
    return Attribute(ids=ids[kept], names=tuple(names))
