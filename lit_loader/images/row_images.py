"""Images in the rows of data sets: encoded bytes, paths, Pillow images and arrays, read by the rules of files."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lit_loader.annotations.formats.image_sizes import Header, read_header
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.splitting import Traits
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError, ImageError
from lit_loader.images.decoding import (
    SIDEWAYS,
    SIXTEEN_BIT_MAX,
    check_num_bytes,
    decode_picture,
    picture_orientation,
    read_image_file,
)
from lit_loader.images.encoded_image import open_bytes
from lit_loader.images.lazy_image import DecodedImage, LazyImage
from lit_loader.images.reading import ImageReading
from lit_loader.images.stored_reading import StoredReading

__all__ = ["RowImage", "RowImages", "RowReading", "content_of", "header_of", "unpacked"]

RowImage: TypeAlias = bytes | memoryview | Path | Image.Image | Tensor
"""Image of a row: the bytes of an image file, a file, loaded pixels of Pillow, or uint8 ``(1, 3 or 4, H, W)``."""

Rows: TypeAlias = Any
"""Map-style data set: ``rows[i]`` is a mapping."""


def unpacked(value: Any, folder: Path | None) -> RowImage:
    """Return the image of a row in one of the forms of `RowImage`, without a copy of its pixels or bytes.

    Args:
        value: Bytes; a path; a mapping with ``bytes`` or ``path``, whose bytes have priority; an image of Pillow; a
            uint8 array ``(H, W)`` or ``(H, W, C)``; a uint8 tensor ``(H, W)`` or ``(C, H, W)``.
        folder: Folder that paths may lead into, or None to refuse paths.

    Raises:
        ImageError: The value is none of these, or its path is refused; the message does not name the row.
    """
    if isinstance(value, Mapping):
        encoded = value.get("bytes")
        value = value.get("path") if encoded is None else encoded
    if value is None:
        raise ImageError("the image is missing (None)")
    if isinstance(value, bytes | memoryview):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, str | PurePath):
        return _file(str(value), folder)
    if isinstance(value, Image.Image):
        # Workers and threads share the position of an open file, so they must not load the same image at once.
        if getattr(value, "tile", None):
            raise ImageError("the pixels of the PIL image are not loaded", remedy="call image.load()")
        return value
    if isinstance(value, np.ndarray | Tensor):
        return _pixels(value)
    kinds = "bytes, a path, {'bytes': ..., 'path': ...}, a PIL image, a numpy array or a tensor"
    raise ImageError(f"expected an image as {kinds}, got {type(value).__name__}; choose the column with image=")


def header_of(image: RowImage) -> Header:
    """Return width and height of an upright image, and whether EXIF turns it onto its side; or why they are unknown."""
    with warnings.catch_warnings():
        # About broken EXIF and large images, as for files: decoding reports both.
        warnings.simplefilter("ignore")
        return _header_of(image)


def _header_of(image: RowImage) -> Header:
    if isinstance(image, bytes | memoryview):
        return read_header(io.BytesIO(image))
    if isinstance(image, Path):
        try:
            if not image.is_file():
                return f"{image} is missing, or not a regular file"
            return read_header(io.FileIO(image, "rb"))
        except OSError as error:
            return error.strerror or str(error)
    if isinstance(image, Tensor):
        return image.shape[2], image.shape[1], False
    width, height = image.size
    is_turned = picture_orientation(image) >= SIDEWAYS
    return (height, width, True) if is_turned else (width, height, False)


def content_of(image: RowImage) -> bytes:
    """Return a digest of all bytes or pixels of an image, equal for copies.

    Raises:
        OSError: The image is a file that cannot be read.
    """
    if isinstance(image, Path):
        with image.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    if isinstance(image, bytes | memoryview):
        return hashlib.blake2b(image).digest()
    if isinstance(image, Tensor):
        digest = hashlib.blake2b(f"{tuple(image.shape)} ".encode())
        digest.update(image.contiguous().numpy().data)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            form = (image.mode, image.size, picture_orientation(image), image.getpalette())
        digest = hashlib.blake2b(repr(form).encode())
        digest.update(image.tobytes())
    return digest.digest()


class RowImages:
    """Images of a data set, by the number of the row.

    Runs in: the main process, workers and threads, if ``rows`` does. A worker process that is spawned gets a pickled
    copy of ``rows``.

    Args:
        name: Name of the data set in messages, such as ``train``.
        rows: Map-style data set of mappings.
        column: Key of the image in a row.
        folder: Folder that paths may lead into, or None to refuse paths.

    Attributes:
        copy_keys: For each row, a value that is equal for copies of its image, if known; a pickled copy has none.
    """

    def __init__(self, name: str, rows: Rows, column: str, folder: Path | None) -> None:
        self.name = name
        self.copy_keys: Sequence[bytes | int] | None = None
        self._rows = rows
        self._column = column
        self._folder = folder

    def __getstate__(self) -> dict[str, Any]:
        # Workers only read pixels.
        return {**self.__dict__, "copy_keys": None}

    def image(self, row: int) -> RowImage:
        """Return the image of a row.

        Raises:
            ImageError: The row has no image; the message names data set, row and column.
        """
        try:
            return unpacked(self._rows[row][self._column], self._folder)
        except ImageError as error:
            raise ImageError(f"{self.place(row)}: {error.problem}", remedy=error.remedy) from None

    def copy_key(self, row: int) -> bytes | int:
        """Return a value that is equal for copies of the image of a row; see `image` for errors."""
        return content_of(self.image(row)) if self.copy_keys is None else self.copy_keys[row]

    def place(self, row: int) -> str:
        """Return the data set, the row and the column for messages."""
        return f"row {row} of {self.name}, column {self._column!r}"


@dataclass(frozen=True, kw_only=True)
class RowReading(ImageReading):
    """Reads the images of rows, and all others as files.

    Args:
        images: By the folder part of their paths: a path ``FOLDER/000012`` is the image of row 12.
        **settings: See `ImageReading`.
    """

    images: Mapping[str, RowImages] = field(default_factory=dict, repr=False, compare=False)

    def open(self, path: Path | str) -> LazyImage:
        """Read the image of a row, or an image file; the pixels of a JPEG are decoded on demand."""
        match = self._row_of(path)
        if match is None:
            return super().open(path)
        images, row = match
        image = images.image(row)
        place = images.place(row)
        limits: dict[str, Any] = {
            "max_pixels": self.max_pixels,
            "exif_orientation": self.exif_orientation,
            "sixteen_bit_max": self.sixteen_bit_max or SIXTEEN_BIT_MAX,
        }
        if isinstance(image, Path):
            data = read_image_file(image, max_pixels=self.max_pixels)
            return open_bytes(data, f"{place} ({image})", **limits)
        if isinstance(image, bytes | memoryview):
            check_num_bytes(len(image), place, max_pixels=self.max_pixels)
            return open_bytes(bytes(image), place, **limits)
        if isinstance(image, Image.Image):
            return DecodedImage(decode_picture(image, place, **limits))
        if image.shape[1] * image.shape[2] > self.max_pixels:
            size = f"{image.shape[2]}x{image.shape[1]} pixels"
            raise ImageError(f"{place}: {size} exceed max_pixels={self.max_pixels}; raise it if you trust the image.")
        # Gray becomes RGB, and alpha is dropped, as for files. New memory: the array belongs to the rows.
        colours = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
        pixels = colours.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
        return DecodedImage(pixels.permute(2, 0, 1))

    def size(self, path: Path | str) -> tuple[int, int]:
        """Return height and width of an image as `open` returns it, from its header if possible."""
        match = self._row_of(path)
        if match is None:
            return super().size(path)
        images, row = match
        header = header_of(images.image(row))
        if isinstance(header, str):
            raise ImageError(f"{images.place(row)}: the size of the image cannot be read: {header}.")
        # `header` is of the upright image; the pixels as stored may have the sides exchanged.
        if not self.exif_orientation:
            return self.open(path).size
        return header[1], header[0]

    def for_table(self, table: AnnotationTable) -> RowReading:
        """Return a reading with only the images of a table, so that workers get no others."""
        folders = {f"{table.root}/{path}".rpartition("/")[0] for path in table.image_paths}
        return replace(self, images={folder: self.images[folder] for folder in self.images.keys() & folders})

    def without_exif(self) -> ImageReading:
        """Return a reading of the pixels as stored, for an error about orientation."""
        return replace(self, exif_orientation=False)

    def warn_of_sixteen_bits(self, paths: Sequence[str]) -> None:
        """Warn if 16-bit images are reduced to 8 bits and ``sixteen_bit_max`` is None; see `ImageReading`."""
        self._warn_of_sixteen_bits(self._encoded_files(paths))

    @property
    def copy_traits(self) -> Traits | None:
        """Functions of a path that are equal for copies of an image."""
        return self._copy_key, self._content

    @classmethod
    def extending(cls, reading: ImageReading, images: Mapping[str, RowImages]) -> RowReading | StoredReading:
        """Return a reading with the settings and the images of another one, and with the images of further rows.

        Raises:
            TypeError: ``reading`` is of a subclass of the user's, whose way of reading would be lost.
        """
        if isinstance(reading, StoredReading):
            return replace(reading, other_reading=cls.extending(reading.other_reading, images))
        if type(reading) not in (ImageReading, RowReading):
            raise TypeError(f"expected an ImageReading for images in rows, got a {type(reading).__name__}")
        settings = {setting.name: getattr(reading, setting.name) for setting in fields(ImageReading)}
        return cls(**settings, images={**getattr(reading, "images", {}), **images})

    def _row_of(self, path: Path | str) -> tuple[RowImages, int] | None:
        folder, _, number = str(path).rpartition("/")
        images = self.images.get(folder)
        return None if images is None else (images, int(number))

    def _encoded_files(self, paths: Iterable[str]) -> Iterable[str | BinaryIO | Image.Image]:
        """Yield files, encoded images and Pillow images, one at a time; arrays have 8 bits."""
        for path in paths:
            match = self._row_of(path)
            if match is None:
                yield path
                continue
            # A row without an image raises its error when it is read.
            try:
                image = match[0].image(match[1])
            except ImageError:
                continue
            if isinstance(image, Path):
                yield str(image)
            elif isinstance(image, bytes | memoryview):
                yield io.BytesIO(image)
            elif isinstance(image, Image.Image):
                yield image

    def _copy_key(self, path: str) -> bytes | int:
        match = self._row_of(path)
        return Path(path).stat().st_size if match is None else match[0].copy_key(match[1])

    def _content(self, path: str) -> bytes:
        match = self._row_of(path)
        return content_of(Path(path) if match is None else match[0].image(match[1]))


def _file(path: str, folder: Path | None) -> Path:
    """Return the file of a path in a row, and refuse a path that leads out of the user's folder."""
    if folder is None:
        remedy = f"give the folder that images may be read from, such as root={str(PurePath(path).parent)!r}"
        raise ImageError(f"{path!r} is the path of a file", remedy=remedy)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ImageError(f"{path!r} has characters that no file name has") from None
    # Data sets that were loaded from folders have absolute paths.
    relative = os.path.relpath(path, folder) if PurePath(path).is_absolute() and ".." not in path.split("/") else path
    try:
        check_relative(relative)
    except AnnotationError as error:
        raise ImageError(f"{path!r} is not in root={str(folder)!r} ({error.message})") from None
    return folder / relative


def _pixels(array: Any) -> Tensor:
    """Return a uint8 array ``(H, W[, C])`` or tensor ``([C, ]H, W)`` as ``(C, H, W)``, without a copy if possible."""
    is_tensor = isinstance(array, Tensor)
    shape = tuple(array.shape)
    expected = "tensor (H, W) or (C, H, W)" if is_tensor else "array (H, W) or (H, W, C)"
    num_channels = 1 if len(shape) == 2 else shape[0 if is_tensor else -1] if len(shape) == 3 else 0
    if array.dtype not in (np.uint8, torch.uint8) or num_channels not in (1, 3, 4) or 0 in shape:
        problem = f"expected a uint8 {expected} with C = 1, 3 or 4, got {array.dtype} {shape}"
        raise ImageError(problem, remedy="convert the image to 8 bits, and move its channels")
    pixels: Tensor
    if is_tensor:
        pixels = array.detach().cpu()
    else:
        # torch warns about memory that it may not write to, and about negative strides.
        pixels = torch.from_numpy(array if array.flags.writeable and min(array.strides) >= 0 else array.copy())
        pixels = pixels if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return pixels[None] if pixels.ndim == 2 else pixels
