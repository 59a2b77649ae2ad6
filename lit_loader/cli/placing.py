"""Where the images of a converted set lie, and how they get there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.table import COLUMNS
from lit_loader.errors import AnnotationError
from lit_loader.formats.folder import IMAGE_EXTENSIONS
from lit_loader.formats.labelme_file import LABELME_ENDING, embedded_image

__all__ = ["check_rows_agree", "image_places", "place_images", "relocated"]


def image_places(tables: Iterable[AnnotationTable], *, image_dir: str) -> dict[str, str]:
    """Return for each image path where it goes in the new folder.

    That is its path below the folder that all images have in common, below ``image_dir``.

    Args:
        tables: The sets to convert, all of one root.
        image_dir: Folder of the images in the new folder.

    Raises:
        AnnotationError: If two images differ in their extensions alone, so that they had one id.
    """
    tables = list(tables)
    paths = list(dict.fromkeys(path for table in tables for path in table.image_paths))
    parts = [PurePosixPath(path).parts for path in paths]
    shared = 0
    for names in zip(*(each[:-1] for each in parts), strict=False):
        if len(set(names)) > 1:
            break
        shared += 1
    places: dict[str, str] = {}
    ids: dict[str, str] = {}
    for path, each in zip(paths, parts, strict=True):
        place = PurePosixPath(*each[shared:])
        if path.endswith(LABELME_ENDING):
            place = place.with_suffix(_embedded_ending(tables[0].root / path))
        other = ids.setdefault(str(place.with_suffix("")), path)
        if other != path:
            raise AnnotationError(
                f"the images {other!r} and {path!r} differ in their extension alone and would have one id; "
                "rename one of them, or convert them into two folders",
                path=tables[0].root,
            )
        places[path] = str(PurePosixPath(image_dir) / place)
    return places


def place_images(
    tables: Iterable[AnnotationTable],
    places: Mapping[str, str],
    folder: Path,
    *,
    how: Literal["hardlink", "copy", "none"],
    progress: bool,
) -> str:
    """Bring the images to their places in the new folder and return a summary as text.

    Args:
        tables: The sets, all of one root; of an image that is a link, what it leads to is linked or copied.
        places: As `image_places` gives them.
        folder: The new folder.
        how: ``"none"`` leaves them where they are.
        progress: Whether to draw a progress bar on a terminal's standard error.
    """
    if how == "none":
        return f"images: none taken along; they belong at {', '.join(list(places.values())[:1])} and so on"
    root = next(iter(tables)).root
    console = Console(stderr=True)
    done = {"hardlink": 0, "copy": 0, "missing": 0}
    with Progress(console=console, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task("Placing images", total=len(places))
        for path, place in places.items():
            source, target = (root / path).resolve(), folder / place  # the file itself, not a link to it
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                is_embedded = path.endswith(LABELME_ENDING)
                done[_place(source, target, is_embedded=is_embedded, link=how == "hardlink")] += 1
            else:
                done["missing"] += 1
            bar.advance(task)
    words = {"hardlink": "linked", "copy": "copied", "missing": "not there"}
    return f"images: {', '.join(f'{n} {words[what]}' for what, n in done.items() if n) or 'none'}"


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


def check_rows_agree(
    tables: Mapping[str, AnnotationTable], shared: Iterable[tuple[str, str, list[str]]]
) -> None:
    """Raise AnnotationError if an image of two sets has other objects in each: it can have one XML file only.

    Args:
        tables: The sets, with the same classes and attributes.
        shared: Each two sets that have images in common, and these.
    """
    for a, b, paths in shared:
        for path, first, second in zip(
            paths, *(_rows_of(tables[name], paths) for name in (a, b)), strict=True
        ):
            if not _equal(tables[a], first, tables[b], second):
                raise AnnotationError(
                    f"the image {path!r} has other objects in {a} than in {b}, and can have one annotation "
                    "file only; leave it out of one of them, or convert them into two folders",
                    path=tables[a].root,
                )


def _rows_of(table: AnnotationTable, paths: list[str]) -> list[slice]:
    places = {path: i for i, path in enumerate(table.image_paths)}
    return [table.objects(places[path]) for path in paths]


def _equal(a: AnnotationTable, rows_a: slice, b: AnnotationTable, rows_b: slice) -> bool:
    """Return whether two images have the same objects, whatever numbers the annotation files give these."""
    columns = [name for name, spec in COLUMNS.items() if spec.rows == "objects" and name != "object_ids"]
    found = []
    for table, rows in ((a, rows_a), (b, rows_b)):
        positions = np.arange(rows.start, rows.stop)
        parts = {name: COLUMNS[name].take(getattr(table, name), positions) for name in columns}
        arrays = {k: v for name in columns for k, v in COLUMNS[name].to_arrays(name, parts[name]).items()}
        arrays |= {f"attribute {name}": attribute.ids[rows] for name, attribute in table.attributes.items()}
        found.append(arrays)
    return found[0].keys() == found[1].keys() and all(
        np.array_equal(array, found[1][name], equal_nan=array.dtype.kind == "f")
        for name, array in found[0].items()
    )


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


def _place(source: Path, target: Path, *, is_embedded: bool, link: bool) -> str:
    if is_embedded:
        target.write_bytes(embedded_image(source))
        return "copy"
    if link:
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links
            pass
        else:
            return "hardlink"
    shutil.copyfile(source, target)
    return "copy"
