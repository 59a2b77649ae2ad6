"""An image file that is read and not decoded yet: it decodes the part that is asked for, no larger than needed."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lit_loader.datasets.images import (
    MAX_PIXELS,
    SIDEWAYS,
    decode_bytes,
    orientation_of,
    read_image_file,
    upright,
)
from lit_loader.datasets.jpeg import JpegHeader, check_jpeg_cost, jpeg_header, with_rows
from lit_loader.errors import ImageError
from lit_loader.transforms import ImageRegion

try:
    from simplejpeg import decode_jpeg
except ImportError:  # an extra; Pillow gives the same bits, more slowly
    decode_jpeg = None

__all__ = ["EncodedImage"]

# NOTE [Parts of a JPEG]
# Huffman decoding takes most of the time, and its blocks come row by row: what lies below the part asked for is left
# out by telling the decoder of a smaller height. Two rows of blocks more are decoded than are needed, since colours
# are interpolated from the rows beside. The inverse transform is made at 1/2, 1/4 or 1/8 where that is enough; the
# scales between have no fast code and are slower than full size.
_SHRINKS: Final = (8, 4, 2)
_SMALLEST_SHRUNK_SIDE: Final = 16


class EncodedImage:
    """The bytes of an image file, which are decoded as far as needed; `lit_loader.transforms.ImageSource`.

    JPEG of 8 bits and one or three channels is decoded in part: at 1/2, 1/4 or 1/8 where what is shown is at most
    that large, and down to the lowest row that is shown. A part at full size has the bits of `decode_image`.
    Everything else is decoded by `decode_image` when this is made.

    Bound. Pixels of a part at 1/2, 1/4 or 1/8, shrunk to what is shown, against a full decode shrunk to the same: on
    photo-like pictures of 239 to 960 rows and on photographs PSNR is at least 33 dB (median 45), 999 of 1000 values
    are within 64 of 255 levels, and single values at sharp edges within 96. ``benchmarks/decode_error.py`` measures it.
    The scaled pixels are the frequencies that fit and not means of pixels, so fine texture keeps more contrast.

    simplejpeg decodes where it is installed, else Pillow; they give the same bits.

    Runs in: any thread; decoding lets go of the interpreter lock. Owns: the file's bytes.

    Args:
        path: The file.
        max_pixels: As for `decode_image`.
        exif_orientation: As for `decode_image`.

    Raises:
        ImageError: As `decode_image` does; a damaged file may be found out only when it is decoded.
    """

    def __init__(
        self, path: Path | str, *, max_pixels: int = MAX_PIXELS, exif_orientation: bool = True
    ) -> None:
        self._path = path
        self._settings: dict[str, Any] = {"max_pixels": max_pixels, "exif_orientation": exif_orientation}
        self._data = read_image_file(path, max_pixels=max_pixels)
        self._orientation = 1
        self._header = self._partly_decodable(max_pixels)
        if self._header is not None and exif_orientation and self._header.may_be_turned:
            self._read_orientation()
        self._pixels = self._decoded() if self._header is None else None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright image, in pixels."""
        if self._header is None:
            assert self._pixels is not None
            height, width = self._pixels.shape[-2:]
            return height, width
        stored = self._header.height, self._header.width
        return stored[::-1] if self._orientation >= SIDEWAYS else stored

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        return self._decoded() if self._pixels is None else self._pixels

    def read_region(self, region: tuple[int, int, int, int], *, zoom: float) -> ImageRegion:
        """Return a region, not smaller than ``zoom`` times its size or than it is.

        Args:
            region: Left, top, right and bottom, in whole pixels of the upright image; at least one pixel, inside it.
            zoom: Pixels of the result for one of the image that are enough, along both axes.

        Returns:
            The region, moved outwards to whole pixels of the result, with memory in any order.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        header = self._header
        if header is None or self._pixels is not None:
            return _cut(self.read(), region, 1)
        shrink = next((by for by in _SHRINKS if zoom * by <= 1 and self._can_shrink(header, by)), 1)
        rows = header.height
        if header.one_pass and self._orientation == 1:
            blocks = -(-region[3] // header.row_block) + 2
            rows = min(rows, blocks * header.row_block)
        data = self._data if rows == header.height else with_rows(self._data, header, rows)
        pixels = _decode_rgb(data, rows, header.width, shrink)
        if pixels is None:  # a decoder refused what Pillow may accept, or says more of
            self._pixels = self._decoded()
            return _cut(self._pixels, region, 1)
        found = torch.from_numpy(pixels).permute(2, 0, 1)
        return _cut(upright(found, self._orientation), region, shrink)

    def _can_shrink(self, header: JpegHeader, by: int) -> bool:
        if min(header.height, header.width) < _SMALLEST_SHRUNK_SIDE:
            return False
        # Turned, what is left of the last block would lie before the first pixel.
        return self._orientation == 1 or (header.height % by == 0 and header.width % by == 0)

    def _partly_decodable(self, max_pixels: int) -> JpegHeader | None:
        try:
            header = jpeg_header(self._data)
            if header is None:
                return None
            num_pixels = header.height * header.width
            allowed = Image.MAX_IMAGE_PIXELS
            if num_pixels > max_pixels or (allowed is not None and num_pixels > 2 * allowed):
                return None  # decode_image says what is wrong
            if not header.one_pass:  # a decoder takes one scan of such a file, and refuses more
                check_jpeg_cost(self._data, num_pixels=num_pixels)
        except ImageError as error:
            raise ImageError(f"{self._path}: {error}") from None
        return header

    def _read_orientation(self) -> None:
        try:
            with Image.open(BytesIO(self._data)) as image:
                self._orientation = orientation_of(image)
        except Exception:
            # also Pillow's warnings of broken EXIF, made errors: decode_image judges them
            self._header = None

    def _decoded(self) -> Tensor:
        return decode_bytes(self._data, self._path, **self._settings)


def _cut(pixels: Tensor, region: tuple[int, int, int, int], shrink: int) -> ImageRegion:
    """Return a region of an image of which ``pixels`` are the upper left part, at 1/shrink."""
    left, top = region[0] // shrink, region[1] // shrink
    right, bottom = -(-region[2] // shrink), -(-region[3] // shrink)
    return ImageRegion(pixels[:, top:bottom, left:right], left * shrink, top * shrink, 1 / shrink)


def _decode_rgb(
    data: bytes, height: int, width: int, shrink: int
) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """Return ``(h, w, 3)`` at 1/shrink, or None if the decoder refuses or gives another size."""
    expected = (math.ceil(height / shrink), math.ceil(width / shrink), 3)
    try:
        if decode_jpeg is not None:
            least = dict(zip(("min_height", "min_width"), expected[:2], strict=True)) if shrink > 1 else {}
            pixels = decode_jpeg(data, colorspace="RGB", strict=False, min_factor=1, **least)
        else:
            with Image.open(BytesIO(data), formats=("JPEG",)) as image:
                if shrink > 1:
                    image.draft(None, (width // shrink, height // shrink))
                pixels = np.array(image.convert("RGB"))
    except MemoryError:
        raise
    except Exception:
        return None
    return pixels if pixels.shape == expected else None
