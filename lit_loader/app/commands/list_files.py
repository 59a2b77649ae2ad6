"""Lists of the images of a split in the form of the format, next to the annotations, which stay unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import find_reader, write_annotations
from lit_loader.annotations.formats.registry import make_format
from lit_loader.annotations.formats.text_file import read_lines
from lit_loader.annotations.formats.writer import write_file
from lit_loader.annotations.paths import check_relative
from lit_loader.app.commands.reading import format_options_of
from lit_loader.app.commands.settings import UsageError
from lit_loader.errors import AnnotationError
from lit_loader.types import IndexArray

__all__ = ["write_lists"]

# The name of a list for formats with lists, with {} for the part.
_PATTERNS: Final = {"voc": "{}", "yolo": "{}.txt", "coco": "annotations/{}.json"}
# Formats whose annotations are lines, so that a list has some of the lines.
_LINE_FORMATS: Final = ("class_list", "keypoints_csv", "keypoints_txt", "retinaface", "wflw", "widerface")


def write_lists(
    arguments: argparse.Namespace,
    pool: AnnotationTable,
    rows_by_list: Mapping[str, IndexArray],
    sets: Mapping[str, str],
) -> tuple[dict[str, str], list[str]]:
    """Write a list for each part; return the name to read for each, and descriptions of lost values.

    VOC and YOLO get lists of images. COCO has none, so each part is a JSON file with its images and annotations. In a
    format with annotations in lines, each part gets its lines.

    Args:
        arguments: The arguments of ``split``; ``lists`` is the name of a list with ``{}`` for the part, or "" for the
            default of the format.
        pool: The images.
        rows_by_list: Images of each list.
        sets: Names of the files, folders or lists that were read, by set; they are never replaced.

    Raises:
        UsageError: If the format has no lists, the name has no ``{}``, or a list exists.
        AnnotationError: If an image cannot be a line of a list.
    """
    format = arguments.format
    pattern = arguments.lists or _default_pattern(format, sets)
    if pattern.count("{}") != 1:
        raise UsageError(f"--lists {pattern!r} must have {{}} for the part once, e.g. {_default_pattern(format, sets)}")
    options = [values for name, values in format_options_of(arguments, sets).items() if name not in arguments.keep]
    if format != "coco" and any(values != options[0] for values in options):
        raise UsageError(
            "--lists: the sets have different options; split one of them, or write a split file with --out"
        )
    names = {part: pattern.replace("{}", part) for part in rows_by_list}
    root = Path(arguments.root)
    folder = ""
    if format == "voc":
        folder = f"{vars(make_format(find_reader('voc'), options[0]))['split_dir']}/"
    paths = {part: root / check_relative(f"{folder}{name}{'.txt' if folder else ''}") for part, name in names.items()}
    other = f"give other names, e.g. --lists {PurePosixPath(pattern).with_name(f'new_{PurePosixPath(pattern).name}')}"
    for part, path in paths.items():
        if names[part] in sets.values():
            raise UsageError(f"--lists: {names[part]!r} is being read; {other}")
        if path.exists() and not arguments.overwrite:
            raise UsageError(f"--lists: {path} already exists; {other}, or --overwrite")
    lost: dict[str, None] = {}
    for part, rows in rows_by_list.items():
        if format == "coco":
            table = replace(pool.select(rows), split=part)
            settings = {"allow_loss": True, "progress": arguments.progress}
            lost |= dict.fromkeys(write_annotations("coco", table, root, names[part], **settings))
        elif format in _LINE_FORMATS:
            write_file(paths[part], _lines_of(pool, rows))
        else:
            texts = pool.image_ids if format == "voc" else pool.image_paths
            write_file(paths[part], [_line(texts[row], root) for row in rows.tolist()])
    return names, list(lost)


def _default_pattern(format: str, sets: Mapping[str, str]) -> str:
    """Return the name of a list with ``{}`` for the part.

    Raises:
        UsageError: If the format has no lists.
    """
    if format in _LINE_FORMATS:
        first = PurePosixPath(next(iter(sets.values())))
        return str(first.with_name(f"{{}}{first.suffix}"))
    if format not in _PATTERNS:
        formats = ", ".join([*_PATTERNS, *_LINE_FORMATS])
        raise UsageError(f"--lists: {format} has no lists ({formats} have); --out FILE writes a split file instead")
    return _PATTERNS[format]


def _lines_of(pool: AnnotationTable, rows: IndexArray) -> Iterator[bytes]:
    """Yield the lines of some images, in the order of the files, after the heading of the first file.

    A line belongs to the image whose place, or the place of one of whose objects, is the last one at or before it: an
    image may have a line, a line for each object, or a line of its own before them.
    """
    places = chain(
        ((image, pool.place_of_image(image)) for image in range(pool.num_images)),
        ((image, pool.place_of_object(row)) for row, image in enumerate(pool.image_of_object().tolist())),
    )
    image_by_line: dict[str, dict[int, int]] = {}
    for image, place in places:
        if place is not None and place.line is not None:
            image_by_line.setdefault(place.file, {})[place.line] = image
    is_listed = np.zeros(pool.num_images, dtype=np.bool_)
    is_listed[rows] = True
    for number, (file, images) in enumerate(image_by_line.items()):
        # The lines before the first image are the heading, which the lists need once.
        is_written = number == 0
        for line, text in read_lines(pool.root, file, keep_ends=True):
            if line in images:
                is_written = bool(is_listed[images[line]])
            if is_written:
                yield (text if text.endswith("\n") else f"{text}\n").encode("utf-8", "surrogateescape")


def _line(text: str, root: Path) -> bytes:
    if "\n" in text or "\r" in text or text != text.strip():
        raise AnnotationError(f"the image {text!r} cannot be a line of a list; rename its file", path=root)
    return f"{text}\n".encode("utf-8", "surrogateescape")
