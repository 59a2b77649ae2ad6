"""Open and decode image files; the pixels of a JPEG are decoded on demand, by region and at reduced size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Final

import torch
from PIL import Image
from torch import Tensor

from lit_loader.errors import ImageError
from lit_loader.foundation.stage_times import DECODING
from lit_loader.images.decoding import (
    MAX_PIXELS,
    SIDEWAYS,
    SIXTEEN_BIT_MAX,
    decode_bytes,
    interleaved,
    orientation_of,
    read_image_file,
    stored_region,
    upright,
)
from lit_loader.images.jpeg import JpegFrame, check_jpeg_cost, jpeg_frame
from lit_loader.images.jpeg_decoders import decode_whole, turbo_decoder
from lit_loader.images.lazy_image import ChangedImage, CroppedImage, DecodedImage, ImageRegion, LazyImage, Part, Step

__all__ = ["EncodedImage", "decode_image", "open_bytes", "open_image"]

# NOTE [Regions of a JPEG]
# Huffman decoding takes most of the time, and its blocks come row by row. libjpeg-turbo 3 therefore stops below a
# region; above it and at its sides it skips the inverse transform and the colour conversion, but not Huffman decoding.
# Without libjpeg-turbo 3, simplejpeg or Pillow decodes the whole image, with the same bits.

# libjpeg's scales between these have no fast code and save no time.
_SHRINK_FACTORS: Final = (8, 4, 2)
_MIN_SHRUNK_SIDE: Final = 16
_MARGIN_COLUMNS: Final = 8
_BLOCK_COLUMNS: Final = 16


def decode_image(
    path: Path | str,
    *,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
    sixteen_bit_max: int = SIXTEEN_BIT_MAX,
) -> Tensor:
    """Decode an image file to 8-bit RGB; the file's content decides the format, not its name.

    - JPEG, MPO, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 and AVIF are read. Pillow's other formats are refused,
      because some run programs or hide pixels from every size limit.
    - Grayscale, 1-bit, palette, CMYK and YCbCr images become RGB as Pillow converts them.
    - An alpha channel or a transparent colour is dropped and the stored colours are used, as
      ``PIL.Image.convert("RGB")`` and torchvision's RGB mode do. No background is blended in.
    - 16-bit unsigned grayscale is divided by 257 and rounded, which maps 0..65535 to 0..255. The rule depends on the
      type and not on the values, so 12-bit data stored in 16 bits looks dark without ``sixteen_bit_max=4095``. Pillow
      reduces 16-bit RGB to its high byte.
    - Signed and floating-point images have no agreed range and are refused.
    - Only the first frame of an animation is read.
    - Files larger than 64 MiB plus 16 bytes for each of ``max_pixels`` are refused. So are a JPEG that costs far more
      than its pixels (many scans, an endless header) and a TIFF with a huge tile, before they are decoded.
    - Pillow decodes. An undamaged 8-bit JPEG with one or three channels is decoded by libjpeg-turbo 3 or simplejpeg
      instead if one is installed (the extra ``fast``): with the same bits, in less time.
    - Unreadable EXIF is ignored. A file damaged anywhere else is refused, even a PNG with intact pixels and a
      damaged end (``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is honoured).

    Args:
        path: The file.
        max_pixels: Largest width x height accepted; checked in the header, before pixels are allocated.
            Pillow's own limit, twice ``PIL.Image.MAX_IMAGE_PIXELS``, applies as well.
        exif_orientation: Turn the image upright. Annotation tools show the upright image, so boxes are expected to
            refer to it; ``False`` returns the pixels as stored (except for TIFF, which Pillow turns while loading).
        sixteen_bit_max: The 16-bit grayscale value that maps to 255, such as 4095 for 12-bit data; higher values
            also become 255.

    Returns:
        uint8 tensor, shape ``(3, H, W)``, RGB. The three values of a pixel are adjacent in memory: decoders write
        them so, and a resize takes half the time.

    Raises:
        ImageError: The file is missing, empty, truncated, not an image, too large, or of a refused type. The
            message names the file.
        ValueError: If ``max_pixels`` is below 1.
    """
    return open_image(
        path, max_pixels=max_pixels, exif_orientation=exif_orientation, sixteen_bit_max=sixteen_bit_max
    ).read()


def open_image(
    path: Path | str,
    *,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
    sixteen_bit_max: int = SIXTEEN_BIT_MAX,
) -> LazyImage:
    """Open an image file; the pixels of a JPEG are decoded on demand.

    Args:
        path: The file.
        max_pixels: See `decode_image`.
        exif_orientation: See `decode_image`.
        sixteen_bit_max: See `decode_image`.

    Returns:
        An `EncodedImage` for an 8-bit JPEG with one or three channels. Pillow decodes every other file immediately.

    Raises:
        ImageError: See `decode_image`; damage inside a JPEG may only be detected when it is decoded.
    """
    data = read_image_file(path, max_pixels=max_pixels)
    return open_bytes(
        data, path, max_pixels=max_pixels, exif_orientation=exif_orientation, sixteen_bit_max=sixteen_bit_max
    )


def open_bytes(
    data: bytes, path: Path | str, *, max_pixels: int, exif_orientation: bool, sixteen_bit_max: int
) -> LazyImage:
    """Open the bytes of an image file, see `open_image`.

    Args:
        data: The bytes, which `check_num_bytes` accepts.
        path: The file, or another name of the image, for error messages.
        max_pixels: See `decode_image`.
        exif_orientation: See `decode_image`.
        sixteen_bit_max: See `decode_image`.

    Raises:
        ImageError: See `open_image`.
    """
    decode = partial(
        decode_bytes,
        data,
        path,
        max_pixels=max_pixels,
        exif_orientation=exif_orientation,
        sixteen_bit_max=sixteen_bit_max,
    )
    try:
        frame = _frame_to_decode(data, max_pixels=max_pixels)
    except ImageError:
        # `decode` finds the same error again, and names the file in it.
        frame = None
    if frame is None:
        return DecodedImage(decode())
    orientation = 1
    # A JPEG without an APP1 segment has no orientation, so Pillow need not open it.
    if exif_orientation and frame.may_be_turned:
        try:
            with Image.open(BytesIO(data), formats=("JPEG",)) as image:
                orientation = orientation_of(image)
        except Exception:
            # Pillow's warnings about broken EXIF arrive here too if the user turned warnings into errors.
            return DecodedImage(decode())
    return EncodedImage(data, frame, orientation, decode)


def _frame_to_decode(data: bytes, *, max_pixels: int) -> JpegFrame | None:
    """Return the frame of a JPEG that can be decoded by region, or None if `decode_bytes` must judge the file."""
    frame = jpeg_frame(data)
    num_pixels = 0 if frame is None else frame.height * frame.width
    if frame is None or num_pixels > min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels)):
        return None
    # Decoders read only the first scan of a one-pass file, so its cost is known.
    if not frame.one_pass:
        check_jpeg_cost(data, num_pixels=num_pixels)
    return frame


class EncodedImage(LazyImage):
    """A JPEG file from `open_image` that decodes only the requested region, at 1/2, 1/4 or 1/8 size if that is enough.

    A region at full size has the bits of `decode_image`.

    Bound: a region decoded at 1/2, 1/4 or 1/8 and resized to its final size is compared with a full decode resized to
    that size. For photographs and photo-like images of 239 to 960 rows, and final sizes of 8 pixels and more, with and
    without fill around them, PSNR is at least 33 dB (median 48), 999 of 1000 values are within 64 of 255 levels, and
    all are within 96. ``benchmarks/decode_error.py`` measures it. Two measures make this hold: a result of up to 192
    pixels is read with 24 extra pixels along its shorter side, and if a side is not a multiple of 2, 4 or 8, its last
    pixel is mixed with the fill beyond it. A scaled decode drops high frequencies instead of averaging pixels, so fine
    texture keeps more contrast.

    libjpeg-turbo 3 decodes if it is installed, otherwise simplejpeg, otherwise Pillow, all with the same bits. Only
    libjpeg-turbo 3 skips the surroundings of the region, so it may miss damage there.

    Runs in: any thread; decoding releases the GIL. Owns: the file's bytes.

    Args:
        data: The bytes of the file.
        frame: The file's frame header.
        orientation: EXIF orientation of the stored pixels, 1 to 8.
        decode: Decodes the whole file, or raises an error with the reason; called if the decoders refuse the file.
    """

    def __init__(self, data: bytes, frame: JpegFrame, orientation: int, decode: Callable[[], Tensor]) -> None:
        self._data = data
        self._frame = frame
        self._stored_size = (frame.height, frame.width)
        self._orientation = orientation
        self._decode_by_pillow = decode
        self.size = (frame.width, frame.height) if orientation >= SIDEWAYS else self._stored_size

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``, with the channels of each pixel adjacent in memory.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        height, width = self._stored_size
        with DECODING:
            pixels = self._decode_stored((0, 0, width, height), shrink=1)
            return self._decode_by_pillow() if pixels is None else interleaved(upright(pixels, self._orientation))

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Decode a region, shrunk as far as ``zoom`` allows; see `LazyImage.read_region`.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        shrink = next((factor for factor in _SHRINK_FACTORS if zoom * factor <= 1 and self._can_shrink(factor)), 1)
        with DECODING:
            pixels = self._decode_stored(stored_region(region, self._orientation, self.size), shrink=shrink)
            if pixels is None:
                return ImageRegion(self._decode_by_pillow(), 0, 0, 1.0)
        left, top = (side // shrink * shrink for side in region[:2])
        return ImageRegion(upright(pixels, self._orientation), left, top, 1 / shrink)

    def cropped(self, region: Part) -> CroppedImage:
        """Return a region of the image; the rest is not decoded."""
        return CroppedImage(self, region)

    def changed(self, step: Step) -> LazyImage:
        """Return the image with a postponed step."""
        return ChangedImage(self, step)

    def _can_shrink(self, factor: int) -> bool:
        # If a side is not a multiple, the partial pixel comes last as stored. Turning the image may move it to the
        # front, where it would shift all others.
        is_exact = self._orientation == 1 or not any(side % factor for side in self._stored_size)
        return is_exact and min(self._stored_size) >= _MIN_SHRUNK_SIDE

    def _decode_stored(self, region: Part, *, shrink: int) -> Tensor | None:
        """Decode a region of the stored image with its sides divided by ``shrink``.

        Args:
            region: In pixels of the stored image; extended to whole pixels of the result.
            shrink: 1, 2, 4 or 8.

        Returns:
            uint8 ``(3, h, w)``, or None if every decoder refuses the file.
        """
        height, width = self._stored_size
        left = region[0] // shrink
        top = region[1] // shrink
        right = -(-region[2] // shrink)
        bottom = -(-region[3] // shrink)
        # Files with several scans are decoded whole: where scans are missing, libjpeg smooths from block to block.
        crop = full_image = (0, 0, -(-width // shrink), -(-height // shrink))
        if self._frame.one_pass:
            # libjpeg interpolates colours from neighbouring columns, so some more are decoded at both sides. A crop
            # must begin at a whole block of 16 columns. Blocks of the rare 4:1:1 have 32: the decoder refuses a crop
            # that does not fit them, and the whole image is decoded below.
            first_column = max((region[0] - _MARGIN_COLUMNS) // _BLOCK_COLUMNS * _BLOCK_COLUMNS, 0)
            last_column = min(region[2] + _MARGIN_COLUMNS, width)
            crop = (first_column // shrink, top, -(-last_column // shrink), bottom)
        decoder = turbo_decoder()
        pixels = None if decoder is None else decoder.decode(self._data, self._stored_size, crop, shrink=shrink)
        if pixels is None:
            # The turbo decoder returns None for any damage that libjpeg warns about; Pillow accepts some of it.
            crop = full_image
            pixels = decode_whole(self._data, self._stored_size, shrink=shrink)
        if pixels is None:
            return None
        # Slice with numpy: every torch call releases the GIL, and other threads delay taking it again.
        pixels = pixels[top - crop[1] : bottom - crop[1], left - crop[0] : right - crop[0]]
        return torch.from_numpy(pixels.transpose(2, 0, 1))
