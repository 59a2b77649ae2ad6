"""The reader of dlib's imglab XML: boxes with labels and named parts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.image_files import join_path
from lit_loader.formats.imglab_file import ImglabBox, read_imglab_images
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.table_room import MAX_POINT_NAMES, lacks_room

__all__ = ["read_imglab"]

_READER_VERSION = 1
_EDGES: Final = ("left", "top", "width", "height")
_FLAGS: Final = {
    "ignore": "difficult",
    "difficult": "difficult",
    "truncated": "truncated",
    "occluded": "occluded",
}
_TRUTH: Final = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}


def read_imglab(
    root: Path | str,
    name: str,
    *,
    image_dir: str | None = None,
    class_name: str = "face",
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None,
    keypoints: bool = True,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read an XML file of dlib's imglab; it may hold any number of images.

    A box reaches from ``left``, ``top`` to ``left + width``, ``top + height``. Its ``<label>`` is the class. A
    box with ``ignore`` counts neither as found nor as missed in dlib, which VOC calls difficult: so does the
    table. Parts are visible points; a part that a box does not have is absent. What else a box says (``angle``,
    ``pose``, ``age``, ``gender`` ...) is not read, and counted in the report.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The XML file, relative to ``root``.
        image_dir: The folder that paths are relative to, relative to ``root``; None: the XML file's own, as
            for dlib.
        class_name: Class of boxes without a label.
        schema: What the parts are, as in ``keypoint_schema``: ``"face_68"`` for dlib's own faces. Parts of
            other names are not read and reported. None: the names that occur, sorted, without flip pairs.
        keypoints: Whether to read parts.
        split: The table's split.
        class_names: Classes in the order of their ids; None: those that occur, sorted.
        policy: What to do about each kind of problem; default ``ReadPolicy()``.
        cache_dir: Where the table is cached; None: the user's cache folder.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers, where the file does not say the size.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: If the file is no such XML, or for a problem whose action is ``"raise"``; names file
            and line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If arguments contradict each other.

    Source:
        dlib, tools/imglab and dlib/data_io/image_dataset_metadata.h.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    if schema is not None and not keypoints:
        raise ValueError(f"schema={schema!r} says what parts are, and keypoints=False reads none; drop one")
    given = None if schema is None else keypoint_schema(schema)
    folder = (posixpath.dirname(name) or ".") if image_dir is None else image_dir
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        points = _occurring_parts(real_root, name) if keypoints and given is None else given
        builder = TableBuilder(root=real_root, policy=policy, schema=points, class_names=names, split=split)
        reader = _BoxReader(builder, name, class_name)
        for image in read_imglab_images(real_root, name):
            file_name = image.attributes.get("file", "")
            if not file_name:
                builder.malformed("<image> has no file", file=name, line=image.line)
                continue
            number = builder.image(
                join_path(folder, file_name, source=real_root / name, line=image.line),
                file=name,
                line=image.line,
                width=_pixels(image.attributes.get("width")),
                height=_pixels(image.attributes.get("height")),
            )
            for box in image.boxes:
                reader.add(number, box)
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "imglab",
        version=_READER_VERSION,
        root=real_root,
        files=[name],
        image_dirs=[folder],
        settings={
            "schema": None if given is None else [given.names, given.flip_pairs, given.interocular],
            "read": keypoints,
            "class": [class_name, names, split],
        },
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _occurring_parts(root: Path, name: str) -> KeypointSchema | None:
    found: set[str] = set()
    for image in read_imglab_images(root, name):
        for box in image.boxes:
            found.update(part.get("name", "") for part in box.parts)
        if len(found) > MAX_POINT_NAMES:
            message = f"more than {MAX_POINT_NAMES} names of parts; pass `schema`, or keypoints=False"
            raise AnnotationError(message, path=root / name, line=image.line)
    found.discard("")  # judged with its box
    return KeypointSchema(names=tuple(sorted(found))) if found else None


class _BoxReader:
    """Hands boxes to the builder."""

    def __init__(self, builder: TableBuilder, file: str, class_name: str) -> None:
        self._builder, self._file, self._class_name = builder, file, class_name
        self._boxes = self._parts = 0
        schema = builder.schema
        self._places = {} if schema is None else {name: place for place, name in enumerate(schema.names)}

    def add(self, image: int, box: ImglabBox) -> None:
        try:
            corners = _corners(box.attributes)
            flags = _flags(box.attributes)
            points, visibility = self._points(box)
        except ValueError as error:
            self._builder.malformed(f"<box>: {error}", file=self._file, line=box.line)
            return
        for name in box.attributes:
            if name not in _EDGES and name not in _FLAGS:
                message = f"{shorten(name)}={shorten(repr(box.attributes[name]))} of a <box>"
                self._builder.problem("attribute", "not read", message, file=self._file, line=box.line)
        self._boxes += 1
        self._parts += len(box.parts)
        problem = lacks_room(names=len(self._places), objects=self._boxes, written=self._parts)
        if problem is not None:
            message = f"parts: {problem}; pass `schema`, or keypoints=False"
            raise AnnotationError(message, path=self._builder.root / self._file, line=box.line)
        self._builder.object(
            image,
            class_name=box.labels[0] if box.labels and box.labels[0] else self._class_name,
            box=corners,
            points=points,
            visibility=visibility,
            file=self._file,
            line=box.line,
            difficult=flags["difficult"],
            truncated=flags["truncated"],
            occluded=flags["occluded"],
        )

    def _points(self, box: ImglabBox) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.uint8] | None]:
        if not self._places or not box.parts:
            return None, None
        points = np.zeros((len(self._places), 2), dtype=np.float64)
        visibility = np.zeros(len(points), dtype=np.uint8)
        seen: set[str] = set()
        unknown: list[str] = []
        for part in box.parts:
            name = part.get("name", "")
            if not name or name in seen:
                raise ValueError(f"has the part {name!r} twice" if name else "has a <part> without name")
            seen.add(name)
            if name not in self._places:
                unknown.append(name)
                continue
            place = self._places[name]
            points[place] = [_number(part, axis, f"part {name!r}") for axis in ("x", "y")]
            visibility[place] = 2
        if unknown:
            message = f"parts {shorten(str(unknown))} are none of the schema's"
            self._builder.problem("unknown_point", "ignore", message, file=self._file, line=box.line)
        return points, visibility


def _corners(attributes: Mapping[str, str]) -> tuple[float, float, float, float]:
    left, top, width, height = (_number(attributes, edge, "it") for edge in _EDGES)
    return left, top, left + width, top + height


def _number(attributes: Mapping[str, str], name: str, what: str) -> float:
    text = attributes.get(name)
    try:
        return float(text or "")
    except ValueError:
        found = "no" if text is None else f"{shorten(repr(text))}, which is no number, as"
        raise ValueError(f"{what} has {found} {name}") from None


def _flags(attributes: Mapping[str, str]) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    for name, flag in _FLAGS.items():
        text = attributes.get(name, "0").strip().lower()
        if text not in _TRUTH:
            raise ValueError(f"it has {shorten(repr(text))} as {name}; 0 or 1 expected")
        flags[flag] = flags.get(flag, False) or _TRUTH[text]
    return flags


def _pixels(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0
