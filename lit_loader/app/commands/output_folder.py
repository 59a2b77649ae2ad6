"""The output folder of a conversion and its images; the folder appears only when it is complete."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any, Final, Literal

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, embedded_image
from lit_loader.annotations.splitting import shared_names
from lit_loader.annotations.table import COLUMNS
from lit_loader.app.commands.settings import UsageError
from lit_loader.errors import AnnotationError

__all__ = ["RECORD", "check_rows_agree", "image_places", "new_folder", "place_images", "write_record"]

RECORD: Final = "lit_loader_conversion.json"
"""Name of the record of a conversion and its files; only a folder with a record is ever replaced."""


@contextmanager
def new_folder(out: Path | str, *, overwrite: bool, keep: Iterable[Path]) -> Iterator[Path]:
    """Yield a temporary folder next to ``out``; rename it to ``out`` at the end, or remove it on an error.

    The caller fills the folder and writes a record into it with `write_record`.

    Args:
        out: The folder to create. An existing folder is replaced only with ``overwrite``, and only if it is empty or
            its ``lit_loader_conversion.json`` records an earlier conversion. Files that the record does not name
            belong to the user: they stay, unless the new folder has a file of the same name. On an error, the
            existing folder is unchanged.
        overwrite: If True, replace an existing folder.
        keep: Files and folders that are being read; ``out`` must not contain them.

    Raises:
        UsageError: If ``out`` exists and must not be replaced.
    """
    target = Path(out).absolute()
    if target.is_symlink() or target.exists():
        _check_replaceable(target, overwrite=overwrite)
    # Replacing the source would delete the images before they are linked.
    for path in keep:
        if path.resolve().is_relative_to(target.resolve()):
            raise UsageError(f"--out {out} contains {path}, which is being read; give another folder")
    earlier_files = _recorded_files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder as the target, since a rename works only within one file system.
    draft = Path(mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    new = draft / "complete"
    old = draft / "old"
    try:
        new.mkdir()
        yield new
        _keep_user_files(target, new, written=earlier_files)
        # Until here the target is unchanged. A rename cannot replace a folder that has files, so the old one moves away
        # first.
        try:
            if target.exists():
                target.replace(old)
            new.replace(target)
        except BaseException:
            if old.exists():
                old.replace(target)
            raise
    finally:
        # If moving the old folder back failed, the draft holds its only copy.
        if target.exists() or not old.exists():
            shutil.rmtree(draft, ignore_errors=True)


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        raise UsageError(f"--out {target} already exists; give another folder, or --overwrite")
    # To replace a link would leave the folder that it leads to, with the earlier conversion in it.
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"--out {target} is not a folder; --overwrite replaces only folders")
    if any(target.iterdir()) and not (target / RECORD).is_file():
        raise UsageError(
            f"--out {target} was not written by lit-loader convert (it has no {RECORD}); remove it yourself, or give "
            "another folder"
        )


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a record of a conversion, with the names of all files in its folder, to ``lit_loader_conversion.json``."""
    files = sorted(_file_names(folder))  # sorted, so that the same conversion writes the same bytes
    text = json.dumps({**record, "files": files}, indent=1, sort_keys=True)
    (folder / RECORD).write_text(text + "\n")


def _recorded_files(folder: Path) -> set[str]:
    """Return the names of the files that an earlier conversion wrote to a folder, which may be empty or missing.

    Raises:
        UsageError: If the record of the folder does not list its files.
    """
    if not (folder / RECORD).exists():
        return set()
    # A damaged record must not make the user's files look like files of a conversion.
    with suppress(OSError, ValueError, KeyError, TypeError):
        return {RECORD, *json.loads((folder / RECORD).read_bytes())["files"]}
    raise UsageError(
        f"{folder / RECORD} does not list the files that convert wrote, so other files in {folder} might be lost; "
        "remove the folder yourself, or give another folder"
    )


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the relative names of all files in a folder, at any depth; a link to a folder counts as a file."""
    for parent, folder_names, file_names in os.walk(folder):
        links = [name for name in folder_names if Path(parent, name).is_symlink()]
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in [*file_names, *links])


def _keep_user_files(old: Path, folder: Path, *, written: Collection[str]) -> None:
    """Link the user's files of the old folder into the new one, or copy them if links are not possible.

    Args:
        old: The old folder, which is not changed.
        folder: The new folder; its existing files are not replaced.
        written: Names of the files that the earlier conversion wrote.
    """
    for name in _file_names(old):
        source = old / name
        target = folder / name
        # `lexists` also sees a link that leads nowhere.
        if name in written or os.path.lexists(target):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            message = f"{source} was not written by convert, which needs the name of this folder for a file"
            raise UsageError(f"{message}; move {source} away") from None
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # on another file system, or on one without links
            shutil.copy2(source, target, follow_symlinks=False)


def image_places(tables: Iterable[AnnotationTable], *, image_dir: str) -> dict[str, str]:
    """Return the path in the new folder of each image, by its path in the dataset.

    The new path is the path relative to the common folder of all images, in ``image_dir``.

    Args:
        tables: The sets to convert, all with the same root.
        image_dir: Folder for images in the new folder.

    Raises:
        AnnotationError: If two images differ only in their extensions, and so would have the same id.
    """
    places: dict[str, str] = {}
    ids: dict[str, str] = {}
    # An image in several sets gets one place.
    roots = {path: table.root for table in tables for path in table.image_paths}
    shared = posixpath.commonpath([posixpath.dirname(path) for path in roots] or [""])
    for path, root in roots.items():
        place = PurePosixPath(path).relative_to(shared)
        if path.endswith(LABELME_ENDING):
            place = place.with_suffix(_embedded_ending(root / path))
        # Formats such as VOC name the annotation file by the id, without the image's extension.
        first_path = ids.setdefault(str(place.with_suffix("")), path)
        if first_path != path:
            raise AnnotationError(
                f"the images {first_path!r} and {path!r} differ only in their extension and would have the same id; "
                "rename one of them, or convert them into two folders",
                path=root,
            )
        places[path] = str(PurePosixPath(image_dir) / place)
    return places


def place_images(
    root: Path, places: Mapping[str, str], folder: Path, *, how: Literal["hardlink", "copy", "none"], progress: bool
) -> str:
    """Link or copy the images into the new folder, and return a summary.

    Args:
        root: The folder of the sets. For an image that is a link, the file it leads to is linked or copied.
        places: The result of `image_places`.
        folder: The new folder.
        how: How images get into the folder; ``"none"`` leaves them out.
        progress: If True, draw a progress bar on standard error if that is a terminal.
    """
    if how == "none":
        return f"images: none copied; they belong at {', '.join(list(places.values())[:1])} and so on"
    console = Console(stderr=True)
    counts = {"linked": 0, "copied": 0, "missing": 0}
    hidden = not (progress and console.is_terminal)
    for path, place in track(places.items(), "Placing images", console=console, disable=hidden):
        counts[_place(root / path, folder / place, link=how == "hardlink")] += 1
    return f"images: {', '.join(f'{count} {result}' for result, count in counts.items() if count) or 'none'}"


def _place(source: Path, target: Path, *, link: bool) -> str:
    # A policy may keep annotations of images that are not there.
    if not source.is_file():
        return "missing"
    target.parent.mkdir(parents=True, exist_ok=True)
    # A LabelMe file may hold its image as base64 text.
    if source.name.endswith(LABELME_ENDING):
        target.write_bytes(embedded_image(source))
        return "copied"
    if link:
        with suppress(OSError):  # on another file system, or on one without links
            os.link(source.resolve(), target)  # on Linux, os.link would link a symbolic link itself
            return "linked"
    shutil.copyfile(source, target)
    return "copied"


def check_rows_agree(tables: Mapping[str, AnnotationTable]) -> None:
    """Refuse sets that annotate the same image differently, for a format with one annotation file per image.

    Args:
        tables: The sets, with the same classes and attributes.

    Raises:
        AnnotationError: If an image has different objects in two sets.
    """
    for a, b, paths in shared_names({name: table.image_paths for name, table in tables.items()}):
        rows = {name: {path: i for i, path in enumerate(tables[name].image_paths)} for name in (a, b)}
        for path in paths:
            first, second = (_objects_of(tables[name], rows[name][path]) for name in (a, b))
            has_same_columns = first.keys() == second.keys()
            # An absent value may be NaN, which does not equal itself.
            if not has_same_columns or not all(np.array_equal(first[n], second[n], equal_nan=True) for n in first):
                raise AnnotationError(
                    f"the image {path!r} has different objects in {a} and in {b}, and can have only one annotation "
                    "file; remove it from one of them, or convert them into two folders",
                    path=tables[a].root,
                )


def _objects_of(table: AnnotationTable, image: int) -> dict[str, Any]:
    """Return the arrays of an image's objects, without their ids and places in the annotation files."""
    rows = np.arange(*table.offsets[image : image + 2])
    arrays = {f"attribute {name}": attribute.ids[rows] for name, attribute in table.attributes.items()}
    for name, spec in COLUMNS.items():
        if spec.rows == "objects" and name not in ("object_ids", "object_places"):
            arrays |= spec.to_arrays(name, spec.take(getattr(table, name), rows))
    return arrays


def _embedded_ending(path: Path) -> str:
    """Return the file name extension for the image embedded in a LabelMe file."""
    data = embedded_image(path)
    try:
        with Image.open(BytesIO(data)) as image:
            ending = ".jp2" if image.format == "JPEG2000" else f".{image.format}".lower()
    except Exception as error:
        # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError and others.
        reason = f"{type(error).__name__}: {error}"
        raise AnnotationError(f"the embedded image cannot be read ({reason})", path=path) from None
    if ending not in IMAGE_EXTENSIONS:
        message = f"the embedded image would have the extension {ending!r}, which no format reads; embed a PNG"
        raise AnnotationError(message, path=path)
    return ending
