"""The folder that a conversion makes, complete under its name or not there, and the images in it."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
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

__all__ = [
    "RECORD",
    "check_rows_agree",
    "image_places",
    "new_folder",
    "place_images",
    "relocated",
    "write_record",
]

RECORD: Final = "lit_loader_conversion.json"
"""The file that records how a folder was made and its files; only a folder that has it is ever replaced."""


@contextmanager
def new_folder(out: Path | str, *, overwrite: bool, keep: Iterable[Path]) -> Iterator[Path]:
    """Give a temporary folder beside ``out`` to fill; rename it to ``out`` afterwards, remove it on an error.

    The caller must also write a record into it, with `write_record`.

    Args:
        out: The folder to make. One that is there is replaced only with ``overwrite``, and only if it is
            empty or was made here, which its ``lit_loader_conversion.json`` records. Files in it that the record does
            not name are the user's: they stay, unless the new folder has a file of that name. On an error the folder
            is unchanged.
        overwrite: Whether to replace it.
        keep: Files and folders that are being read; ``out`` may not hold them.

    Raises:
        UsageError: If ``out`` is there and may not be replaced.
    """
    target = Path(out).absolute()
    if target.is_symlink() or target.exists():
        _check_replaceable(target, overwrite=overwrite)
    for path in keep:
        if path.resolve().is_relative_to(target.resolve()):
            raise UsageError(f"--out {out} holds {path}, which is being read; give another folder")
    earlier_files = _recorded_files(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    made, old = draft / "made", draft / "old"
    try:
        made.mkdir()
        yield made
        _take_along(target, made, written=earlier_files)
        try:
            if target.exists():
                target.replace(old)
            made.replace(target)
        except BaseException:
            if old.exists():
                old.replace(target)
            raise
    finally:
        if target.exists() or not old.exists():  # else the earlier folder is all that is left
            shutil.rmtree(draft, ignore_errors=True)


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        raise UsageError(f"--out {target} is there already; give another folder, or --overwrite")
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"--out {target} is not a folder; --overwrite replaces folders only")
    if any(target.iterdir()) and not (target / RECORD).is_file():
        raise UsageError(
            f"--out {target} was not made by lit-loader convert (it has no {RECORD}); remove it yourself, or give "
            "another folder"
        )


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write how a folder was made, and the names of all files in it, into its ``lit_loader_conversion.json``."""
    files = sorted(_file_names(folder))
    text = json.dumps({**record, "files": files}, indent=1, sort_keys=True)
    (folder / RECORD).write_text(text + "\n")


def _recorded_files(folder: Path) -> set[str]:
    """Return the names of the files that an earlier conversion wrote into a folder, which may be empty or missing.

    Raises:
        UsageError: If the record does not name them.
    """
    if not (folder / RECORD).exists():
        return set()
    with suppress(OSError, ValueError, KeyError, TypeError):
        return {RECORD, *json.loads((folder / RECORD).read_bytes())["files"]}
    raise UsageError(
        f"{folder / RECORD} does not name the files that convert wrote, so other files in {folder} might be lost; "
        "remove the folder yourself, or give another one"
    )


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the names of all files below a folder, relative to it; a link to a folder counts as a file."""
    for parent, folder_names, file_names in os.walk(folder):
        links = [name for name in folder_names if Path(parent, name).is_symlink()]
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in [*file_names, *links])


def _take_along(earlier: Path, folder: Path, *, written: Collection[str]) -> None:
    """Link the user's files of an earlier folder into the new one, or copy them where that is not possible.

    Args:
        earlier: The earlier folder, which is not changed.
        folder: The new folder; a file that it has already is left alone.
        written: Names of the files that the earlier conversion wrote.
    """
    for name in _file_names(earlier):
        source = earlier / name
        target = folder / name
        if name in written or os.path.lexists(target):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            message = f"{source} was not written by convert, which needs the name of its folder for a file"
            raise UsageError(f"{message}; move {source} away") from None
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # another file system, or one without links
            shutil.copy2(source, target, follow_symlinks=False)


def image_places(tables: Iterable[AnnotationTable], *, image_dir: str) -> dict[str, str]:
    """Return for each image path where it goes in the new folder.

    That is its path below the folder that all images have in common, below ``image_dir``.

    Args:
        tables: The sets to convert, all of one root.
        image_dir: Folder of the images in the new folder.

    Raises:
        AnnotationError: If two images differ in their extensions alone, so that they had one id.
    """
    places: dict[str, str] = {}
    ids: dict[str, str] = {}
    roots = {path: table.root for table in tables for path in table.image_paths}
    shared = posixpath.commonpath([posixpath.dirname(path) for path in roots] or [""])
    for path, root in roots.items():
        place = PurePosixPath(path).relative_to(shared)
        if path.endswith(LABELME_ENDING):
            place = place.with_suffix(_embedded_ending(root / path))
        other = ids.setdefault(str(place.with_suffix("")), path)
        if other != path:
            raise AnnotationError(
                f"the images {other!r} and {path!r} differ in their extension alone and would have one id; "
                "rename one of them, or convert them into two folders",
                path=root,
            )
        places[path] = str(PurePosixPath(image_dir) / place)
    return places


def place_images(
    root: Path,
    places: Mapping[str, str],
    folder: Path,
    *,
    how: Literal["hardlink", "copy", "none"],
    progress: bool,
) -> str:
    """Bring the images to their places in the new folder and return a summary as text.

    Args:
        root: The folder of the sets; of an image that is a link, what it leads to is linked or copied.
        places: As `image_places` gives them.
        folder: The new folder.
        how: ``"none"`` leaves them where they are.
        progress: Whether to draw a progress bar on a terminal's standard error.
    """
    if how == "none":
        return f"images: none taken along; they belong at {', '.join(list(places.values())[:1])} and so on"
    console = Console(stderr=True)
    done = {"linked": 0, "copied": 0, "not there": 0}
    hidden = not (progress and console.is_terminal)
    for path, place in track(places.items(), "Placing images", console=console, disable=hidden):
        done[_place(root / path, folder / place, link=how == "hardlink")] += 1
    return f"images: {', '.join(f'{n} {what}' for what, n in done.items() if n) or 'none'}"


def _place(source: Path, target: Path, *, link: bool) -> str:
    if not source.is_file():
        return "not there"
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.name.endswith(LABELME_ENDING):
        target.write_bytes(embedded_image(source))
        return "copied"
    if link:
        with suppress(OSError):  # another file system, or one without links
            os.link(source.resolve(), target)  # the file itself, not a link to it
            return "linked"
    shutil.copyfile(source, target)
    return "copied"


def relocated(
    table: AnnotationTable, *, root: Path, places: Mapping[str, str], image_dir: str, split: str
) -> AnnotationTable:
    """Return a table with its images where `image_places` puts them.

    Args:
        table: The set.
        root: The new folder.
        places: As `image_places` gives them.
        image_dir: As given to `image_places`.
        split: The new split's name.
    """
    paths = [places[path] for path in table.image_paths]
    ids = [str(PurePosixPath(path).relative_to(image_dir).with_suffix("")) for path in paths]
    return replace(table, root=root, image_paths=paths, image_ids=ids, split=split)


def check_rows_agree(tables: Mapping[str, AnnotationTable]) -> None:
    """Raise AnnotationError if an image of two sets has other objects in each: it can have one file only.

    Args:
        tables: The sets, with the same classes and attributes.
    """
    for a, b, paths in shared_names({name: table.image_paths for name, table in tables.items()}):
        rows = {name: {path: i for i, path in enumerate(tables[name].image_paths)} for name in (a, b)}
        for path in paths:
            first, second = (_objects_of(tables[name], rows[name][path]) for name in (a, b))
            if first.keys() != second.keys() or not all(_equal(first[name], second[name]) for name in first):
                raise AnnotationError(
                    f"the image {path!r} has other objects in {a} than in {b}, and can have one annotation "
                    "file only; leave it out of one of them, or convert them into two folders",
                    path=tables[a].root,
                )


def _objects_of(table: AnnotationTable, image: int) -> dict[str, Any]:
    """Return the arrays of an image's objects, without the numbers that the annotation files give these."""
    rows = np.arange(*table.offsets[image : image + 2])
    arrays = {f"attribute {name}": attribute.ids[rows] for name, attribute in table.attributes.items()}
    for name, spec in COLUMNS.items():
        if spec.rows == "objects" and name != "object_ids":
            arrays |= spec.to_arrays(name, spec.take(getattr(table, name), rows))
    return arrays


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _embedded_ending(path: Path) -> str:
    """Return the ending of the image inside of a LabelMe file."""
    data = embedded_image(path)
    try:
        with Image.open(BytesIO(data)) as image:
            ending = ".jp2" if image.format == "JPEG2000" else f".{image.format}".lower()
    except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError ...
        reason = f"{type(error).__name__}: {error}"
        raise AnnotationError(f"the embedded image cannot be read ({reason})", path=path) from None
    if ending not in IMAGE_EXTENSIONS:
        message = (
            f"the embedded image would get the ending {ending!r}, by which no format finds it; embed a PNG"
        )
        raise AnnotationError(message, path=path)
    return ending
