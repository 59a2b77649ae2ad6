"""Read one image file, and decode it with Pillow to an RGB tensor, or say which file cannot be decoded and why."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lit_loader.annotations.formats.folder import IMAGE_FORMATS
from lit_loader.annotations.formats.image_sizes import MAX_HEADER_BYTES, MAX_HEADER_READS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, embedded_image
from lit_loader.errors import AnnotationError, ImageError
from lit_loader.images.jpeg import BYTES_A_PIXEL, SPARE_BYTES, check_jpeg_cost, jpeg_frame

__all__ = [
    "MAX_PIXELS",
    "SIDEWAYS",
    "SIXTEEN_BIT_MAX",
    "decode_bytes",
    "interleaved",
    "orientation_of",
    "read_image_file",
    "sixteen_bit_report",
    "stored_region",
    "upright",
]

MAX_PIXELS: Final = 89_478_485
"""Default limit on width x height: the size from which Pillow itself warns of a decompression bomb."""

SIXTEEN_BIT_MAX: Final = 65_535
"""Default value of 16-bit grayscale that becomes 255."""

_MAY_HAVE_16_BITS: Final = (".png", ".tif", ".tiff", ".jp2")
_NUM_DECODED: Final = 4

# Without O_NONBLOCK a pipe would be waited for.
_READ: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_EXIF_ORIENTATION: Final = 0x0112
# Of each orientation: the axes to mirror; from 5 on, height and width are exchanged first.
_MIRRORED: Final = {1: (), 2: (-1,), 3: (-2, -1), 4: (-2,), 5: (), 6: (-1,), 7: (-2, -1), 8: (-2,)}
SIDEWAYS: Final = 5
_TIFF_SAMPLE_FORMAT: Final = 339
_TIFF_UNSIGNED: Final = 1
_TIFF_TILE_SIDES: Final = (322, 323)
_MOST_TILE_PIXELS: Final = 1 << 24
_PREMULTIPLIED: Final = {"La": "LA", "RGBa": "RGBA"}


def read_image_file(path: Path | str, *, max_pixels: int) -> bytes:
    """Return the bytes of an image file that is not larger than ``max_pixels`` can make it.

    Of LabelMe's JSON files it is the image that is embedded in them.

    Raises:
        ImageError: The file is missing, empty, no regular file, or larger than 64 MiB and 16 bytes for each of
            ``max_pixels``; the message names it.
        ValueError: If ``max_pixels`` is below 1.
    """
    if max_pixels < 1:
        raise ValueError(f"max_pixels={max_pixels} refuses every image; give at least 1.")
    if str(path).endswith(LABELME_ENDING):
        try:
            return embedded_image(path)
        except AnnotationError as error:
            raise ImageError(f"{error}.") from None
    most = SPARE_BYTES + BYTES_A_PIXEL * max_pixels
    try:
        file = os.open(path, _READ)  # a third of the time of Path.open
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode):
                raise OSError("it is not a regular file")
            size = state.st_size
            data = part = os.read(file, size) if size <= most else b""
            # A network's file system may give a part, and Linux gives at most 2 GiB.
            while part and len(data) < size:
                part = os.read(file, size - len(data))
                data += part
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if size > most:
        raise ImageError(
            f"{path}: refused before reading: {size} bytes exceed {most}, which is {SPARE_BYTES} and "
            f"{BYTES_A_PIXEL} for each of max_pixels={max_pixels}; raise max_pixels if the image is trusted."
        )
    if not data:
        raise ImageError(f"{path}: the file is empty (0 bytes).")
    return data


def decode_bytes(
    data: bytes,
    path: Path | str,
    *,
    max_pixels: int,
    exif_orientation: bool,
    sixteen_bit_max: int = SIXTEEN_BIT_MAX,
) -> Tensor:
    """Decode the bytes of an image file with Pillow; see `lit_loader.images.decode_image`.

    Args:
        data: From `read_image_file`.
        path: Named in messages.
        max_pixels: Largest width x height accepted.
        exif_orientation: Turn the image upright.
        sixteen_bit_max: Value of 16-bit grayscale that becomes 255.
    """
    settings: dict[str, Any] = {
        "max_pixels": max_pixels,
        "exif_orientation": exif_orientation,
        "sixteen_bit_max": sixteen_bit_max,
    }
    try:
        try:
            return _decode(data, **settings)
        except Warning:
            # Warnings may be errors, and Pillow warns of broken EXIF in images that decode well.
            # The filters are process-wide, so they are touched in this case alone.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _decode(data, **settings)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from error.__cause__
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError ...
        reason = str(error).rstrip(".") or type(error).__name__
        raise ImageError(
            f"{path}: cannot be decoded: {reason}. The file ({len(data)} bytes) is damaged; "
            "replace it or leave it out of the data set."
        ) from error


class _HeaderLimit(BytesIO):
    """The bytes of an image file; bounds how often and how much Pillow reads before it knows the image's size.

    Comments and tags without end would take minutes and many times the memory of the file.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.in_header = True
        self.refusal: ImageError | None = None
        self._reads_left = MAX_HEADER_READS
        self._bytes_left = max(MAX_HEADER_BYTES, 2 * len(data))  # WebP and AVIF are read whole

    def read(self, size: int | None = -1, /) -> bytes:
        return self._count(super().read(size))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._count(super().readline(size))

    def _count(self, data: bytes) -> bytes:
        if self.in_header:
            self._reads_left -= 1
            self._bytes_left -= len(data)
            if self._reads_left < 0:
                self._refuse(f"MAX_HEADER_READS={MAX_HEADER_READS} pieces")
            if self._bytes_left < 0:
                self._refuse(f"MAX_HEADER_BYTES={MAX_HEADER_BYTES}")
        return data

    def _refuse(self, limit: str) -> None:
        self.refusal = ImageError(f"its header asks for more than {limit}")
        raise self.refusal


def _decode(data: bytes, *, max_pixels: int, exif_orientation: bool, sixteen_bit_max: int) -> Tensor:
    frame = jpeg_frame(data)
    file = _HeaderLimit(data)
    try:
        opened = Image.open(file, formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        if file.refusal is not None:  # Pillow's reader of TIFF turns an OSError into a warning
            raise file.refusal from None
        raise ImageError(
            f"cannot be identified as an image: {len(data)} bytes that start with {data[:8]!r}; "
            f"the header is damaged, or the format none of {', '.join(IMAGE_FORMATS)}."
        ) from None
    except Image.DecompressionBombError as error:
        raise ImageError(
            f"refused before decoding: {str(error).rstrip('.')}. If the image is trusted, raise "
            "PIL.Image.MAX_IMAGE_PIXELS and max_pixels."
        ) from None
    file.in_header = False
    if file.refusal is not None:
        raise file.refusal
    with opened as image:
        _check_header(image, max_pixels=max_pixels)
        if image.format in ("JPEG", "MPO") and (frame is None or not frame.one_pass):
            check_jpeg_cost(data, num_pixels=image.width * image.height)
        image.load()
        # Only now: a PNG may carry EXIF behind its pixels, and asking before load() fails on a damaged tail.
        orientation = orientation_of(image) if exif_orientation else 1
        return interleaved(upright(_to_rgb(image, sixteen_bit_max), orientation))


def _check_header(image: Image.Image, *, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{width}x{height} = {width * height} pixels exceeds max_pixels={max_pixels}; "
            "raise max_pixels if the image is trusted, or downscale it."
        )
    # Pillow shows a signed 8-bit TIFF as "L", with -1 as 255: only the tag tells.
    tags = getattr(image, "tag_v2", None) if image.format == "TIFF" else None
    formats = tags.get(_TIFF_SAMPLE_FORMAT) if tags is not None else None
    tile = 1 if tags is None else math.prod(int(tags.get(side, 0)) for side in _TIFF_TILE_SIDES)
    if tile > max(max_pixels, _MOST_TILE_PIXELS):  # decoded as a whole, however small the image is
        raise ImageError(f"a tile of {tile} pixels exceeds max_pixels={max_pixels} and {_MOST_TILE_PIXELS}.")
    signed = formats is not None and any(kind != _TIFF_UNSIGNED for kind in np.atleast_1d(formats))
    if image.mode in ("I", "F") or signed:
        raise ImageError(
            f"mode {image.mode} ({image.format}, signed, 32-bit or floating-point samples) has no agreed "
            "range; convert the file to 8-bit or unsigned 16-bit."
        )


def orientation_of(image: Image.Image) -> int:
    """Return how an opened image is to be turned, by its EXIF or XMP, 1 to 8; 1: not at all."""
    try:
        value = image.getexif().get(_EXIF_ORIENTATION)
    except Warning:
        raise
    except Exception:
        return 1
    return value if value in _MIRRORED else 1


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Return pixels ``(3, H, W)`` turned as EXIF's ``orientation``, 1 to 8, asks for."""
    if orientation == 1:
        return pixels
    turned = pixels.transpose(-1, -2) if orientation >= SIDEWAYS else pixels
    return turned.flip(_MIRRORED[orientation])


def stored_region(
    region: tuple[int, int, int, int], orientation: int, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return where a region (left, top, right, bottom) of an `upright` image of ``size`` lies in the stored one."""
    left, top, right, bottom = region
    if -1 in _MIRRORED[orientation]:
        left, right = size[1] - right, size[1] - left
    if -2 in _MIRRORED[orientation]:
        top, bottom = size[0] - bottom, size[0] - top
    return (top, left, bottom, right) if orientation >= SIDEWAYS else (left, top, right, bottom)


def interleaved(pixels: Tensor) -> Tensor:
    """Return uint8 ``(3, H, W)``, of which a pixel's values lie side by side in memory, with the pixels row by row."""
    rows = pixels.permute(1, 2, 0)
    if rows.is_contiguous():
        return pixels
    triples = np.ascontiguousarray(rows.numpy().view("V3"))  # three bytes at once take half the time
    return torch.from_numpy(triples.view(np.uint8)).permute(2, 0, 1)


def sixteen_bit_report(paths: Sequence[str], *, max_pixels: int) -> str | None:
    """Return a sentence about the images whose 16 bits become 8, or None if there are none.

    The header of each PNG, TIFF and JPEG 2000 file is read, and the pixels of up to 4. A file that cannot be read is
    passed over; its sample raises the error.

    Args:
        paths: The image files to look at.
        max_pixels: Largest width x height that is decoded.
    """
    num_grey = num_colour = 0
    largest: list[int] = []
    for path in paths:
        if not path.lower().endswith(_MAY_HAVE_16_BITS):
            continue
        with contextlib.suppress(Exception), Image.open(path, formats=IMAGE_FORMATS) as image:
            if image.mode.startswith("I;16"):
                num_grey += 1
                if len(largest) < _NUM_DECODED:
                    _check_header(image, max_pixels=max_pixels)
                    largest.append(int(np.asarray(image).max()))
            elif image.mode != "I" and image.format != "JPEG2000":
                # Of 16-bit RGB, Pillow's mode says 8 bits: only the raw mode of its decoder tells.
                num_colour += any(";16" in str(tile[3]) for tile in image.tile)
    if not num_grey and not num_colour:
        return None
    sentences = []
    if num_grey:
        value = max(largest, default=SIXTEEN_BIT_MAX)
        shown = _to_8_bits(np.array([value]), SIXTEEN_BIT_MAX)[0]
        bits = max(8, value.bit_length())
        remedy = (
            f"sixteen_bit_max={2**bits - 1} for data of {bits} bits, or {SIXTEEN_BIT_MAX} if this is right"
            if bits < 16
            else f"sixteen_bit_max={SIXTEEN_BIT_MAX} if this is right, or the value that is to become 255"
        )
        sentences.append(
            f"{num_grey} of {len(paths)} images looked at are 16-bit grayscale, divided by 257, so that 65535 becomes "
            f"255: the largest value of the first {len(largest)} is {value}, which becomes {shown}; give {remedy}"
        )
    if num_colour:
        sentences.append(
            f"{num_colour} of {len(paths)} images looked at are 16-bit colour, of which the high byte is kept; convert "
            "them to 8 bits if their values use fewer than 16"
        )
    return ". ".join(sentences)


def _to_8_bits(values: npt.NDArray[Any], largest: int) -> npt.NDArray[np.uint8]:
    """Return values from 0 to ``largest`` as 0 to 255, rounded; values above it become 255."""
    doubled = np.minimum(values, largest).astype(np.uint32) * 510
    result: npt.NDArray[np.uint8] = ((doubled + largest) // (2 * largest)).astype(np.uint8)
    return result


def _to_rgb(image: Image.Image, sixteen_bit_max: int) -> Tensor:
    if image.mode.startswith("I;16"):
        grey = _to_8_bits(np.asarray(image), sixteen_bit_max)
        return _channels_first(np.repeat(grey[..., None], 3, axis=2))
    # Pillow warns when a palette's transparency is dropped; dropping it is the rule here.
    image.info.pop("transparency", None)
    if image.mode in _PREMULTIPLIED:
        image = image.convert(_PREMULTIPLIED[image.mode])
    return _channels_first(np.array(image if image.mode == "RGB" else image.convert("RGB")))


def _channels_first(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Return ``(3, H, W)`` over the same memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1)
