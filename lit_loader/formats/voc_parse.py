"""VOC XML files to plain columns, many at a time; runs in this process or in a pool's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.xml_tree import child_line, child_text, read_xml

__all__ = ["MAX_NAME_CHARS", "VocColumns", "parse_voc_files"]

MAX_NAME_CHARS: Final = 256
_MAX_PIXELS: Final = 2**31 - 1
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_FLAGS: Final = ("difficult", "truncated", "occluded")
_USUAL_FLAGS: Final = {
    texts: [text == "1" for text in texts] for texts in product((None, "0", "1"), repeat=len(_FLAGS))
}
_TRUTH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True, "": False}


@dataclass(frozen=True, kw_only=True)
class VocColumns:
    """What a number of VOC files say, unjudged.

    Attributes:
        readable: bool ``(num_files,)``: False where the file is malformed and has no objects here.
        filenames: ``<filename>`` of each file, or None.
        sizes: int32 ``(num_files, 2)`` width and height, 0 where absent or not positive.
        counts: int64 ``(num_files,)`` objects of each file.
        names: The names that occur.
        name_ids: int64 ``(num_objects,)`` positions in ``names``.
        corners: float64 ``(num_objects, 4)`` xmin, ymin, xmax, ymax as written.
        flags: bool ``(num_objects, 3)`` difficult, truncated, occluded.
        positions: int64 ``(num_objects,)`` position of each object in its file.
        report: Malformed files and objects, odd flags.
    """

    readable: npt.NDArray[np.bool_]
    filenames: list[str | None]
    sizes: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    names: list[str]
    name_ids: npt.NDArray[np.int64]
    corners: npt.NDArray[np.float64]
    flags: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    report: ReadReport


@dataclass
class _Rows:
    """Objects read so far, one flat list a column."""

    names: dict[str, int] = field(default_factory=dict)
    name_ids: list[int] = field(default_factory=list)
    corners: list[float] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    report: ReadReport = field(default_factory=ReadReport)

    def note(self, kind: str, action: str, message: str, *, root: Path, file: str, position: int) -> None:
        """Report a problem of an object; its line is looked up only when the report keeps it."""
        wanted = self.report.wants_detail(kind, action)
        line = child_line(root / file, "object", position) if wanted else None
        self.report.add(
            Problem(kind=kind, action=action, file=file, message=message, line=line, object_index=position)
        )


def parse_voc_files(files: Sequence[str | None], *, root: Path, malformed: str) -> VocColumns:
    """Parse VOC files.

    Args:
        files: Paths relative to ``root``; None stands for a file without objects.
        root: The data set's folder.
        malformed: ``"raise"`` or ``"drop"``, as in VocPolicy.

    Raises:
        AnnotationError: For the first malformed file or object, under ``"raise"``.
    """
    rows = _Rows()
    readable, filenames, sizes, counts = [], [], [], []
    for file in files:
        before = len(rows.positions)
        filename, size, usable = None, (0, 0), True
        try:
            if file is not None:
                annotation = _read_annotation(root / file)
                filename, size = child_text(annotation, "filename"), _size(annotation)
                _read_objects(annotation, rows, file=file, root=root, malformed=malformed)
        except AnnotationError as error:
            if malformed == "raise":
                raise
            usable = False
            message = shorten(error.message)
            problem = Problem(
                kind="malformed_file", action="drop", file=str(file), message=message, line=error.line
            )
            rows.report.add(problem)
        readable.append(usable)
        filenames.append(filename)
        sizes.append(size)
        counts.append(len(rows.positions) - before)
    return VocColumns(
        readable=np.array(readable, dtype=np.bool_),
        filenames=filenames,
        sizes=np.array(sizes, dtype=np.int32).reshape(-1, 2),
        counts=np.array(counts, dtype=np.int64),
        names=list(rows.names),
        name_ids=np.array(rows.name_ids, dtype=np.int64),
        corners=np.array(rows.corners, dtype=np.float64).reshape(-1, 4),
        flags=np.array(rows.flags, dtype=np.bool_).reshape(-1, len(_FLAGS)),
        positions=np.array(rows.positions, dtype=np.int64),
        report=rows.report,
    )


def _read_annotation(path: Path) -> Element:
    annotation = read_xml(path)
    if annotation.tag != "annotation":
        message = f"the root element is <{shorten(annotation.tag)}>; a VOC file has <annotation>"
        raise AnnotationError(message, path=path, line=1)
    return annotation


def _read_objects(annotation: Element, rows: _Rows, *, file: str, root: Path, malformed: str) -> None:
    for position, element in enumerate(annotation.findall("object")):
        try:
            name, corners = _name(element, rows.names), _corners(element)
        except _ObjectError as error:
            if malformed == "raise":
                message = f"object {position}: {error}"
                line = child_line(root / file, "object", position)
                raise AnnotationError(message, path=root / file, line=line) from None
            rows.note("malformed_object", "drop", str(error), root=root, file=file, position=position)
            continue
        rows.name_ids.append(rows.names.setdefault(name, len(rows.names)))
        rows.corners += corners
        rows.positions.append(position)
        texts = (element.findtext("difficult"), element.findtext("truncated"), element.findtext("occluded"))
        flags = _USUAL_FLAGS.get(texts)
        if flags is None:
            flags = []
            for tag, text in zip(_FLAGS, texts, strict=True):
                known = _TRUTH.get((text or "").strip().lower())
                flags.append(bool(known))
                if known is None:
                    message = f"<{tag}> is {shorten(repr(text))}; 0 or 1 expected"
                    rows.note("odd_flag", "false", message, root=root, file=file, position=position)
        rows.flags += flags


class _ObjectError(Exception):
    """One object lacks what it must have; the message says what."""


def _name(element: Element, seen: dict[str, int]) -> str:
    name = element.findtext("name") or ""
    if name in seen:
        return name
    name = name.strip()
    if not name:
        raise _ObjectError("has no <name>")
    if len(name) > MAX_NAME_CHARS:
        raise _ObjectError(f"has a <name> of {len(name)} characters; at most {MAX_NAME_CHARS} are read")
    return name


def _corners(element: Element) -> list[float]:
    box = element.find("bndbox")
    if box is None:
        raise _ObjectError("has no <bndbox>")
    texts = [box.findtext(corner, "") for corner in _CORNERS]
    try:
        return [float(text) for text in texts]
    except ValueError:
        for corner, text in zip(_CORNERS, texts, strict=True):
            if not _is_number(text):
                raise _ObjectError(f"<{corner}> is {shorten(repr(text))}, not a number") from None
        raise


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _size(annotation: Element) -> tuple[int, int]:
    size = annotation.find("size")
    if size is None:
        return 0, 0
    return _pixels(child_text(size, "width")), _pixels(child_text(size, "height"))


def _pixels(text: str | None) -> int:
    try:
        value = float(text or "")
    except ValueError:
        return 0
    return int(value) if 1 <= value <= _MAX_PIXELS else 0
