"""Reads images through stores: object storage, or ranges of files such as the members of tar files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from lit_loader.annotations.formats.image_sizes import read_header
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING
from lit_loader.annotations.splitting import FILE_TRAITS, Traits
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import ImageError
from lit_loader.foundation.stage_times import READING, note_read
from lit_loader.images.decoding import SIXTEEN_BIT_MAX, check_num_bytes
from lit_loader.images.encoded_image import open_bytes
from lit_loader.images.lazy_image import LazyImage
from lit_loader.images.reading import ImageReading
from lit_loader.storage.images import ImageStore, StoredSamples
from lit_loader.storage.settings import is_url

__all__ = ["StoredReading"]

_BLOCK: Final = 4096
_LAG: Final = 64
"""Images that `StoredReading.in_order` still keeps in the cache after they were asked for."""


@dataclass(frozen=True, kw_only=True)
class StoredReading(ImageReading):
    """Reads the images below some roots from stores, and all others by another reading.

    Args:
        stores: Store of each root of annotation tables; the paths of images are relative to the root.
        other_reading: Reads all other images.
        **settings: See `ImageReading`.
    """

    stores: Mapping[str, ImageStore] = field(default_factory=dict, repr=False, compare=False)
    other_reading: ImageReading = field(default_factory=ImageReading, repr=False, compare=False)

    def open(self, path: Path | str) -> LazyImage:
        """Read a stored image, or any other; the pixels of a JPEG are decoded on demand."""
        match = self._stored(path)
        if match is None:
            return self.other_reading.open(path)
        store, name = match
        with READING:
            data = store.read(name)
            note_read(len(data))
        location = f"{store.catalog.root}/{name}"
        check_num_bytes(len(data), location, max_pixels=self.max_pixels)
        return open_bytes(
            data,
            location,
            max_pixels=self.max_pixels,
            exif_orientation=self.exif_orientation,
            sixteen_bit_max=self.sixteen_bit_max or SIXTEEN_BIT_MAX,
        )

    def size(self, path: Path | str) -> tuple[int, int]:
        """Return height and width of an image as `open` returns it, from its header if possible."""
        match = self._stored(path)
        if match is None:
            return self.other_reading.size(path)
        # The header has the size of the upright image; the pixels as stored may have the sides exchanged.
        if not self.exif_orientation:
            return self.open(path).size
        store, name = match
        header = read_header(io.BytesIO(store.read(name)))
        if isinstance(header, str):
            raise ImageError(f"{store.catalog.root}/{name}: the size of the image cannot be read: {header}.")
        return header[1], header[0]

    def location(self, path: Path | str) -> Path | str:
        """Return the name of an image in messages: its path, or the URL of a stored image."""
        match = self._stored(path)
        if match is None:
            return self.other_reading.location(path)
        store, name = match
        location = f"{store.catalog.root}/{name}"
        return location if is_url(location) else Path(location)

    def for_table(self, table: AnnotationTable) -> StoredReading:
        """Return a reading with only the stores of a table, which are started."""
        folder = f"{table.root}/"
        # Tables of several sets have the folder around their roots.
        stores = {
            root: store
            for root, store in self.stores.items()
            if folder.startswith(f"{root}/") or root.startswith(folder)
        }
        for store in stores.values():
            store.start()
        return replace(self, stores=stores, other_reading=self.other_reading.for_table(table))

    def without_exif(self) -> ImageReading:
        """Return a reading of the pixels as stored, for an error about orientation."""
        return replace(self, exif_orientation=False, other_reading=self.other_reading.without_exif())

    def stored_samples(self, table: AnnotationTable) -> list[StoredSamples]:
        """Return the stores of the images of a table; see `ImageReading.stored_samples`."""
        samples = [
            StoredSamples(0, _slots(store, table.image_paths, root, str(table.root)), store)
            for root, store in self.stores.items()
        ]
        return [*samples, *self.other_reading.stored_samples(table)]

    def in_order(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield paths of images that are read in this order, and let their stores read ahead."""
        streams = []
        try:
            for root, store in self.stores.items():
                stream = store.open_stream()
                if stream is not None:
                    streams.append(stream)
                    starts = range(0, len(paths), _BLOCK)
                    stream.begin(_slots(store, paths[start : start + _BLOCK], root) for start in starts)
            for number, path in enumerate(self.other_reading.in_order(paths)):
                for stream in streams:
                    stream.delivered(max(0, number - _LAG))
                yield path
        finally:
            for stream in streams:
                stream.close()

    @property
    def store_keys(self) -> tuple[str, ...]:
        """Keys of the catalogs; see `ImageReading.store_keys`."""
        return (*sorted(store.catalog.key for store in self.stores.values()), *self.other_reading.store_keys)

    def warn_of_sixteen_bits(self, paths: Sequence[str]) -> None:
        """Warn of 16-bit images among those that are on this host; see `ImageReading`."""
        self._warn_of_sixteen_bits(self._local_files(paths))

    @property
    def copy_traits(self) -> Traits | None:
        """Functions of a path that are equal for copies of an image."""
        traits = self.other_reading.copy_traits or FILE_TRAITS
        return [partial(self._trait, number, trait) for number, trait in enumerate(traits)]

    @classmethod
    def extending(cls, reading: ImageReading, stores: Mapping[str, ImageStore]) -> StoredReading:
        """Return a reading with the settings of another one, which reads all images that are in none of the stores."""
        settings = {setting.name: getattr(reading, setting.name) for setting in fields(ImageReading)}
        return cls(**settings, stores=stores, other_reading=reading)

    def _stored(self, path: Path | str) -> tuple[ImageStore, str] | None:
        text = str(path)
        # An image in an annotation file is read from the copy of the file.
        if text.endswith(LABELME_ENDING):
            return None
        for root, store in self.stores.items():
            if text.startswith(f"{root}/"):
                return store, text[len(root) + 1 :]
        return None

    def _trait(self, number: int, trait: Callable[[str], Any], path: str) -> Any:
        """Return the trait of a file, or for a stored image first its size and then its key."""
        match = self._stored(path)
        if match is None:
            return trait(path)
        store, name = match
        return int(store.catalog.lengths[store.slot(name)]) if number == 0 else store.copy_key(name)

    def _local_files(self, paths: Iterable[str]) -> Iterator[str | BinaryIO]:
        """Yield files, and stored images that need no request."""
        for path in paths:
            match = self._stored(path)
            if match is None:
                yield path
            elif (data := match[0].peek(match[1])) is not None:
                yield io.BytesIO(data)


def _slots(store: ImageStore, paths: Sequence[str], root: str, folder: str | None = None) -> npt.NDArray[np.int32]:
    """Return the slots of images, -1 for those that are not in the store.

    Args:
        store: The store.
        paths: Paths of images.
        root: The root of the store.
        folder: Folder of the paths, or None if they are absolute.
    """
    if folder == root:
        return store.catalog.slots(paths)
    absolute_paths = paths if folder is None else [f"{folder}/{path}" for path in paths]
    # No image has an empty path.
    prefix = f"{root}/"
    return store.catalog.slots(
        [path.removeprefix(prefix) if path.startswith(prefix) else "" for path in absolute_paths]
    )
