"""Reading of image files, and decoding with Pillow to RGB tensors; errors name the file and the reason."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lit_loader.annotations.formats.folder import IMAGE_FORMATS
from lit_loader.annotations.formats.image_sizes import MAX_HEADER_BYTES, MAX_HEADER_READS
from lit_loader.annotations.formats.labelme_file import LABELME_ENDING, embedded_image
from lit_loader.errors import AnnotationError, ImageError
from lit_loader.foundation.stage_times import DECODING, READING, note_read
from lit_loader.images.jpeg import BYTES_A_PIXEL, SPARE_BYTES, check_jpeg_cost, jpeg_frame

MAX_PIXELS: Final = 89_478_485
"""Default limit on width x height; Pillow warns of a decompression bomb above this size."""

SIXTEEN_BIT_MAX: Final = 65_535
"""Default 16-bit grayscale value that maps to 255."""

SIDEWAYS: Final = 5
"""First EXIF orientation that exchanges height and width."""

_SUFFIXES_16_BIT: Final = (".png", ".tif", ".tiff", ".jp2")
_MAX_DECODED: Final = 4

# Opening a named pipe without O_NONBLOCK would block until someone writes to it.
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)

_EXIF_ORIENTATION: Final = 0x0112
# The axes that each orientation mirrors, after height and width were exchanged (from SIDEWAYS on).
_MIRRORED_AXES: Final = {1: (), 2: (-1,), 3: (-2, -1), 4: (-2,), 5: (), 6: (-1,), 7: (-2, -1), 8: (-2,)}

_TIFF_SAMPLE_FORMAT: Final = 339
_TIFF_UNSIGNED: Final = 1
_TIFF_TILE_SIDES: Final = (322, 323)
_MAX_TILE_PIXELS: Final = 1 << 24

# Pillow converts premultiplied alpha to RGB only by way of these modes.
_UNPREMULTIPLIED_MODES: Final = {"La": "LA", "RGBa": "RGBA"}


def read_image_file(path: Path | str, *, max_pixels: int) -> bytes:
    """Return the bytes of an image file, or of the image embedded in a LabelMe JSON file.

    Raises:
        ImageError: The file is missing, empty, not a regular file, or larger than 64 MiB plus 16 bytes for each of
            ``max_pixels``; the message names it.
        ValueError: If ``max_pixels`` is below 1.
    """
    max_bytes = max_file_bytes(max_pixels)
    if str(path).endswith(LABELME_ENDING):
        try:
            with READING:
                data = embedded_image(path)
                note_read(len(data))
                return data
        except AnnotationError as error:
            raise ImageError(f"{error}.") from None
    try:
        with READING:
            size, data = _read_regular(path, max_bytes)
            note_read(len(data))
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if size > max_bytes or not data:
        # A file may have become empty since `fstat`.
        check_num_bytes(size if size > max_bytes else 0, path, max_pixels=max_pixels)
    return data


def _read_regular(path: Path | str, max_bytes: int) -> tuple[int, bytes]:
    """Return the size of a regular file and its bytes, or no bytes if it is larger than ``max_bytes``."""
    # os.open takes a third of the time of Path.open.
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        size = status.st_size
        data = chunk = os.read(descriptor, size) if size <= max_bytes else b""
        # One read may be short: Linux returns at most 2 GiB, and network file systems less than was asked for.
        while chunk and len(data) < size:
            chunk = os.read(descriptor, size - len(data))
            data += chunk
        return size, data
    finally:
        os.close(descriptor)


def max_file_bytes(max_pixels: int) -> int:
    """Return the largest accepted size of an image file in bytes.

    Raises:
        ValueError: If ``max_pixels`` is below 1.
    """
    if max_pixels < 1:
        raise ValueError(f"max_pixels={max_pixels} would refuse every image; give at least 1.")
    return SPARE_BYTES + BYTES_A_PIXEL * max_pixels


def check_num_bytes(num_bytes: int, path: Path | str, *, max_pixels: int) -> None:
    """Refuse an encoded image that is empty, or larger than any image of ``max_pixels`` pixels.

    Raises:
        ImageError: The message begins with ``path``.
    """
    max_bytes = max_file_bytes(max_pixels)
    if num_bytes > max_bytes:
        rule = f"{num_bytes} bytes exceed the limit of {max_bytes} for max_pixels={max_pixels}"
        raise ImageError(f"{path}: refused before reading: {rule}; raise max_pixels if you trust the image.")
    if not num_bytes:
        raise ImageError(f"{path}: the file is empty (0 bytes).")


def decode_bytes(
    data: bytes, path: Path | str, *, max_pixels: int, exif_orientation: bool, sixteen_bit_max: int = SIXTEEN_BIT_MAX
) -> Tensor:
    """Decode the bytes of an image file with Pillow; see `lit_loader.images.decode_image`.

    Args:
        data: The bytes that `read_image_file` returned.
        path: The file to name in error messages.
        max_pixels: Largest width x height accepted.
        exif_orientation: Turn the image upright.
        sixteen_bit_max: The 16-bit grayscale value that maps to 255.
    """
    decode = partial(
        _decode_upright, data, max_pixels=max_pixels, exif_orientation=exif_orientation, sixteen_bit_max=sixteen_bit_max
    )
    return _decoded(decode, path, source=f"The file ({len(data)} bytes)")


def decode_picture(
    image: Image.Image, name: str, *, max_pixels: int, exif_orientation: bool, sixteen_bit_max: int = SIXTEEN_BIT_MAX
) -> Tensor:
    """Convert an image of Pillow by the rules of `decode_bytes`, without changing it.

    Args:
        image: The image; its pixels are loaded if they are not yet. Other threads must not use it at the same time.
        name: The image to name in error messages.
        max_pixels: Largest width x height accepted.
        exif_orientation: Turn the image upright.
        sixteen_bit_max: The 16-bit grayscale value that maps to 255.

    Returns:
        New memory, uint8 ``(3, H, W)``, RGB, with the channels of each pixel adjacent.

    Raises:
        ImageError: The image is too large, of a refused type, or cannot be loaded.
    """

    def decode() -> Tensor:
        _check_header(image, max_pixels=max_pixels)
        image.load()
        orientation = picture_orientation(image) if exif_orientation else 1
        # The conversion removes the transparency from the object that it is given.
        source = image.copy() if "transparency" in image.info else image
        return interleaved(upright(_to_rgb(source, sixteen_bit_max), orientation))

    return _decoded(decode, name, source="The image")


def _decoded(decode: Callable[[], Tensor], path: Path | str, *, source: str) -> Tensor:
    """Decode an image, and name it in every error.

    The file is also the error's ``filename``: pixels that are decoded on demand may fail while several images are
    mixed, and the name tells which of them is damaged.
    """
    try:
        try:
            with DECODING:
                return decode()
        except Warning:
            # Pillow warns about broken EXIF in images that decode well, and the user may have turned warnings into
            # errors. The warning filters are process-wide, so they are changed only when this happens.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with DECODING:
                    return decode()
    except ImageError as error:
        raise _image_error(f"{path}: {error}", path) from error.__cause__
    # Not a defect of the file, so the text below would be wrong.
    except MemoryError:
        raise
    # Pillow's plugins raise SyntaxError, struct.error, ValueError, EOFError and more.
    except Exception as error:
        reason = str(error).rstrip(".") or type(error).__name__
        remedy = f"{source} is damaged; replace it or remove it from the dataset."
        raise _image_error(f"{path}: cannot be decoded: {reason}. {remedy}", path) from error


def _image_error(message: str, path: Path | str) -> ImageError:
    error = ImageError(message)
    # A text is the name of a row of a table, for example.
    if isinstance(path, Path):
        error.filename = str(path)
    return error


class _HeaderLimit(BytesIO):
    """File object over an image's bytes that limits how often and how much Pillow reads before it knows the size.

    Without it, endless comments and tags would take minutes and many times the memory of the file.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.in_header = True
        self.refusal: ImageError | None = None
        self._reads_left = MAX_HEADER_READS
        # Pillow reads all of a WebP or AVIF file to find its size.
        self._bytes_left = max(MAX_HEADER_BYTES, 2 * len(data))

    def read(self, size: int | None = -1, /) -> bytes:
        return self._count(super().read(size))

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._count(super().readline(size))

    def _count(self, data: bytes) -> bytes:
        if self.in_header:
            self._reads_left -= 1
            self._bytes_left -= len(data)
            if self._reads_left < 0 or self._bytes_left < 0:
                limits = f"MAX_HEADER_READS={MAX_HEADER_READS} pieces or MAX_HEADER_BYTES={MAX_HEADER_BYTES}"
                # Kept as well, because Pillow hides an exception of its file in one of its own.
                self.refusal = ImageError(f"its header asks for more than {limits}")
                raise self.refusal
        return data


def _decode_upright(data: bytes, *, max_pixels: int, exif_orientation: bool, sixteen_bit_max: int) -> Tensor:
    frame = jpeg_frame(data)
    file = _HeaderLimit(data)
    try:
        opened_image = Image.open(file, formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        # Pillow reports a refused read of a plugin as an image that it cannot identify.
        if file.refusal is not None:
            raise file.refusal from None
        reason = f"the header is damaged, or the format is not one of {', '.join(IMAGE_FORMATS)}"
        start = f"{len(data)} bytes that start with {data[:8]!r}"
        raise ImageError(f"cannot be identified as an image: {start}; {reason}.") from None
    except Image.DecompressionBombError as error:
        remedy = "If you trust the image, raise PIL.Image.MAX_IMAGE_PIXELS and max_pixels."
        raise ImageError(f"refused before decoding: {str(error).rstrip('.')}. {remedy}") from None
    file.in_header = False
    # Pillow's TIFF plugin turns an OSError into a warning and continues, so a refusal may have been swallowed.
    if file.refusal is not None:
        raise file.refusal
    with opened_image as image:
        _check_header(image, max_pixels=max_pixels)
        if image.format in ("JPEG", "MPO") and (frame is None or not frame.one_pass):
            check_jpeg_cost(data, num_pixels=image.width * image.height)
        image.load()
        # Read EXIF after load(): a PNG may store it behind the pixels, and reading it first fails on a damaged tail.
        orientation = orientation_of(image) if exif_orientation else 1
        return interleaved(upright(_to_rgb(image, sixteen_bit_max), orientation))


def _check_header(image: Image.Image, *, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        size = f"{width}x{height} = {width * height} pixels"
        raise ImageError(f"{size} exceeds max_pixels={max_pixels}; raise it if you trust the image, or downscale it.")
    has_range = image.mode not in ("I", "F")
    tags = getattr(image, "tag_v2", None) if image.format == "TIFF" else None
    if tags is not None:
        # Pillow decodes a tile as a whole, even if the image is much smaller.
        tile_pixels = math.prod(int(tags.get(side, 0)) for side in _TIFF_TILE_SIDES)
        if tile_pixels > max(max_pixels, _MAX_TILE_PIXELS):
            limits = f"max_pixels={max_pixels} and {_MAX_TILE_PIXELS}"
            raise ImageError(f"a tile of {tile_pixels} pixels exceeds {limits}; save the image with smaller tiles.")
        # Pillow opens a signed 8-bit TIFF as mode "L" and reads -1 as 255; only the tag shows the sign.
        has_range &= bool(np.all(np.equal(tags.get(_TIFF_SAMPLE_FORMAT, _TIFF_UNSIGNED), _TIFF_UNSIGNED)))
    if not has_range:
        kind = f"mode {image.mode} ({image.format}, signed, 32-bit or floating-point samples)"
        raise ImageError(f"{kind} has no agreed range; convert the file to 8-bit or unsigned 16-bit.")


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF (or XMP) orientation of an opened image, 1 to 8; 1 (upright) if it is missing or unreadable."""
    try:
        value = image.getexif().get(_EXIF_ORIENTATION)
    except Warning:
        # Callers handle warnings that the user turned into errors.
        raise
    except Exception:
        return 1
    return value if value in _MIRRORED_AXES else 1


def picture_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a loaded image, 1 to 8, from its ``info`` alone.

    Changes of ``image.getexif()`` are not pickled, so spawned workers would turn the image otherwise.
    """
    bare_image = Image.new("1", (1, 1))
    bare_image.info.update(image.info)
    return orientation_of(bare_image)


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Return pixels ``(3, H, W)`` turned upright according to the EXIF ``orientation``, 1 to 8."""
    if orientation == 1:
        return pixels
    if orientation >= SIDEWAYS:
        pixels = pixels.transpose(-1, -2)
    return pixels.flip(_MIRRORED_AXES[orientation])


def stored_region(
    region: tuple[int, int, int, int], orientation: int, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Convert a region (left, top, right, bottom) of an `upright` image of ``size`` to coordinates as stored."""
    left, top, right, bottom = region
    if -1 in _MIRRORED_AXES[orientation]:
        left, right = size[1] - right, size[1] - left
    if -2 in _MIRRORED_AXES[orientation]:
        top, bottom = size[0] - bottom, size[0] - top
    return (top, left, bottom, right) if orientation >= SIDEWAYS else (left, top, right, bottom)


def interleaved(pixels: Tensor) -> Tensor:
    """Return uint8 ``(3, H, W)`` pixels in row-major order in memory, with the channels of each pixel adjacent."""
    rows = pixels.permute(1, 2, 0)
    if rows.is_contiguous():
        return pixels
    # Copying each pixel as one 3-byte item takes half the time of copying single bytes.
    packed_pixels = np.ascontiguousarray(rows.numpy().view("V3"))
    return torch.from_numpy(packed_pixels.view(np.uint8)).permute(2, 0, 1)


def sixteen_bit_report(files: Iterable[str | BinaryIO | Image.Image], *, max_pixels: int) -> str | None:
    """Describe how the 16-bit images among some files are reduced to 8 bits, or return None if there are none.

    Reads the header of each PNG, TIFF and JPEG 2000 file, and decodes up to 4 of them. An unreadable file is skipped;
    its sample raises the error.

    Args:
        files: Paths of the image files to inspect, or file objects and opened images, which are all inspected.
        max_pixels: Largest width x height that is decoded.
    """
    num_gray = 0
    num_colour = 0
    num_files = 0
    max_values: list[int] = []
    for file in files:
        num_files += 1
        # Other formats have no 16 bits, and reading a header takes time.
        if isinstance(file, str) and not file.lower().endswith(_SUFFIXES_16_BIT):
            continue
        with contextlib.suppress(Exception), _opened(file) as image:
            if image.mode.startswith("I;16"):
                num_gray += 1
                if len(max_values) < _MAX_DECODED:
                    _check_header(image, max_pixels=max_pixels)
                    max_values.append(int(np.asarray(image).max()))
            elif image.mode != "I" and image.format != "JPEG2000":
                # Pillow opens 16-bit RGB in an 8-bit mode; only the raw mode of its decoder shows the 16 bits.
                num_colour += any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    sentences = []
    if num_gray:
        max_value = max(max_values, default=SIXTEEN_BIT_MAX)
        max_result = _to_8_bits(np.array([max_value]), SIXTEEN_BIT_MAX)[0]
        num_bits = max(8, max_value.bit_length())
        remedy = f"sixteen_bit_max={2**num_bits - 1} for {num_bits}-bit data, or {SIXTEEN_BIT_MAX} if this is right"
        if num_bits == 16:
            remedy = f"sixteen_bit_max={SIXTEEN_BIT_MAX} if this is right, or the value that should become 255"
        sentences += [
            f"{num_gray} of {num_files} inspected images are 16-bit grayscale, which is divided by 257",
            f"The largest value of the first {len(max_values)} is {max_value}, which becomes {max_result}; "
            f"give {remedy}",
        ]
    if num_colour:
        kind = "16-bit colour, and only the high byte of their values is used"
        remedy = "convert them to 8 bits if their values use fewer than 16"
        sentences.append(f"{num_colour} of {num_files} inspected images are {kind}; {remedy}")
    return ". ".join(sentences) or None


def _opened(file: str | BinaryIO | Image.Image) -> contextlib.AbstractContextManager[Image.Image]:
    # The context of an image would close the user's image.
    return contextlib.nullcontext(file) if isinstance(file, Image.Image) else Image.open(file, formats=IMAGE_FORMATS)


def _to_8_bits(values: npt.NDArray[Any], max_value: int) -> npt.NDArray[np.uint8]:
    """Scale values from 0..``max_value`` to 0..255, rounded; larger values become 255."""
    # Integer rounding: (510 v + m) // 2m equals floor(255 v / m + 1/2), without floating point.
    doubled = np.minimum(values, max_value).astype(np.uint32) * 510
    result: npt.NDArray[np.uint8] = ((doubled + max_value) // (2 * max_value)).astype(np.uint8)
    return result


def _to_rgb(image: Image.Image, sixteen_bit_max: int) -> Tensor:
    """Return the pixels of a loaded image as RGB, ``(3, H, W)``."""
    if image.mode.startswith("I;16"):
        gray = _to_8_bits(np.asarray(image), sixteen_bit_max)
        return torch.from_numpy(np.repeat(gray[..., None], 3, axis=2)).permute(2, 0, 1)
    # Transparency is always dropped here; without this line Pillow warns when it drops a palette's.
    image.info.pop("transparency", None)
    if image.mode in _UNPREMULTIPLIED_MODES:
        image = image.convert(_UNPREMULTIPLIED_MODES[image.mode])
    return torch.from_numpy(np.array(image if image.mode == "RGB" else image.convert("RGB"))).permute(2, 0, 1)
