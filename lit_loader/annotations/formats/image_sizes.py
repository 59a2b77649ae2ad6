"""Read the upright sizes of many images from their headers, safely and without decoding pixels."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from lit_loader.annotations.formats.folder import IMAGE_FORMATS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, embedded_image
from lit_loader.annotations.formats.parallel import iter_chunks, paused_spinners
from lit_loader.annotations.problems import shorten
from lit_loader.storage.mirror import fill_headers

__all__ = ["Header", "MAX_HEADER_BYTES", "MAX_HEADER_READS", "read_header", "read_image_sizes", "read_shown_sizes"]

Header: TypeAlias = tuple[int, int, bool] | str
"""Width and height of an upright image, and whether EXIF turns it onto its side; or the reason why it is unknown."""

# NOTE [Limits of a header]
# Pillow usually stops reading after the size, with exceptions: WebP and AVIF are read whole; a damaged TIFF can send
# it through the file many times; a JPEG of a million empty segments, which it keeps in a list, or a PPM of
# comments, which it reads byte by byte, would take minutes and gigabytes. So Pillow gets a file object that counts the
# bytes it hands out, the bytes it hands out in small pieces (Pillow concatenates EXIF segments one by one), and the
# calls. No limit depends on numbers in the file.
MAX_HEADER_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_READS: Final = 50_000
_MAX_PIECES_BYTES: Final = 16 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_EXIF_ORIENTATION: Final = 0x0112


def read_image_sizes(
    root: Path, paths: Sequence[str], *, num_workers: int | None, progress: bool
) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Read the sizes of images in their EXIF orientation.

    Args:
        root: Folder that the paths are relative to.
        paths: Paths of image files, checked to stay under ``root``.
        num_workers: As for ``iter_chunks``.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        int32 ``(num_paths, 2)`` width and height, 0 if the header cannot be read; the reason for that by position.
    """
    sizes, _, reasons = read_shown_sizes(root, paths, num_workers=num_workers, progress=progress)
    return sizes, reasons


def read_shown_sizes(
    root: Path, paths: Sequence[str], *, num_workers: int | None, progress: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], dict[int, str]]:
    """Read the sizes of images in their EXIF orientation, and whether EXIF turns them onto their side.

    Args:
        root: As for `read_image_sizes`.
        paths: As for `read_image_sizes`.
        num_workers: As for `read_image_sizes`.
        progress: As for `read_image_sizes`.

    Returns:
        The sizes; bool ``(num_paths,)``, True if the stored width is the upright height; the reasons.
    """
    # The files of a URL's mirror have no content yet.
    with paused_spinners():
        fill_headers(root, paths, progress=progress)
    read = partial(_read_chunk, root=str(root))
    chunks = iter_chunks(read, paths, num_workers=num_workers, progress=progress, description="Reading image sizes")
    sizes = np.zeros((len(paths), 2), dtype=np.int32)
    turned = np.zeros(len(paths), dtype=np.bool_)
    reasons: dict[int, str] = {}
    for row, header in enumerate(chain.from_iterable(chunks)):
        if isinstance(header, str):
            reasons[row] = header
        else:
            *sizes[row], turned[row] = header
    return sizes, turned, reasons


def _read_chunk(paths: Sequence[str], *, root: str) -> list[Header]:
    with warnings.catch_warnings():
        # Pillow warns about broken EXIF and large images. Neither changes the size, and decoding reports both.
        warnings.simplefilter("ignore")
        return [_read(Path(root, path)) for path in paths]


def _read(path: Path) -> Header:
    try:
        # Opening a named pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            return "is not a regular file"
        is_labelme = path.suffix == LABELME_ENDING
        return read_header(io.BytesIO(embedded_image(path)) if is_labelme else io.FileIO(path, "rb"))
    except Exception as error:
        return _reason(error)


def read_header(raw: Any) -> Header:
    """Read the header of an image file.

    Args:
        raw: A raw file object with ``readinto`` and ``seek``; it is closed.
    """
    try:
        # Only known formats are tried: other plugins of Pillow may start programs.
        with _LimitedFile(raw) as file, Image.open(file, formats=IMAGE_FORMATS) as image:
            width, height = image.size
            is_turned = _orientation(image, file) in (5, 6, 7, 8)
            if is_turned and image.format != "TIFF":  # for a TIFF, Pillow returns the upright size
                width, height = height, width
            if max(image.size) >= 2**31:
                return f"its header gives a size of {width} x {height} pixels, beyond 2**31 - 1"
            return width, height, is_turned
    except UnidentifiedImageError:
        return "its header is damaged, or its format is not supported"
    except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError ...
        return _reason(error)


def _reason(error: Exception) -> str:
    return shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__)


class _LimitedFile(io.BufferedReader):
    """File that raises OSError when too much of it is read; see NOTE [Limits of a header]."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw, 16 * 1024)
        self._bytes_left = MAX_HEADER_BYTES
        self._piece_bytes_left = _MAX_PIECES_BYTES
        self._num_reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        return self._limited(super().read, size)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._limited(super().readline, size)

    def _limited(self, read: Callable[[int], bytes], size: int | None) -> bytes:
        # One byte more than allowed, so that the excess is noticed below.
        limit = self._bytes_left + 1
        data = read(limit if size is None or size < 0 else min(size, limit))
        self._num_reads += 1
        self._bytes_left -= len(data)
        self._piece_bytes_left -= len(data) if len(data) < _PIECE_BYTES else 0
        if self._num_reads > MAX_HEADER_READS:
            raise OSError(f"its header asks for more than MAX_HEADER_READS={MAX_HEADER_READS} pieces")
        if self._bytes_left < 0 or self._piece_bytes_left < 0:
            raise OSError(f"its header asks for more than MAX_HEADER_BYTES={MAX_HEADER_BYTES}")
        return data


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    try:
        # Pillow would decode the pixels of a PNG to find EXIF behind them, so its chunks are walked here.
        # Without such a chunk Pillow looks for EXIF in a text chunk, as ImageMagick writes it.
        if image.format == "PNG" and "exif" not in image.info and (exif := _png_exif(file)):
            image.info["exif"] = b"Exif\0\0" + exif
        # The base class's method, because a PNG's own method decodes the pixels.
        value = Image.Image.getexif(image).get(_EXIF_ORIENTATION)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _png_exif(file: BinaryIO) -> bytes:
    """Return the EXIF of a PNG file, or nothing if it has none."""
    file.seek(8)  # behind the signature, which Pillow has checked
    while True:  # bounded by the limits of the file object
        head = file.read(8)
        length = int.from_bytes(head[:4], "big")
        # Zeros are the hole in the file of a mirror.
        if len(head) < 8 or head[4:] in (b"IEND", bytes(4)) or (head[4:] == b"eXIf" and length > 2**20):
            return b""
        if head[4:] == b"eXIf":
            return file.read(length)
        file.seek(length + 4, os.SEEK_CUR)  # the chunk and its checksum
