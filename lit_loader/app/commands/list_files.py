"""Lists of the images of a split in the form of the format, next to the annotations, which stay unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import find_reader, write_annotations
from lit_loader.annotations.formats.registry import make_format
from lit_loader.annotations.formats.writer import write_file
from lit_loader.annotations.paths import check_relative
from lit_loader.app.commands.reading import format_options_of
from lit_loader.app.commands.settings import UsageError
from lit_loader.errors import AnnotationError
from lit_loader.types import IndexArray

__all__ = ["write_lists"]

# The name of a list for each format that has lists, relative to the root, with {} for the part.
_PATTERNS: Final = {"voc": "{}", "yolo": "{}.txt", "coco": "annotations/{}.json"}


def write_lists(
    arguments: argparse.Namespace, pool: AnnotationTable, rows_by_list: Mapping[str, IndexArray], names_read: set[str]
) -> tuple[dict[str, str], list[str]]:
    """Write a list for each part; return the name to read for each, and descriptions of lost values.

    COCO has no lists, so each part is a JSON file with its images and annotations.

    Args:
        arguments: The arguments of ``split``; ``lists`` is the name of a list with ``{}`` for the part, or "" for the
            default of the format.
        pool: The images.
        rows_by_list: Images of each part.
        names_read: Names of the files, folders or lists that were read, which are never replaced.

    Raises:
        UsageError: If the format has no lists, the name has no ``{}``, or a list exists.
        AnnotationError: If an image cannot be a line of a list.
    """
    format = arguments.format
    if format not in _PATTERNS:
        formats = ", ".join(_PATTERNS)
        raise UsageError(f"--lists: {format} has no lists ({formats} have); --out FILE writes a split file instead")
    pattern = arguments.lists or _PATTERNS[format]
    if pattern.count("{}") != 1:
        raise UsageError(f"--lists {pattern!r} must have {{}} for the part once, e.g. {_PATTERNS[format]}")
    names = {part: pattern.replace("{}", part) for part in rows_by_list}
    root = Path(arguments.root)
    paths = {part: root / _list_path(arguments, name) for part, name in names.items()}
    for part, path in paths.items():
        if names[part] in names_read:
            raise UsageError(
                f"--lists: {names[part]!r} is being read; give other names, e.g. --lists {_other(pattern)}"
            )
        if path.exists() and not arguments.overwrite:
            remedy = f"give other names, e.g. --lists {_other(pattern)}, or --overwrite"
            raise UsageError(f"--lists: {path} already exists; {remedy}")
    lost: dict[str, None] = {}
    for part, rows in rows_by_list.items():
        if format == "coco":
            table = replace(pool.select(rows), split=part)
            settings = {"allow_loss": True, "progress": arguments.progress}
            lost |= dict.fromkeys(write_annotations("coco", table, root, names[part], **settings))
        else:
            lines = pool.image_ids if format == "voc" else pool.image_paths
            write_file(paths[part], [_line(lines[row], root) for row in rows.tolist()])
    return names, list(lost)


def _list_path(arguments: argparse.Namespace, name: str) -> str:
    """Return the path of a list, relative to the root."""
    if arguments.format != "voc":
        return check_relative(name)
    options = next(iter(format_options_of(arguments, {"": ""}).values()))
    reader = make_format(find_reader("voc"), options)
    return check_relative(f"{vars(reader)['split_dir']}/{name}.txt")


def _line(text: str, root: Path) -> bytes:
    if "\n" in text or "\r" in text or text != text.strip():
        raise AnnotationError(f"the image {text!r} cannot be a line of a list; rename its file", path=root)
    return f"{text}\n".encode("utf-8", "surrogateescape")


def _other(pattern: str) -> str:
    return pattern.replace("{}", "new_{}")
