"""A source of image files without annotations, to predict on."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name
from lit_loader.annotations.formats.image_sizes import read_image_sizes
from lit_loader.annotations.problems import shorten
from lit_loader.datasets.sources import Stage, TableSource
from lit_loader.errors import AnnotationError

__all__ = ["ImageFilesSource"]

_logger = logging.getLogger(__name__)

# Side of an object that fills an image of unknown size; datasets clip boxes to the decoded image.
_UNKNOWN_SIDE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ImageFilesSource(TableSource):
    """Image files without annotations: one file, or all files in a folder and its subfolders, sorted by path.

    Only the stage ``"predict"`` has a table. The extension, in upper or lower case, decides whether a file is an image
    (``IMAGE_EXTENSIONS``). Hidden files and folders are ignored; other files are counted in the log. An image that
    cannot be decoded stays in the table, and the loader's ``on_bad_sample`` decides how to handle it.

    Args:
        root: A folder, or one image file.
        object_class: Class of one object that fills each image, for a data module with ``sample_unit="object"``, or
            None for images without objects.
        num_workers: Processes that read the sizes of the images, or None to decide by their number.
        progress: Show a progress bar.

    Raises:
        AnnotationError: The file or folder does not exist, or contains no image.
    """

    root: str | Path = field(kw_only=False)
    object_class: str | None = None
    num_workers: int | None = None
    progress: bool = True

    def prepare(self) -> None:
        """List the files again and read the sizes of the images."""
        self._read()

    def reopen(self) -> None:
        """List the files again, because the list of another process is not shared."""
        self._read()

    def fingerprint(self) -> Any:
        """Return the table, which is a new object if files were added, removed, or changed in size."""
        return self.__dict__.get("_table")

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the table of all images for prediction, none for other stages."""
        if stage != "predict":
            return []
        if "_table" not in self.__dict__:
            self._read()
        return [self.__dict__["_table"]]

    def _read(self) -> None:
        root, paths = self._list()
        sizes, _ = read_image_sizes(root, paths, num_workers=self.num_workers, progress=self.progress)
        table: AnnotationTable | None = self.__dict__.get("_table")
        if (
            table is not None
            and list(table.image_paths) == paths
            and np.array_equal(np.stack([table.widths, table.heights], axis=1), sizes)
        ):
            # Keep the table, whose identity is the fingerprint.
            return
        objects_per_image = 0 if self.object_class is None else 1
        table = AnnotationTable(
            root=root,
            image_paths=paths,
            class_names=() if self.object_class is None else (self.object_class,),
            widths=sizes[:, 0],
            heights=sizes[:, 1],
            offsets=np.arange(len(paths) + 1) * objects_per_image,
            boxes=_image_boxes(sizes)[: len(paths) * objects_per_image],
            labels=np.zeros(len(paths) * objects_per_image, dtype=np.int64),
        )
        # A frozen dataclass refuses setattr.
        self.__dict__["_table"] = table

    def _list(self) -> tuple[Path, list[str]]:
        """Return the root of the images, and their paths relative to it, sorted."""
        path = Path(self.root)
        extensions = ", ".join(IMAGE_EXTENSIONS)
        if path.is_file():
            if not is_image_name(path.name):
                raise AnnotationError(
                    f"expected a folder or an image file, got a file that does not end in {extensions}", path=path
                )
            return path.parent.resolve(), [path.name]
        if not path.is_dir():
            location = "" if path.is_absolute() else f" in {Path.cwd()}"
            raise AnnotationError(
                f"this file or folder does not exist{location}; give a folder of images, or an image", path=path
            )
        folder = Folder(path)
        files = sorted(folder.below("."))
        images = [name for name in files if is_image_name(name)]
        other_suffixes = Counter(PurePosixPath(name).suffix for name in files if not is_image_name(name))
        counts = shorten(", ".join(f"{count} *{suffix}" for suffix, count in other_suffixes.most_common()))
        if not images:
            raise AnnotationError(
                f"expected image files, which end in {extensions}; got {counts or 'an empty folder'}", path=path
            )
        if counts:
            _logger.info("%s: %d files are not images: %s", path, other_suffixes.total(), counts)
        return folder.root, images

    def __getstate__(self) -> dict[str, Any]:
        # Another process lists the files again.
        return {name: value for name, value in self.__dict__.items() if name != "_table"}


def _image_boxes(sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Return the boxes of whole images ``(N, 4)``, xyxy, from their widths and heights ``(N, 2)``."""
    # A size of 0 is unknown.
    sides = np.where(sizes == 0, _UNKNOWN_SIDE, sizes)
    return np.concatenate([np.zeros_like(sides), sides], axis=1).astype(np.float32)
