"""A source of image files without annotations, to predict on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name
from lit_loader.annotations.formats.image_sizes import read_image_sizes
from lit_loader.annotations.problems import shorten
from lit_loader.datasets.sources import StageTables
from lit_loader.datasets.url_source import UrlSource
from lit_loader.errors import AnnotationError

__all__ = ["ImageFilesSource"]

_logger = logging.getLogger(__name__)

# Side of an object that fills an image of unknown size; datasets clip boxes to the decoded image.
_UNKNOWN_SIDE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ImageFilesSource(UrlSource):
    """Image files without annotations: one file, or all files in a folder and its subfolders, sorted by path.

    Only the stage ``"predict"`` has a table. The extension, in upper or lower case, decides whether a file is an image
    (``IMAGE_EXTENSIONS``). Hidden files and folders are ignored; other files are counted in the log. An image that
    cannot be decoded stays in the table, and the loader's ``on_bad_sample`` decides how to handle it.

    Args:
        root: A folder, or one image file, or the URL of a folder in a store.
        object_class: Class of one object that fills each image, for a data module with ``sample_unit="object"``, or
            None for images without objects.
        storage: Settings of the store of a URL, as for `FormatSource`.
        cache_dir: Folder of the images of a URL, or None for the user's cache folder.
        num_workers: Processes that read the sizes of the images, or None to decide by their number.
        progress: Show a progress bar.

    Raises:
        StorageError: The store of a URL cannot be read.
        AnnotationError: The file or folder does not exist, or contains no image.
    """

    root: str | Path = field(kw_only=False)
    object_class: str | None = None
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cache_dir: str | None = None
    num_workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        self.check_root()

    def read_folder(self, folder: Path, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """List the files and read the sizes of the images every time, because nothing is cached."""
        root, paths = self._list(folder)
        sizes, _ = read_image_sizes(root, paths, num_workers=self.num_workers, progress=self.progress)
        class_names = () if self.object_class is None else (self.object_class,)
        # A size of 0 is unknown; an object of that image is larger than any, and clipped to it.
        sides = np.where(sizes == 0, _UNKNOWN_SIDE, sizes)
        boxes = np.concatenate([np.zeros_like(sides), sides], axis=1)
        num_objects = len(paths) * len(class_names)
        table = AnnotationTable(
            root=root,
            image_paths=paths,
            class_names=class_names,
            widths=sizes[:, 0],
            heights=sizes[:, 1],
            offsets=np.arange(len(paths) + 1) * len(class_names),
            boxes=boxes[:num_objects],
            labels=np.zeros(num_objects, dtype=np.int64),
        )
        return (root, paths, sizes.tobytes()), {"train": [], "val": [], "test": [], "predict": [table]}

    def _list(self, path: Path) -> tuple[Path, list[str]]:
        """Return the root of the images, and their paths relative to it, sorted."""
        extensions = ", ".join(IMAGE_EXTENSIONS)
        if path.is_file():
            if not is_image_name(path.name):
                problem = f"expected a folder or an image file, got a file that does not end in {extensions}"
                raise AnnotationError(problem, path=path)
            return path.parent.resolve(), [path.name]
        if not path.is_dir():
            location = "" if path.is_absolute() else f" in {Path.cwd()}"
            problem = f"this file or folder does not exist{location}"
            raise AnnotationError(problem, path=path, remedy="give a folder of images, or an image")
        folder = Folder(path)
        # Sorted, because the order of a listing differs between file systems, and predictions are written in order.
        files = sorted(folder.below("."))
        images = [name for name in files if is_image_name(name)]
        other_suffixes = Counter(PurePosixPath(name).suffix for name in files if not is_image_name(name))
        counts = shorten(", ".join(f"{count} *{suffix}" for suffix, count in other_suffixes.most_common()))
        if not images:
            problem = f"expected image files, which end in {extensions}; got {counts or 'an empty folder'}"
            raise AnnotationError(problem, path=path)
        if counts:
            _logger.info("%s: %d files are not images: %s", path, other_suffixes.total(), counts)
        return folder.root, images
