"""Upright sizes of many images from their headers: no pixel is decoded, hostile files do no harm."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from lit_loader.annotations.formats.folder import IMAGE_FORMATS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, embedded_image
from lit_loader.annotations.formats.parallel import iter_chunks
from lit_loader.annotations.problems import shorten

__all__ = ["MAX_HEADER_BYTES", "MAX_HEADER_READS", "read_image_sizes", "read_shown_sizes"]

# NOTE [what is read of an image]
# Pillow reads as far as the size and stops, but WebP and AVIF are read whole, a damaged TIFF can send it through
# the file many times, and a JPEG of a million empty segments, which it keeps as a list, or a PPM of comments,
# which it reads byte by byte, would take minutes and gigabytes. So the file object given to it counts: all that
# is handed out, up to MAX_HEADER_BYTES; what is handed out in pieces, since Pillow adds segments of EXIF to each
# other one by one; and how often it is asked. What the file claims decides none of them. EXIF counts as
# in `decode_image`: Pillow would decode a PNG's pixels to find EXIF behind them, so the chunks are walked here.
MAX_HEADER_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_READS: Final = 50_000
_MAX_PIECES_BYTES: Final = 16 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_EXIF_ORIENTATION: Final = 0x0112
_PNG_START: Final = b"\x89PNG\r\n\x1a\n"


def read_image_sizes(
    root: Path, paths: Sequence[str], *, num_workers: int | None, progress: bool
) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Read the sizes of images as they are shown, turned as their EXIF says.

    Args:
        root: The folder below which the paths lie.
        paths: Image files relative to ``root``, known to lie below it.
        num_workers: As in ``iter_chunks``.
        progress: Whether to draw a progress bar on a terminal.

    Returns:
        int32 ``(num_paths, 2)`` width and height, 0 where the header cannot be read, and why, by position.
    """
    sizes, _, reasons = read_shown_sizes(root, paths, num_workers=num_workers, progress=progress)
    return sizes, reasons


def read_shown_sizes(
    root: Path, paths: Sequence[str], *, num_workers: int | None, progress: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], dict[int, str]]:
    """Read the same, and which images EXIF turns onto their side.

    Args:
        root: As for `read_image_sizes`, like the others.
        paths: Image files.
        num_workers: Processes.
        progress: Progress bar.

    Returns:
        The sizes; bool ``(num_paths,)``, True where the stored width is the shown height; the reasons.
    """
    read = partial(_read_chunk, root=str(root))
    parts = iter_chunks(
        read, paths, num_workers=num_workers, progress=progress, description="Reading image sizes"
    )
    sizes = np.zeros((len(paths), 2), dtype=np.int32)
    turned = np.zeros(len(paths), dtype=np.bool_)
    reasons: dict[int, str] = {}
    for row, header in enumerate(chain.from_iterable(parts)):
        if isinstance(header, str):
            reasons[row] = header
        else:
            *sizes[row], turned[row] = header
    return sizes, turned, reasons


def _read_chunk(paths: Sequence[str], *, root: str) -> list[tuple[int, int, bool] | str]:
    with warnings.catch_warnings():
        # Pillow warns of broken EXIF and of large images; neither changes a size, and decoding finds them.
        warnings.simplefilter("ignore")
        return [_read(Path(root, path)) for path in paths]


def _read(path: Path) -> tuple[int, int, bool] | str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            return "is not a regular file"
        is_labelme = path.suffix == LABELME_ENDING
        raw = io.BytesIO(embedded_image(path)) if is_labelme else io.FileIO(path, "rb")
        with _LimitedFile(raw) as file, Image.open(file, formats=IMAGE_FORMATS) as image:
            width, height = image.size
            is_turned = _orientation(image, file) in (5, 6, 7, 8)
            if is_turned and image.format != "TIFF":  # Pillow gives the shown size of a TIFF
                width, height = height, width
            stated = f"it is said to have {width} x {height} pixels"
            return (width, height, is_turned) if max(image.size) < 2**31 else stated
    except UnidentifiedImageError:
        return "its header is damaged, or its format is not one that is read"
    except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError ...
        return shorten(getattr(error, "strerror", None) or str(error) or type(error).__name__)


class _LimitedFile(io.BufferedReader):
    """A file that hands out only so much; see NOTE [what is read of an image]."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw, 16 * 1024)
        self._left, self._left_in_pieces, self._reads = MAX_HEADER_BYTES, _MAX_PIECES_BYTES, 0

    def read(self, size: int | None = -1, /) -> bytes:
        return self._count(super().read(self._allowed(size)))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._count(super().readline(self._allowed(size)))

    def _allowed(self, size: int | None) -> int:
        return self._left + 1 if size is None or size < 0 else min(size, self._left + 1)

    def _count(self, data: bytes) -> bytes:
        self._reads += 1
        self._left -= len(data)
        self._left_in_pieces -= len(data) if len(data) < _PIECE_BYTES else 0
        if self._reads > MAX_HEADER_READS:
            raise OSError(f"its header asks for more than MAX_HEADER_READS={MAX_HEADER_READS} pieces")
        if self._left < 0 or self._left_in_pieces < 0:
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
    while True:  # the file counts
        head = file.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return None
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            return file.read(length) if length <= 2**20 else None
        file.seek(length + 4, os.SEEK_CUR)
