"""VOC XML files to plain columns, many at a time; runs in this process or in a pool's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

import numpy as np

from lit_loader.annotations.report import Problem, ReadReport, shorten
from lit_loader.errors import AnnotationError
from lit_loader.formats.voc_additions import Additions, ObjectError, is_number, may_hold_additions, read_truth
from lit_loader.formats.voc_columns import VocColumns
from lit_loader.formats.voc_schema import MAX_NAME_CHARS, VocSchema, read_schema
from lit_loader.formats.xml_tree import child_line, child_text, parse_xml, read_bytes

__all__ = ["parse_voc_files"]

_MAX_PIXELS: Final = 2**31 - 1
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_FLAGS: Final = ("difficult", "truncated", "occluded")
_USUAL_FLAGS: Final = {
    texts: [text == "1" for text in texts] for texts in product((None, "0", "1"), repeat=len(_FLAGS))
}


@dataclass
class _Rows:
    """Objects read so far, one flat list a column."""

    additions: Additions
    names: dict[str, int] = field(default_factory=dict)
    name_ids: list[int] = field(default_factory=list)
    corners: list[float] = field(default_factory=list)
    flags: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    schemas: dict[VocSchema, int] = field(default_factory=dict)
    report: ReadReport = field(default_factory=ReadReport)

    def note(self, kind: str, action: str, message: str, *, root: Path, file: str, position: int) -> None:
        """Report a problem of an object; its line is looked up only when the report keeps it."""
        wanted = self.report.wants_detail(kind, action)
        line = child_line(root / file, "object", position) if wanted else None
        self.report.add(
            Problem(kind=kind, action=action, file=file, message=message, line=line, object_index=position)
        )


def parse_voc_files(
    files: Sequence[str | None],
    *,
    root: Path,
    malformed: str,
    keypoints: bool = True,
    attributes: bool = True,
) -> VocColumns:
    """Parse VOC files.

    Args:
        files: Paths relative to ``root``; None stands for a file without objects.
        root: The data set's folder.
        malformed: ``"raise"`` or ``"drop"``, as in VocPolicy.
        keypoints: Whether to read the points of objects that have a box.
        attributes: Whether to read attributes.

    Raises:
        AnnotationError: For the first malformed file or object, under ``"raise"``.
    """
    rows = _Rows(additions=Additions(keypoints=keypoints, attributes=attributes))
    readable, filenames, sizes, counts, schema_ids = [], [], [], [], []
    for file in files:
        before = len(rows.positions)
        filename, size, schema_id, usable = None, (0, 0), -1, True
        try:
            if file is not None:
                annotation, more = _read_annotation(root / file)
                filename, size = child_text(annotation, "filename"), _size(annotation)
                schema = _schema(annotation, root / file) if more else None
                if schema is not None:
                    schema_id = rows.schemas.setdefault(schema, len(rows.schemas))
                _read_objects(
                    annotation, rows, file=file, root=root, malformed=malformed, more=more, schema=schema
                )
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
        schema_ids.append(schema_id)
        counts.append(len(rows.positions) - before)
    flags = np.zeros((len(rows.positions), len(_FLAGS) + 1), dtype=np.bool_)
    flags[:, :-1] = np.array(rows.flags, dtype=np.bool_).reshape(-1, len(_FLAGS))
    flags[rows.additions.crowd, -1] = True
    boxed = np.ones(len(rows.positions), dtype=np.bool_)
    boxed[rows.additions.unboxed] = False
    return VocColumns(
        readable=np.array(readable, dtype=np.bool_),
        filenames=filenames,
        sizes=np.array(sizes, dtype=np.int32).reshape(-1, 2),
        counts=np.array(counts, dtype=np.int64),
        schemas=list(rows.schemas),
        schema_ids=np.array(schema_ids, dtype=np.int64),
        names=list(rows.names),
        name_ids=np.array(rows.name_ids, dtype=np.int64),
        corners=np.array(rows.corners, dtype=np.float64).reshape(-1, 4),
        boxed=boxed,
        flags=flags,
        positions=np.array(rows.positions, dtype=np.int64),
        points=rows.additions.point_rows(),
        attributes=rows.additions.attribute_rows(),
        report=rows.report,
    )


def _read_annotation(path: Path) -> tuple[Element, bool]:
    """Return the root element, and whether the file may hold more than plain VOC."""
    data = read_bytes(path)
    annotation = parse_xml(data, path=path)
    if annotation.tag != "annotation":
        message = f"the root element is <{shorten(annotation.tag)}>; a VOC file has <annotation>"
        raise AnnotationError(message, path=path, line=1)
    return annotation, may_hold_additions(data)


def _schema(annotation: Element, path: Path) -> VocSchema | None:
    elements = annotation.findall("schema")
    if not elements:
        return None
    try:
        if len(elements) > 1:
            raise ValueError("the file holds <schema> more than once")
        return read_schema(elements[0])
    except (TypeError, ValueError) as error:
        line = child_line(path, "schema", len(elements) - 1)
        raise AnnotationError(shorten(str(error)), path=path, line=line) from None


def _read_objects(
    annotation: Element,
    rows: _Rows,
    *,
    file: str,
    root: Path,
    malformed: str,
    more: bool,
    schema: VocSchema | None,
) -> None:
    known = None if schema is None or schema.keypoints is None else frozenset(schema.keypoints.names)
    for position, element in enumerate(annotation.findall("object")):
        try:
            name = _name(element, rows.names)
            corners = _corners(element, box_needed=not more or element.find("keypoints") is None)
            if more:
                rows.additions.read(element, row=len(rows.positions), known=known, boxed=corners is not _NONE)
        except ObjectError as error:
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
                known_flag = read_truth(text)
                flags.append(bool(known_flag))
                if known_flag is None:
                    message = f"<{tag}> is {shorten(repr(text))}; 0 or 1 expected"
                    rows.note("odd_flag", "false", message, root=root, file=file, position=position)
        rows.flags += flags
        if more:
            for message in (f"<part> {shorten(repr(p.findtext('name')))}" for p in element.findall("part")):
                rows.note("part", "not read", message, root=root, file=file, position=position)


_NONE: Final = [math.nan] * 4


def _name(element: Element, seen: dict[str, int]) -> str:
    name = element.findtext("name") or ""
    if name in seen:
        return name
    name = name.strip()
    if not name:
        raise ObjectError("has no <name>")
    if len(name) > MAX_NAME_CHARS:
        raise ObjectError(f"has a <name> of {len(name)} characters; at most {MAX_NAME_CHARS} are read")
    return name


def _corners(element: Element, *, box_needed: bool) -> list[float]:
    box = element.find("bndbox")
    if box is None:
        if box_needed:
            raise ObjectError("has no <bndbox>")
        return _NONE
    texts = [box.findtext(corner, "") for corner in _CORNERS]
    try:
        return [float(text) for text in texts]
    except ValueError:
        for corner, text in zip(_CORNERS, texts, strict=True):
            if not is_number(text):
                raise ObjectError(f"<{corner}> is {shorten(repr(text))}, not a number") from None
        raise


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
