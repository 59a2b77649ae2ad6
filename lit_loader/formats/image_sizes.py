"""Upright sizes of many images from their headers: no pixel is decoded, hostile files do no harm."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from lit_loader.annotations.report import shorten
from lit_loader.formats.parallel import map_chunks

__all__ = ["MAX_HEADER_BYTES", "read_image_sizes"]

# NOTE [what is read of an image]
# Pillow reads as far as the size and stops, but WebP and AVIF are read whole, and a damaged TIFF or PNG can
# send it through the file many times. The file object given to it counts what it hands out and stops at
# MAX_HEADER_BYTES, so neither time nor memory depends on what the file says of itself. EXIF counts as in
# `decode_image`: Pillow would decode a PNG's pixels to find EXIF behind them, so the chunks are walked here.
MAX_HEADER_BYTES: Final = 64 * 1024 * 1024
_EXIF_ORIENTATION: Final = 0x0112
_MAX_PNG_CHUNKS: Final = 100_000
_PNG_START: Final = b"\x89PNG\r\n\x1a\n"


def read_image_sizes(
    root: Path, paths: Sequence[str], *, num_workers: int | None, progress: bool
) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Read the sizes of images as they are shown, turned as their EXIF says.

    Args:
        root: The folder below which the paths lie.
        paths: Image files relative to ``root``, known to lie below it.
        num_workers: As in ``map_chunks``.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        int32 ``(num_paths, 2)`` width and height, 0 where the header cannot be read, and why, by position.
    """
    parts = map_chunks(
        partial(_read_chunk, root=str(root)),
        paths,
        num_workers=num_workers,
        progress=progress,
        description="Reading image sizes",
    )
    sizes = np.zeros((len(paths), 2), dtype=np.int32)
    reasons: dict[int, str] = {}
    row = 0
    for part in parts:
        for size in part:
            if isinstance(size, str):
                reasons[row] = size
            else:
                sizes[row] = size
            row += 1
    return sizes, reasons


def _read_chunk(paths: Sequence[str], *, root: str) -> list[tuple[int, int] | str]:
    with warnings.catch_warnings():
        # Pillow warns of broken EXIF and of large images; neither matters to a size, decoding judges them.
        warnings.simplefilter("ignore")
        return [_read(Path(root, path)) for path in paths]


def _read(path: Path) -> tuple[int, int] | str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            return "is no regular file"
        with io.BufferedReader(_LimitedFile(path), 16 * 1024) as file, Image.open(file) as image:
            width, height = image.size
            if image.format != "TIFF" and _orientation(image, file) in (5, 6, 7, 8):  # TIFF is upright by now
                width, height = height, width
            return width, height
    except UnidentifiedImageError:
        return "its header is damaged, or the format unknown to Pillow"
    except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError ...
        return shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__)


class _LimitedFile(io.FileIO):
    """A file that hands out at most ``MAX_HEADER_BYTES`` in all."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._left = MAX_HEADER_BYTES

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise OSError(f"its header asks for more than MAX_HEADER_BYTES={MAX_HEADER_BYTES}")
        return count

    def readall(self) -> bytes:
        data = super().read(self._left + 1) or b""
        self._left -= len(data)
        if self._left < 0:
            raise OSError(f"its header asks for more than MAX_HEADER_BYTES={MAX_HEADER_BYTES}")
        return data


def _orientation(image: Image.Image, file: BinaryIO) -> int:
    try:
        if image.format == "PNG" and "exif" not in image.info:
            exif = _png_exif(file)
            if exif is not None:
                image.info["exif"] = b"Exif\0\0" + exif
        # Of the base class: a PNG's own would decode its pixels.
        value = Image.Image.getexif(image).get(_EXIF_ORIENTATION)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _png_exif(file: BinaryIO) -> bytes | None:
    """Return the EXIF of a PNG file, wherever it stands."""
    file.seek(0)
    if file.read(8) != _PNG_START:
        return None
    for _ in range(_MAX_PNG_CHUNKS):
        head = file.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return None
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            return file.read(length) if length <= 2**20 else None
        file.seek(length + 4, os.SEEK_CUR)
    return None
