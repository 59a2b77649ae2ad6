"""The reader of text lists of images with their class, or classes, on every line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lit_loader.annotations.report import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.cached import check_class_names, check_workers, read_cached
from lit_loader.formats.collected import MAX_NAMES
from lit_loader.formats.image_files import join_path
from lit_loader.formats.policy import ReadPolicy
from lit_loader.formats.text_file import MAX_NAME_CHARS, read_lines
from lit_loader.formats.voc_files import IMAGE_EXTENSIONS

__all__ = ["read_class_list"]

_READER_VERSION = 1
_ENDINGS: Final = "|".join(re.escape(ending) for ending in IMAGE_EXTENSIONS)
_PATH: Final = re.compile(rf"(\S.*?(?:{_ENDINGS}))(?:\s+(.*))?", re.IGNORECASE)


def read_class_list(
    root: Path | str,
    name: str,
    *,
    image_dir: str = ".",
    separator: str | None = None,
    header: bool = False,
    numbered: bool = False,
    class_file: str | None = None,
    split: str | None = None,
    class_names: Sequence[str] | None = None,
    policy: ReadPolicy | None = None,
    cache_dir: Path | str | None = None,
    use_cache: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> AnnotationTable:
    """Read a list such as mmpretrain's ``ann.txt``: ``train/a.jpg cat``, or ``train/a.jpg cat outdoor``.

    A line is a path, then any number of labels. Each label becomes one object of the image, whose box is the
    whole image; a line without a label is an image without objects, and reported. Lines with the same path are
    one image's. A path without an image's ending means the first file that has one. Empty lines are skipped.

    Args:
        root: The data set's folder; nothing outside of it is opened.
        name: The list, relative to ``root``.
        image_dir: The folder that paths are relative to, relative to ``root``.
        separator: What stands between path and labels, and between labels; None: blanks, where a path may hold
            blanks if it has an image's ending.
        header: Whether the first line is no image.
        numbered: Whether labels are numbers, from 0, of ``class_names`` or of the lines of ``class_file``.
        class_file: A file with a class on each line, relative to ``root``: the classes in the order of their
            ids, unless ``class_names`` say another one.
        split: The table's split.
        class_names: Classes in the order of their ids; None: those of ``class_file``, else those that occur,
            sorted.
        policy: What to do about each kind of problem; default ``ReadPolicy()``. A number without a class is an
            unknown class.
        cache_dir: Where the table is cached; None: the user's cache folder.
        use_cache: Whether to load from the cache and store there.
        num_workers: Processes that read image headers.
        progress: Whether to draw a progress bar on a terminal.

    Raises:
        AnnotationError: For a problem whose action is ``"raise"``; names file and line.
        UnsafePathError: If a path or link leads out of ``root``.
        ValueError: If ``numbered`` labels have no classes, or other arguments contradict each other.
    """
    check_workers(num_workers)
    names = check_class_names(class_names)
    policy = ReadPolicy() if policy is None else policy
    if separator is not None and (not separator or separator in "\r\n"):
        raise ValueError(f"separator={separator!r} must be text that can stand in a line, or None for blanks")
    if numbered and names is None and class_file is None:
        raise ValueError("numbered=True needs class_file or class_names: which classes the numbers mean")
    real_root = Path(root).resolve()

    def build() -> AnnotationTable:
        listed = None if class_file is None else _read_classes(real_root, class_file)
        meant = (listed or names or ()) if numbered else None
        builder = TableBuilder(
            root=real_root, policy=policy, class_names=listed if names is None else names, split=split
        )
        for line, text in read_lines(real_root, name):
            if text.strip() and not (header and line == 1):
                path, labels = _split(text, separator)
                _add(builder, path, labels, meant, image_dir=image_dir, file=name, line=line)
        return builder.build(num_workers=num_workers, progress=progress)

    return read_cached(
        "class_list",
        version=_READER_VERSION,
        root=real_root,
        files=[name] if class_file is None else [name, class_file],
        image_dirs=[image_dir],
        settings={"lines": [separator, header, numbered], "class": [names, class_file, split]},
        policy=policy,
        build=build,
        cache_dir=cache_dir,
        use_cache=use_cache,
        progress=progress,
    )


def _read_classes(root: Path, name: str) -> tuple[str, ...]:
    names: dict[str, int] = {}
    for line, text in read_lines(root, name):
        class_name = text.strip()
        if not class_name:
            continue
        if class_name in names or len(class_name) > MAX_NAME_CHARS or len(names) >= MAX_NAMES:
            rule = f"classes differ, have at most {MAX_NAME_CHARS} characters, and are at most {MAX_NAMES}"
            message = f"{shorten(class_name)!r} stands there twice, is too long, or one too many; {rule}"
            raise AnnotationError(message, path=root / name, line=line)
        names[class_name] = line
    if not names:
        raise AnnotationError("the file names no class; one stands on each line", path=root / name)
    return tuple(names)


def _split(text: str, separator: str | None) -> tuple[str, list[str]]:
    if separator is not None:
        path, *labels = (field.strip() for field in text.split(separator))
        return path, [label for label in labels if label]
    match = _PATH.fullmatch(text.strip())
    if match is not None:
        return match[1], (match[2] or "").split()
    path, *labels = text.split()
    return path, labels


def _add(
    builder: TableBuilder,
    path: str,
    labels: list[str],
    meant: tuple[str, ...] | None,
    *,
    image_dir: str,
    file: str,
    line: int,
) -> None:
    if not path:
        builder.malformed("the line has no path", file=file, line=line)
        return
    image = builder.image(
        join_path(image_dir, path, source=builder.root / file, line=line), file=file, line=line
    )
    if not labels:
        builder.problem("no_label", "keep", f"{shorten(path)!r} has no label", file=file, line=line)
    for label in dict.fromkeys(labels):
        class_name = label
        if meant is not None:
            number = int(label) if label.isascii() and label.isdigit() and len(label) < 10 else -1
            if not 0 <= number < len(meant):
                message = f"label {shorten(label)!r} is no number below {len(meant)}, the number of classes"
                builder.problem("unknown_class", builder.policy.unknown_class, message, file=file, line=line)
                continue
            class_name = meant[number]
        builder.object(image, class_name=class_name, box=None, file=file, line=line)
