"""Classification sets in which each class is a folder of images."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from lit_loader.annotations.formats.folder import Folder, is_image_name
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["ImageFolderReader"]


@dataclass(frozen=True, kw_only=True)
class ImageFolderReader(Reader):
    """Reads a folder of class folders, as torchvision's ``ImageFolder`` does.

    An image belongs to the folder of the first level that it is in, however deep. It is an image by its ending, in
    upper or lower case (``IMAGE_EXTENSIONS``); other files are counted in the report by their endings, and all whose
    names begin with a dot are passed over. Every image gets one object of its class whose box is the whole image.
    Images are sorted by class and path. Links to images and folders are followed.

    The classes are all folders, sorted. Pass the first split's to the others: one that lacks a class would otherwise
    number them differently. An image that is in no class folder is malformed. A class folder without images is a
    class, and is reported.

    Args:
        nested: Whether a class folder may hold nothing but two or more folders with images. By default it is refused,
            since the folder that is read is likely one level too high.
    """

    format: ClassVar[str] = "image_folder"
    description: ClassVar[str] = "a folder of images for each class; NAME: the folder of these folders"

    nested: bool = False

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return every folder: its time changes when an image is added, renamed or removed."""
        top = posixpath.normpath(check_relative(name))
        if not folder.is_folder(top):
            raise AnnotationError(
                "there is no such folder of class folders; pass it as `name`", path=folder.root / top
            )
        return Inputs(files=list(folder.tree(top)), units=[top])

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images of every class folder."""
        folder = Folder(rows.root)  # listed after the folders' times were taken, so that a change is seen
        classes = folder.folders(unit)
        others: Counter[str] = Counter()
        rows.declare(class_names=classes)
        for name in _images(folder.files(unit), others):
            rows.malformed(f"image {shorten(name)!r} is in no class folder")
        for class_name in classes:
            rows.file = top = posixpath.normpath(f"{unit}/{class_name}")
            images = _images(folder.below(top), others)
            self._check_level(rows, unit, top, images)
            for path in images:
                rows.object(rows.image(path), class_name=class_name, box=None)
            if not images:
                rows.problem("empty_class", "keep", f"no image of {shorten(class_name)!r}")
        for ending, count in sorted(others.items()):
            rows.not_read(f"files *{shorten(ending)}" if ending else "files without an ending", count)

    def _check_level(self, rows: Rows, unit: str, top: str, images: list[str]) -> None:
        """Refuse a class folder that looks like a folder of class folders."""
        below = {path[len(top) + 1 :].partition("/")[0] for path in images if "/" in path[len(top) + 1 :]}
        if self.nested or len(below) < 2 or any("/" not in path[len(top) + 1 :] for path in images):
            return
        listed = shorten(", ".join(sorted(below)))
        raise AnnotationError(
            f"the class folder {shorten(top)!r} holds no image but {len(below)} folders with images ({listed}); if "
            f"these are the classes, name {shorten(top)!r} instead of {unit!r}",
            path=rows.root / top,
            settings={"nested": True},
        )


def _images(files: Iterable[str], others: Counter[str]) -> list[str]:
    """Return the images, sorted, and count the other files by their endings."""
    paths = sorted(files)
    others.update(posixpath.splitext(path)[1].lower() for path in paths if not is_image_name(path))
    return [path for path in paths if is_image_name(path)]
