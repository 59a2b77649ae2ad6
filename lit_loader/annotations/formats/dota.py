"""DOTA v1.0 to v2.0: one text file per image, one oriented box per line, in pixels.

    imagesource:GoogleEarth
    gsd:0.146343590398
    2753 2408 2861 2385 2888 2468 2805 2502 plane 0

NOTE [Where the files of a set are]
    The label file of ``train/images/P0001.png`` is ``train/labelTxt/P0001.txt``. A split is such a folder, a folder in
    ``images`` and in ``labelTxt``, or a list of images, one name per line, with or without its ending.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.folder import Folder, is_image_name, join_path
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, Rows
from lit_loader.annotations.formats.text_file import numbers, read_lines
from lit_loader.annotations.formats.writer import Writer, corner_losses, in_chunks, lost, number_text, write_file
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.errors import AnnotationError

__all__ = ["DotaReader", "DotaWriter"]

_HEADERS: Final = re.compile(r"\s*(imagesource|gsd)\s*:", re.IGNORECASE)
_NUM_COORDINATES: Final = 8
_DIFFICULTIES: Final = ("0", "1", "2")
_HARDEST: Final = "2"  # a flag cannot hold it, so it is also the value of an attribute
_ATTRIBUTE: Final = "difficulty"


class _Unit(NamedTuple):
    """An image, or a file that is only reported.

    Attributes:
        image: Path of the image, possibly without its ending.
        label: Label file, or "" without one.
        source: List or folder that contains the image.
        line: Line in the list, or None.
        problem: Kind and description of a problem, or two empty texts.
    """

    image: str
    label: str
    source: str
    line: int | None = None
    problem: tuple[str, str] = ("", "")


@dataclass(frozen=True, kw_only=True)
class DotaReader(Reader):
    """Reads a DOTA data set.

    A line is ``x1 y1 x2 y2 x3 y3 x4 y4 category difficult``: the corners of an oriented box in pixels, in the order of
    the table's ``corners``. ``difficult`` is 0, 1 or 2, or missing for 0; objects with 1 and 2 are ``difficult``, and
    those with 2 have the attribute ``difficulty`` of the value ``2``. Lines ``imagesource:`` and ``gsd:`` before the
    first object are counted in the report. Classes are those that occur, sorted, unless ``class_names`` lists them.

    NAME is the first that exists of a folder with ``labelTxt`` in it, a folder in ``labelTxt``, and a list NAME or
    ``NAME.txt``; "." means the folder ``labelTxt`` of the root. A folder's set consists of its images and label files:
    an image without a label file is a ``missing_annotation``, a label file without an image a ``missing_image``.

    Args:
        image_dir: Folder of the images, relative to the root or to the split's folder.
        label_dir: Folder of the label files, such as ``labelTxt-v1.5``.

    Source:
        https://captain-whu.github.io/DOTA/dataset.html.
    """

    format: ClassVar[str] = "dota"
    description: ClassVar[str] = "DOTA's oriented boxes; NAME: a folder with images and labelTxt, a list, or ."

    image_dir: str = "images"
    label_dir: str = "labelTxt"

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the label files of a split.

        Raises:
            AnnotationError: If the split does not exist or is empty.
            UnsafePathError: If a line of a list leads out of the root.
        """
        source, image_dir, label_dir = self._places(folder, name)
        if folder.is_file(source):
            units = list(_units_of_list(folder, source, image_dir, label_dir))
        else:
            units = list(_units_of_folder(folder, image_dir, label_dir))
        if not units:
            raise AnnotationError(f"found no label file in {label_dir}", path=folder.root)
        labels = dict.fromkeys(unit.label for unit in units if unit.label)
        return Inputs(
            # Labels are read line by line, which takes no stamps, so they are not `unit_files`.
            files=[*([source] if folder.is_file(source) else []), *labels],
            units=units,
            split=None if name == "." else posixpath.splitext(name)[0],
            listed=[unit.image for unit in units],
        )

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add an image and its objects."""
        rows.file = unit.source
        kind, message = unit.problem
        if kind:
            action = getattr(rows.policy, kind)
            rows.problem(kind, action, message, line=unit.line)
            if action != "empty":
                return
        if not unit.label:
            rows.image(unit.image, line=unit.line)
            return
        rows.file = unit.label
        # A label file that cannot be read drops its image, so it is read before the image is added.
        lines = list(read_lines(rows.root, unit.label))
        rows.file = unit.label if unit.line is None else unit.source
        image = rows.image(unit.image, line=unit.line)
        rows.file = unit.label
        in_header = True
        for line, text in lines:
            if in_header and (match := _HEADERS.match(text)):
                rows.not_read(match[1].lower())
                continue
            fields = text.split()
            if not fields:
                continue
            in_header = False
            try:
                rows.object(image, line=line, **_object_arguments(fields))
            except AnnotationError as error:
                if error is rows.raised:
                    raise
                rows.malformed(error.message, line=line)

    def _places(self, folder: Folder, name: str) -> tuple[str, str, str]:
        """Return the list or folder of a split, the folder of its images and the folder of its label files."""
        name = posixpath.normpath(check_relative(name))
        pairs = [(f"{name}/{self.image_dir}", f"{name}/{self.label_dir}")]
        if name != ".":
            pairs.append((f"{self.image_dir}/{name}", f"{self.label_dir}/{name}"))
        for image_dir, label_dir in (map(posixpath.normpath, pair) for pair in pairs):
            if folder.is_folder(label_dir):
                return label_dir, image_dir, label_dir
        lists = [name, f"{name}.txt"]
        image_dir, label_dir = (posixpath.normpath(path) for path in (self.image_dir, self.label_dir))
        for source in lists:
            if folder.is_file(source):
                return source, image_dir, label_dir
        candidates = [posixpath.normpath(label_dir) for _, label_dir in pairs]
        listed = ", ".join([*candidates, *(lists if name != "." else ())])
        raise AnnotationError(f"found no split {name!r}: none of {listed} exists; see label_dir", path=folder.root)


def _units_of_folder(folder: Folder, image_dir: str, label_dir: str) -> Iterator[_Unit]:
    """Yield the images of a folder, and the label files that belong to none of them."""
    labels = {path for path in folder.below(label_dir) if path.endswith(".txt")}
    images = sorted(folder.below(image_dir)) if folder.is_folder(image_dir) else []
    unused = dict.fromkeys(sorted(labels))
    for image in filter(is_image_name, images):
        label = _label_path(image, image_dir, label_dir)
        unused.pop(label, None)
        yield _unit(image, label, exists=label in labels, source=label_dir)
    for label in unused:
        stem = posixpath.relpath(label, label_dir).removesuffix(".txt")
        yield _Unit(join_path(image_dir, stem), label, label_dir)


def _units_of_list(folder: Folder, source: str, image_dir: str, label_dir: str) -> Iterator[_Unit]:
    """Yield the images of a list."""
    seen: set[str] = set()
    for line, text in read_lines(folder.root, source):
        if not (text := text.strip()):
            continue
        image = join_path(image_dir, text, source=folder.root / source, line=line)
        label = _label_path(image, image_dir, label_dir)
        if image in seen:
            problem = "duplicate_id", f"image {shorten(repr(text))} is listed more than once"
            yield _Unit(image, label, source, line, problem)
            continue
        seen.add(image)
        yield _unit(image, label, exists=folder.is_file(label), source=source, line=line)


def _unit(image: str, label: str, *, exists: bool, source: str, line: int | None = None) -> _Unit:
    if exists:
        return _Unit(image, label, source, line)
    message = f"image {shorten(repr(image))} has no label file {shorten(repr(label))}"
    return _Unit(image, "", source, line, ("missing_annotation", message))


def _label_path(image: str, image_dir: str, label_dir: str) -> str:
    """Return the label file of an image in ``image_dir``."""
    name = image if image_dir == "." else image.removeprefix(f"{image_dir}/")
    # Names of images contain dots (P0001.v2), so only the ending of an image is removed.
    stem = posixpath.splitext(name)[0] if is_image_name(name) else name
    return posixpath.normpath(f"{label_dir}/{stem}.txt")


def _object_arguments(fields: Sequence[str]) -> dict[str, Any]:
    """Convert the fields of a line to arguments of `Rows.object`.

    Raises:
        AnnotationError: If they are not an object of DOTA.
    """
    expected = "x1 y1 x2 y2 x3 y3 x4 y4 category difficult"
    num_fields = len(fields)
    if num_fields not in (_NUM_COORDINATES + 1, _NUM_COORDINATES + 2):
        raise AnnotationError(f"{num_fields} fields, where a line has 9 or 10: {expected}")
    category, *flags = fields[_NUM_COORDINATES:]
    difficulty = flags[0] if flags else "0"
    if difficulty not in _DIFFICULTIES:
        raise AnnotationError(f"difficult is {shorten(repr(difficulty))}; expected 0, 1 or 2 at the end of {expected}")
    arguments: dict[str, Any] = {"difficult": True} if difficulty != "0" else {}
    if difficulty == _HARDEST:
        arguments["attributes"] = {_ATTRIBUTE: _HARDEST}
    return {"class_name": category, "box": None, "oriented": numbers(fields[:_NUM_COORDINATES]), **arguments}


@dataclass(frozen=True, kw_only=True)
class DotaWriter(Writer):
    """Writes a table as DOTA: a label file for each image, and the list ``NAME.txt`` of the images.

    The label file of ``images/a.png`` is ``labelTxt/a.txt``. Images are not copied. Corners are written with the digits
    that restore float32. Axis-aligned and rotated boxes are written as their corners, and counted as losses.

    Args:
        image_dir: Folder of the images in the paths of the table.
        label_dir: Folder of the label files, relative to the root.
    """

    format: ClassVar[str] = "dota"
    description: ClassVar[str] = "DOTA's oriented boxes in labelTxt, and a list; NAME: the split"
    name_of_split: ClassVar[str] = "{}"

    image_dir: str = "images"
    label_dir: str = "labelTxt"

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return the parts of a table that DOTA cannot hold."""
        losses = lost(table, "masks", "numbers", "files")
        counts: dict[str, int] = dict(corner_losses(table))
        counts |= {f"{flag} objects": int(getattr(table, flag).sum()) for flag in ("truncated", "occluded", "crowd")}
        counts["points of each object"] = len(table.keypoint_names)
        for name, attribute in table.attributes.items():
            is_lost = attribute.ids >= 0
            if name == _ATTRIBUTE:
                # A value of an object that is not difficult, or another value than 2.
                is_lost &= ~_is_hardest(table)
            counts[f"values of attribute {name!r}"] = int(is_lost.sum())
        return losses + [f"{count} {kind}" for kind, count in counts.items() if count]

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a split.

        Raises:
            ValueError: If ``name`` is not the table's split, a class name would not be read back, an image is not in
                ``image_dir``, cannot be in a list, or would share its label file.
            UnsafePathError: If ``label_dir`` or the name leads out of the root.
        """
        if table.split not in (None, name) or not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"name={name!r} must be a word such as 'train', and the table's split, {table.split!r}")
        _check_class_names(table)
        image_dir, label_dir = (posixpath.normpath(check_relative(path)) for path in (self.image_dir, self.label_dir))
        prefix = "" if image_dir == "." else f"{image_dir}/"
        owners: dict[str, str] = {}
        images_by_label: dict[str, list[int]] = {}
        for i, path in enumerate(table.image_paths):
            label = _label_path(path, image_dir, label_dir)
            text = path.removeprefix(prefix)
            if not path.startswith(prefix) or text != text.strip() or len(text.splitlines()) != 1:
                raise ValueError(f"image {path!r} is not in image_dir={self.image_dir!r}, or cannot be in a list")
            # A label file must not overwrite the list either.
            if owners.setdefault(label, path) != path or label == f"{name}.txt":
                raise ValueError(f"image {path!r} shares its label file {label!r} with {owners[label]!r}; rename it")
            images_by_label.setdefault(label, []).append(i)
        write = partial(_write_labels, table=table, corners=table.oriented_corners(), root=root)
        list(in_chunks(write, list(images_by_label.items()), progress=progress))
        lines = "".join(f"{path.removeprefix(prefix)}\n" for path in dict.fromkeys(table.image_paths))
        # Last, so that an interrupted set has no split.
        write_file(root / check_relative(f"{name}.txt"), [lines.encode("utf-8", "surrogateescape")])


def _is_hardest(table: AnnotationTable) -> npt.NDArray[np.bool_]:
    """Return True for each object whose attribute ``difficulty`` is 2 and that is difficult."""
    attribute = table.attributes.get(_ATTRIBUTE, Attribute(ids=np.full(table.num_objects, -1), names=()))
    is_value = np.array([*(name == _HARDEST for name in attribute.names), False])
    is_hardest: npt.NDArray[np.bool_] = is_value[attribute.ids] & table.difficult
    return is_hardest


def _check_class_names(table: AnnotationTable) -> None:
    """Raise ValueError for a class name that the reader would change or refuse."""
    for name in table.class_names:
        encoded = name.encode("utf-8", "surrogateescape")
        is_word = name.split() == [name] and "\0" not in name and len(name) <= MAX_NAME_CHARS
        if not is_word or encoded.decode("utf-8", "surrogateescape") != name:
            rule = f"a category is 1 to {MAX_NAME_CHARS} characters without blanks"
            raise ValueError(f"class {shorten(repr(name))} would not be read back; {rule}; rename it")


def _write_labels(
    chunk: Sequence[tuple[str, list[int]]], *, table: AnnotationTable, corners: npt.NDArray[np.float32], root: Path
) -> None:
    is_hardest = _is_hardest(table)
    for label, images in chunk:
        lines = []
        for row in (row for i in images for row in range(int(table.offsets[i]), int(table.offsets[i + 1]))):
            difficulty = _HARDEST if is_hardest[row] else str(int(table.difficult[row]))
            texts = [*map(number_text, corners[row].ravel()), table.class_names[int(table.labels[row])], difficulty]
            lines.append(" ".join(texts) + "\n")
        path = root / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))
