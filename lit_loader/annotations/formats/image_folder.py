"""Classification data sets with one folder of images per class."""

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
    """Reader of a folder of class folders, like torchvision's ``ImageFolder``.

    The class of an image is the first-level folder that contains it, at any depth. Images are recognized by their
    extension in upper or lower case (``IMAGE_EXTENSIONS``). Other files are counted in the report by extension, and
    hidden files are ignored. Each image gets one object of its class whose box is the whole image. Images are sorted by
    class and path. Links to images and folders are followed.

    The classes are all folders, sorted. Pass the classes of the first split as ``class_names`` to the other splits,
    because a split that lacks a class would otherwise number them differently. An image outside all class folders is
    malformed. A class folder without images is a class, and is reported.

    Args:
        nested: Whether a class folder may contain no images itself, only two or more folders with images. By default
            this is refused, because the folder is probably one level too high.
    """

    format: ClassVar[str] = "image_folder"
    description: ClassVar[str] = "a folder of images for each class; NAME: the folder of these folders"

    nested: bool = False

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return all folders; adding, renaming or removing an image changes the time of its folder."""
        top = posixpath.normpath(check_relative(name))
        if not folder.is_folder(top):
            raise AnnotationError(
                "the folder does not exist; set `name` to the folder of class folders", path=folder.root / top
            )
        return Inputs(files=list(folder.tree(top)), units=[top])

    def read(self, rows: Rows, unit: str) -> None:
        """Add the images of every class folder."""
        # A new listing, made after the folders' times were taken, so that a change in between is not missed.
        folder = Folder(rows.root)
        classes = folder.folders(unit)
        ignored: Counter[str] = Counter()
        # All folders are declared, so that a class without images keeps its number.
        rows.declare(class_names=classes)
        for name in _images(folder.files(unit), ignored):
            rows.malformed(f"image {shorten(name)!r} is not in a class folder")
        for class_name in classes:
            top = posixpath.normpath(f"{unit}/{class_name}")
            # Problems of an image are reported for its class folder, since no file describes it.
            rows.file = top
            images = _images(folder.below(top), ignored)
            self._check_level(rows, unit, top, images)
            for path in images:
                rows.object(rows.image(path), class_name=class_name, box=None)
            if not images:
                rows.problem("empty_class", "keep", f"no image of {shorten(class_name)!r}")
        for ending, count in sorted(ignored.items()):
            rows.not_read(f"files *{shorten(ending)}" if ending else "files without an extension", count)

    def _check_level(self, rows: Rows, unit: str, top: str, images: list[str]) -> None:
        """Refuse a class folder that looks like a folder of class folders."""
        # Images directly in the folder, or a single subfolder, are the usual layout of a class.
        relative_paths = [path[len(top) + 1 :] for path in images]
        subfolders = {path.partition("/")[0] for path in relative_paths if "/" in path}
        if self.nested or len(subfolders) < 2 or any("/" not in path for path in relative_paths):
            return
        names = shorten(", ".join(sorted(subfolders)))
        raise AnnotationError(
            f"the class folder {shorten(top)!r} has no images but {len(subfolders)} folders with images ({names}); if "
            f"these are the classes, read {shorten(top)!r} instead of {unit!r}",
            path=rows.root / top,
            settings={"nested": True},
        )


def _images(files: Iterable[str], ignored: Counter[str]) -> list[str]:
    """Return the images, sorted, and count the other files by extension."""
    paths = sorted(files)
    ignored.update(posixpath.splitext(path)[1].lower() for path in paths if not is_image_name(path))
    return [path for path in paths if is_image_name(path)]
