"""Judges what VOC files say, image by image and object by object, by the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.voc_columns import VocColumns
from lit_loader.formats.voc_files import IMAGE_EXTENSIONS, VocFiles, VocItem
from lit_loader.formats.voc_points import PointTable
from lit_loader.formats.voc_policy import VocPolicy
from lit_loader.formats.xml_tree import child_line

__all__ = ["VocJudge"]

_Mask: TypeAlias = npt.NDArray[np.bool_]


class VocJudge:
    """Applies a policy to columns; ``keep_image`` and ``keep_object`` are what is left so far."""

    def __init__(
        self,
        files: VocFiles,
        items: Sequence[VocItem],
        columns: VocColumns,
        policy: VocPolicy,
        report: ReadReport,
    ) -> None:
        self.files, self.items, self.columns, self.policy, self.report = files, items, columns, policy, report
        self.keep_image: _Mask = columns.readable.copy()
        self.image_of = np.repeat(np.arange(len(items)), columns.counts)
        self.keep_object: _Mask = np.ones(len(self.image_of), dtype=np.bool_)

    def images(self) -> list[str]:
        """Find the image of every item and check it; returns paths relative to the root."""
        paths = []
        for i, item in enumerate(self.items):
            filename = self.columns.filenames[i]
            paths.append(_choose_image(item, filename, self.files.image_dir))
            if not self.keep_image[i]:
                continue
            wrong = filename and not _names_image(filename, paths[i])
            sized = item.xml is None or self.columns.sizes[i].all()
            if not item.images:
                where = f"no image {shorten(item.image_id)!r} in {self.files.image_dir!r}"
                self._image(i, "missing_image", self.policy.missing_image, where)
            elif wrong and filename is not None:
                message = f"<filename> is {shorten(filename)!r}; the image is {paths[i]!r}"
                self._image(i, "wrong_filename", self.policy.wrong_filename, message)
            if self.keep_image[i] and not sized:
                self._image(i, "bad_size", self.policy.bad_size, "<size> is absent or not positive")
            if self.keep_image[i] and len(item.images) > 1:
                self._image(
                    i, "several_images", "choose", f"{item.images} belong to it; {paths[i]!r} is used"
                )
        self.keep_object &= self.keep_image[self.image_of]
        return paths

    def schema_mismatch(self, file: int, message: str) -> None:
        """Judge a file whose schema contradicts that of a file before."""
        item = self.items[file]
        action = self.policy.schema_mismatch
        wanted = action == "raise" or self.report.wants_detail("schema_mismatch", action)
        line = child_line(self.files.root / (item.xml or ""), "schema", 0) if wanted else None
        self._image(file, "schema_mismatch", action, message, line=line)

    def classes(self, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """Return class ids; objects of unknown classes are judged."""
        found = self.columns.names
        ids = {name: i for i, name in enumerate(names)}
        lookup = np.array([ids.get(name, -1) for name in found], dtype=np.int64)
        labels = lookup[self.columns.name_ids] if found else np.zeros(0, dtype=np.int64)

        def message(row: int) -> str:
            return (
                f"class {found[self.columns.name_ids[row]]!r} is not among class_names={shorten(str(names))}"
            )

        self._objects("unknown_class", self.policy.unknown_class, labels < 0, message)
        return labels

    def points(self, points: PointTable, *, wanted: bool) -> None:
        """Judge points; without a table that wants them, only what a box is put around."""

        def judge(kind: str, action: str, wrong: _Mask, rule: str) -> None:
            def message(row: int) -> str:
                return f"{points.words(row, wrong)} {rule}"

            self._objects(kind, action, points.objects_with(wrong), message)
            if action not in ("keep", "raise"):
                points.make_absent(wrong)

        if wanted:
            judge("unknown_point", "ignore", points.unknown(), "are none of the schema's")
        judge("bad_point", self.policy.bad_point, points.not_finite(), "are not finite")
        outside = points.outside(self.columns.sizes[self.image_of])
        judge("point_outside", self.policy.point_outside, outside, "lie outside the image")

    def boxes(self, corners: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the boxes after repair; those that cannot be kept are judged."""
        policy = self.policy
        with np.errstate(over="ignore", invalid="ignore"):
            finite: _Mask = np.logical_and.reduce(np.isfinite(corners.astype(np.float32)), axis=1)
        written = np.where(self.columns.boxed[:, None], self.columns.corners, corners)

        def message(rule: str) -> Callable[[int], str]:
            return lambda row: f"box {written[row].tolist()} {rule}{self._size_words(row)}"

        self._objects("non_finite", policy.non_finite, ~finite, message("is not finite"))
        boxes = np.where(finite[:, None], corners, 0.0)
        low, high = boxes[:, :2], boxes[:, 2:]
        swapped: _Mask = np.logical_or.reduce(low > high, axis=1)
        self._objects("swapped", policy.swapped, swapped, message("has its corners exchanged"))
        boxes = np.hstack([np.minimum(low, high), np.maximum(low, high)])
        sizes = self.columns.sizes.astype(np.float64)[self.image_of]
        known: _Mask = np.logical_and.reduce(sizes > 0, axis=1)
        limits = np.tile(np.where(known[:, None], sizes, np.inf), 2)
        clipped = np.clip(boxes, 0.0, limits)
        outside: _Mask = np.logical_or.reduce(clipped != boxes, axis=1)
        outside &= self.columns.boxed
        self._objects("out_of_image", policy.out_of_image, outside, message("reaches beyond the image"))
        if policy.out_of_image == "clip":
            boxes = clipped
        single = boxes.astype(np.float32)
        degenerate: _Mask = np.logical_or.reduce(single[:, 2:] <= single[:, :2], axis=1)
        self._objects("degenerate", policy.degenerate, degenerate, message("has no area inside the image"))
        return boxes

    def _size_words(self, row: int) -> str:
        width, height = self.columns.sizes[self.image_of[row]]
        return f" (image {width} x {height})" if width and height else " (image size unknown)"

    def _image(self, i: int, kind: str, action: str, message: str, *, line: int | None = None) -> None:
        item = self.items[i]
        if action == "raise":
            self._raise(kind, message, item, line)
        file = item.xml or item.image_id
        self.report.add(Problem(kind=kind, action=action, file=file, message=message, line=line))
        if action == "drop":
            self.keep_image[i] = False

    def _objects(self, kind: str, action: str, wrong: _Mask, message: Callable[[int], str]) -> None:
        rows = np.flatnonzero(wrong & self.keep_object)
        if rows.size == 0:
            return
        room = 1 if action == "raise" else self.report.max_details
        for row in rows[:room]:
            item = self.items[int(self.image_of[row])]
            position = int(self.columns.positions[row])
            line = child_line(self.files.root / (item.xml or ""), "object", position)
            if action == "raise":
                self._raise(kind, f"object {position}: {message(int(row))}", item, line)
            place: dict[str, Any] = {"file": item.xml or "", "line": line, "object_index": position}
            self.report.add(Problem(kind=kind, action=action, message=message(int(row)), **place))
        self.report.add_count(kind, action, len(rows) - min(len(rows), room))
        if action == "drop":
            self.keep_object[rows] = False

    def _raise(self, kind: str, message: str, item: VocItem, line: int | None) -> None:
        path = self.files.split_file if item.xml is None else self.files.root / item.xml
        line = item.line if item.xml is None else line
        raise AnnotationError(f"{message}; correct it, or choose VocPolicy({kind}=...)", path=path, line=line)


def _choose_image(item: VocItem, filename: str | None, image_dir: str) -> str:
    extension = PurePosixPath(filename or "").suffix
    if not item.images:
        known = extension if extension.lower() in IMAGE_EXTENSIONS else IMAGE_EXTENSIONS[0]
        return str(PurePosixPath(image_dir, item.image_id + known))
    same = [image for image in item.images if image.lower().endswith(extension.lower())]
    return (same or list(item.images))[0]


def _names_image(filename: str, path: str) -> bool:
    """Whether ``<filename>`` means the image at ``path``; case and a missing extension are forgiven."""
    image = path.rpartition("/")[2].lower()
    named = filename.replace("\\", "/").rpartition("/")[2].lower()
    return named in (image, image.rpartition(".")[0])
