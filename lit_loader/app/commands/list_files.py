"""Lists of the images of a split in the form of the format, next to the annotations, which stay unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import find_reader, write_annotations
from lit_loader.annotations.formats.folder import is_image_name
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
# Formats with several lines an image, and a function that returns True for the first of them.
_FIRST_LINES: Final[Mapping[str, Callable[[str], bool]]] = {
    "retinaface": lambda line: line.strip().startswith("#"),
    "widerface": lambda line: is_image_name(line.strip()),
}


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
    source_paths = [root / f"{folder}{name}{'.txt' if folder else ''}" for name in sets.values()]
    for part, path in paths.items():
        # Names may differ for one file: ./train.txt, links, and upper case on some systems.
        if path.exists() and any(source.exists() and path.samefile(source) for source in source_paths):
            raise UsageError(f"--lists: {names[part]!r} is being read; {other}")
        if path.exists() and not arguments.overwrite:
            raise UsageError(f"--lists: {path} already exists; {other}, or --overwrite")
    texts = pool.image_ids if format == "voc" else pool.image_paths
    if format in ("voc", "yolo"):
        # All of them before the first list is written.
        _check_lines(texts, root)
    images_by_file = _images_by_file(pool) if format in _LINE_FORMATS else {}
    lost: dict[str, None] = {}
    for part, rows in rows_by_list.items():
        if format == "coco":
            table = replace(pool.select(rows), split=part)
            settings = {"allow_loss": True, "progress": arguments.progress}
            lost |= dict.fromkeys(write_annotations("coco", table, root, names[part], **settings))
        elif format in _LINE_FORMATS:
            write_file(paths[part], _lines_of(format, pool, rows, images_by_file))
        else:
            write_file(paths[part], (_line(texts[row]) for row in rows.tolist()))
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


def _images_by_file(pool: AnnotationTable) -> dict[str, dict[int, int]]:
    """Return the image of each line that is the place of an image or of an object, by file."""
    places = chain(
        ((image, pool.place_of_image(image)) for image in range(pool.num_images)),
        ((image, pool.place_of_object(row)) for row, image in enumerate(pool.image_of_object().tolist())),
    )
    images_by_file: dict[str, dict[int, int]] = {}
    for image, place in places:
        if place is not None and place.line is not None:
            images_by_file.setdefault(place.file, {})[place.line] = image
    return images_by_file


def _lines_of(
    format: str, pool: AnnotationTable, rows: IndexArray, images_by_file: Mapping[str, Mapping[int, int]]
) -> Iterator[bytes]:
    """Yield the lines of some images, in the order of the files, after the heading of the first file.

    Skips lines of dropped images, and of images that another file has listed before.

    Args:
        format: Name of the format.
        pool: All images.
        rows: The images.
        images_by_file: The image of each line, as of ``_images_by_file``.
    """
    is_listed = np.zeros(pool.num_images, dtype=np.bool_)
    is_listed[rows] = True
    for number, (file, images) in enumerate(images_by_file.items()):
        # The lines before the first image are the heading, which the lists need once.
        heading_end = min(images) if number == 0 and format not in _FIRST_LINES else 0
        for block in _blocks(format, read_lines(pool.root, file, keep_ends=True)):
            image_row = next((images[line] for line, _ in block if line in images), None)
            if block[0][0] < heading_end or (image_row is not None and is_listed[image_row]):
                for _, text in block:
                    yield _line(text.removesuffix("\n"))


def _blocks(format: str, lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines of a file in blocks of one image."""
    is_first = _FIRST_LINES.get(format)
    block: list[tuple[int, str]] = []
    for line, text in lines:
        if block and (is_first is None or is_first(text)):
            yield block
            block = []
        block.append((line, text))
    if block:
        yield block


def _check_lines(texts: Iterable[str], root: Path) -> None:
    """Raise AnnotationError if an image cannot be a line of a list."""
    for text in texts:
        if "\n" in text or "\r" in text or text != text.strip():
            raise AnnotationError(f"the image {text!r} cannot be a line of a list; rename its file", path=root)


def _line(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "surrogateescape")
