"""Collects images and objects from any reader, has them judged by the policy, and builds the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.collected import (
    BoxKind,
    CollectedAttributes,
    CollectedImages,
    CollectedObjects,
    TooManyError,
    wrong_name,
)
from lit_loader.formats.image_files import ImageFiles, join_path
from lit_loader.formats.image_sizes import read_image_sizes
from lit_loader.formats.judging import Judge
from lit_loader.formats.policy import ReadPolicy

__all__ = ["TableBuilder"]

_MAX_PIXELS: Final = 2**31 - 1
_NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})
_NO_NAMES: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class TableBuilder:
    """Takes what a reader finds, row by row, in any order; ``build`` judges all of it at once.

    Args:
        root: The data set's folder, real and absolute.
        policy: What to do about problems.
        schema: The points of an object, or None for a table without points.
        class_names: The classes in the order of their ids; None takes the names that occur, sorted, those
            of objects that the policy drops included.
        split: The table's split.
        normalized: Whether boxes and points are fractions of the image's width and height.
        attribute_names: Values that attributes can have, whether they occur or not.

    Raises:
        ValueError: If ``normalized`` meets a policy that keeps images of unknown size.
    """

    def __init__(
        self,
        *,
        root: Path,
        policy: ReadPolicy,
        schema: KeypointSchema | None = None,
        class_names: Sequence[str] | None = None,
        split: str | None = None,
        normalized: bool = False,
        attribute_names: Mapping[str, Sequence[str]] = _NO_NAMES,
    ) -> None:
        if normalized and "keep" in (policy.missing_image, policy.unreadable_image):
            raise ValueError(
                "normalized coordinates need the size of every image; choose 'drop' or 'raise' for "
                f"missing_image={policy.missing_image!r} and unreadable_image={policy.unreadable_image!r}"
            )
        self.root, self.policy, self.schema = root, policy, schema
        self.report = ReadReport()
        self._class_names = None if class_names is None else tuple(class_names)
        self._split, self._normalized = split, normalized
        self._num_points = 0 if schema is None else len(schema.names)
        self._images = CollectedImages()
        self._objects = CollectedObjects()
        self._files = ImageFiles(root)
        self._image_of: dict[str, int] = {}
        self._file_of: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._attributes = CollectedAttributes()
        for name, values in attribute_names.items():
            self._attributes.declare(name, values)

    def image(
        self,
        path: str,
        *,
        file: str,
        line: int | None = None,
        image_id: str | None = None,
        width: int = 0,
        height: int = 0,
    ) -> int:
        """Return the number of an image; the same path again is the same image, with what came first.

        A path without an image's ending means the first file that has one (``ImageFiles.find``).

        Args:
            path: Relative to the root, not trusted.
            file: The annotation file that names it, relative to the root.
            line: Line in that file.
            image_id: What the annotations call the image; default: its path.
            width: Pixels, 0 = not said.
            height: Pixels, 0 = not said.

        Raises:
            UnsafePathError: If the path or a symbolic link on it leads out of the root.
            AnnotationError: If the image is missing and the policy says so, or there are too many.
        """
        known = self._image_of.get(path)
        if known is not None:
            return known
        given, path = path, join_path(".", path, source=self.root / file, line=line)
        found = self._files.find(path, source=self.root / file, line=line)
        number = self._image_of.get(found or path)
        if number is None:
            number = len(self._images.paths)
            try:
                self._images.add(
                    found or path,
                    image_id=given if image_id is None else image_id,
                    size=self._size(width, height, file, line),
                    exists=found is not None,
                    place=(self._file(file), line or 0),
                )
            except TooManyError as error:
                raise AnnotationError(str(error), path=self.root / file, line=line) from None
            if found is None:
                action = self.policy.missing_image
                message = f"there is no image {shorten(path)!r}"
                if action == "raise":
                    message += "; `image_dir` says which folder paths are relative to"
                self.problem("missing_image", action, message, file=file, line=line)
                self._images.keep[number] = action != "drop"
            else:
                self._image_of[found] = number
        self._image_of[given] = self._image_of[path] = number
        return number

    def object(
        self,
        image: int,
        *,
        class_name: str,
        box: Sequence[float] | None,
        points: npt.ArrayLike | None = None,
        visibility: npt.ArrayLike | None = None,
        attributes: Mapping[str, str] = _NO_ATTRIBUTES,
        difficult: bool = False,
        truncated: bool = False,
        occluded: bool = False,
        crowd: bool = False,
        file: str,
        line: int | None = None,
        index: int | None = None,
    ) -> None:
        """Add an object.

        Args:
            image: What ``image`` returned.
            class_name: Its class.
            box: xmin, ymin, xmax, ymax in pixels (or fractions). None: around the points that are present;
                without points, the whole image.
            points: ``(K, 2)`` as the schema has points; None: all absent.
            visibility: ``(K,)`` 0 absent, 1 hidden, 2 visible; None: all visible.
            attributes: Further named values.
            difficult: Flag.
            truncated: Flag.
            occluded: Flag.
            crowd: Flag.
            file: The annotation file, relative to the root.
            line: Line in that file.
            index: Position of the object in the file, counted from 0, where that helps more than a line.

        Raises:
            ValueError: If points come without a schema, or points or box do not have their shape.
            AnnotationError: If a name is empty or too long and the policy says so, or there are too many.
        """
        wrong = wrong_name("class", class_name)
        for name, value in attributes.items():
            wrong = wrong or wrong_name("attribute", name) or wrong_name(f"attribute {name!r}", value)
        if wrong:
            self.malformed(wrong, file=file, line=line, index=index)
            return
        if points is not None and self.schema is None:
            raise ValueError("points need a schema; pass it to TableBuilder")
        kind = BoxKind.WHOLE if points is None else BoxKind.AROUND_POINTS
        try:
            if self._num_points:
                self._objects.add_points(self._num_points, points, visibility)
            for name, value in attributes.items():
                self._attributes.add(len(self._objects.images), name, value)
            self._objects.add(
                image=image,
                label=self._names.setdefault(class_name, len(self._names)),
                box=(0.0, 0.0, 0.0, 0.0) if box is None else box,
                kind=kind if box is None else BoxKind.GIVEN,
                flags=difficult | truncated << 1 | occluded << 2 | crowd << 3,
                place=(self._file(file), line or 0, -1 if index is None else index),
            )
        except TooManyError as error:
            raise AnnotationError(str(error), path=self.root / file, line=line) from None

    def malformed(
        self, message: str, *, file: str, line: int | None = None, index: int | None = None
    ) -> None:
        """Report something that is not as its format asks, or raise, as the policy says."""
        self.problem("malformed", self.policy.malformed, message, file=file, line=line, index=index)

    def problem(
        self,
        kind: str,
        action: str,
        message: str,
        *,
        file: str,
        line: int | None = None,
        index: int | None = None,
    ) -> None:
        """Add a problem to the report.

        Raises:
            AnnotationError: If ``action`` is ``"raise"``; names file and line.
        """
        if action == "raise":
            where = "" if index is None else f"object {index}: "
            message = f"{where}{message}; correct it, or choose ReadPolicy({kind}=...)"
            raise AnnotationError(message, path=self.root / file, line=line)
        if self.report.wants_detail(kind, action):
            place: dict[str, Any] = {"file": file, "line": line, "object_index": index}
            self.report.add(Problem(kind=kind, action=action, message=shorten(message), **place))
        else:
            self.report.add_count(kind, action, 1)

    def build(
        self, *, sizes: bool = True, num_workers: int | None = None, progress: bool = True
    ) -> AnnotationTable:
        """Judge everything and build the table; once.

        Args:
            sizes: Whether to read the header of each image whose size was not said.
            num_workers: Processes that read headers, as in ``map_chunks``.
            progress: Whether to draw a progress bar on a terminal.

        Raises:
            AnnotationError: For the first problem whose action is ``"raise"``; names file and line.
            ValueError: If coordinates are normalized and ``sizes`` is False.
        """
        self._image_of.clear()  # with it goes a third of what a row costs
        if self._normalized and not sizes:
            raise ValueError("normalized coordinates need sizes=True")
        if sizes:
            self._read_sizes(num_workers=num_workers, progress=progress)
        judge = Judge(
            images=self._images,
            objects=self._objects,
            names=tuple(self._names),
            class_names=self._class_names,
            schema=self.schema,
            normalized=self._normalized,
            policy=self.policy,
            problem=self.problem,
            report=self.report,
            files=tuple(self._file_of),
        )
        return judge.table(root=self.root, split=self._split, attributes=self._attributes.columns)

    def _read_sizes(self, *, num_workers: int | None, progress: bool) -> None:
        images = self._images
        wanted = [
            number
            for number in range(len(images.paths))
            if images.keep[number] and images.exists[number] and not images.widths[number]
        ]
        found, reasons = read_image_sizes(
            self.root, [images.paths[number] for number in wanted], num_workers=num_workers, progress=progress
        )
        files = tuple(self._file_of)
        for position, number in enumerate(wanted):
            images.widths[number], images.heights[number] = found[position].tolist()
            if position in reasons:
                action = self.policy.unreadable_image
                message = f"the size of {shorten(images.paths[number])!r} cannot be read: {reasons[position]}"
                file, line = files[images.files[number]], images.lines[number] or None
                self.problem("unreadable_image", action, message, file=file, line=line)
                images.keep[number] = action != "drop"

    def _size(self, width: int, height: int, file: str, line: int | None) -> tuple[int, int]:
        if 1 <= width <= _MAX_PIXELS and 1 <= height <= _MAX_PIXELS:
            return width, height
        if width or height:
            message = f"a size of {str(width)[:30]} x {str(height)[:30]} is not positive"
            self.problem("bad_size", "unknown", message, file=file, line=line)
        return 0, 0

    def _file(self, file: str) -> int:
        return self._file_of.setdefault(file, len(self._file_of))
