"""Image files: decoded in full, or read now and decoded when a region is asked for, no larger than needed."""

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
from lit_loader.images.lazy_image import ChangedImage, DecodedImage, ImageRegion, LazyImage, Part, Step

__all__ = ["EncodedImage", "decode_image", "open_image"]

# NOTE [Regions of a JPEG]
# Huffman decoding takes most of the time, and its blocks come row by row: libjpeg-turbo 3 leaves out what lies below a
# region, and the inverse transform and the colours of what lies above and beside. A region starts at a whole block of
# 16 columns (of the rare 4:1:1 they are 32: where that does not fit, all is decoded), and colours are interpolated
# from the pixels beside, so a few more are decoded at the sides. Of a file of several scans it decodes all: where some
# are missing, libjpeg smooths from block to block. The inverse transform is made at 1/2, 1/4 or 1/8 where that is
# enough; the scales between have no fast code and save nothing. Where there is no libjpeg-turbo 3, the whole image is
# decoded by simplejpeg or Pillow, with the same bits. So is what the first warns of: Pillow accepts some damage.
_SHRINKS: Final = (8, 4, 2)
_SMALLEST_SHRUNK_SIDE: Final = 16
_BESIDE, _ALIGNED = 8, 16


def decode_image(
    path: Path | str,
    *,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
    sixteen_bit_max: int = SIXTEEN_BIT_MAX,
) -> Tensor:
    """Decode an image file to 8-bit RGB; the file's content decides the format, not its name.

    - JPEG, MPO, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 and AVIF are read; Pillow's other formats are refused: some
      run programs, or hide pixels that no limit counts.
    - Grayscale, 1-bit, palette, CMYK and YCbCr images become RGB as Pillow converts them.
    - An alpha channel or a transparent colour is dropped and the stored colours are kept, as
      ``PIL.Image.convert("RGB")`` and torchvision's RGB mode do: no background is made up.
    - 16-bit unsigned grayscale is divided by 257 and rounded, so that 0..65535 becomes 0..255; the rule
      looks at the type and not at the values, so 12-bit data in 16 bits comes out dark unless
      ``sixteen_bit_max=4095`` says so. 16-bit RGB is reduced to its high byte by Pillow.
    - Signed and floating-point images have no agreed range and are refused.
    - Of an animation, the first frame is taken.
    - A file is read up to 64 MiB and 16 bytes for each of ``max_pixels``; a JPEG that costs far more than its pixels
      (many scans, an endless header) and a TIFF of a huge tile are refused before they are decoded.
    - Pillow decodes. JPEG of 8 bits and one or three channels without damage is decoded by libjpeg-turbo 3 or
      simplejpeg instead, where one is found (the extra ``fast``): with the same bits, in less time.
    - EXIF that cannot be read counts as no EXIF. A file damaged anywhere else is refused, also a PNG whose
      pixels are whole and whose end is damaged (``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is honoured).

    Args:
        path: The file.
        max_pixels: Largest width x height accepted; checked in the header, before pixels are allocated.
            Pillow's own bound, twice ``PIL.Image.MAX_IMAGE_PIXELS``, holds beside it.
        exif_orientation: Turn the image upright. Boxes are taken to refer to the upright image, which is
            what annotation tools show; ``False`` gives the pixels as stored (but for TIFF, which Pillow
            turns while loading).
        sixteen_bit_max: Value of 16-bit grayscale that becomes 255, such as 4095 for data of 12 bits; higher ones
            become 255 too.

    Returns:
        uint8 tensor, shape ``(3, H, W)``, R G B. In memory the three values of a pixel lie side by side, as they
        come and as a resize takes them in half the time.

    Raises:
        ImageError: The file is missing, empty, truncated, no image, too large, or of a refused type. The
            message names the file.
        ValueError: If ``max_pixels`` is below 1.
    """
    image = open_image(
        path,
        max_pixels=max_pixels,
        exif_orientation=exif_orientation,
        sixteen_bit_max=sixteen_bit_max,
    )
    return image.read()


def open_image(
    path: Path | str,
    *,
    max_pixels: int = MAX_PIXELS,
    exif_orientation: bool = True,
    sixteen_bit_max: int = SIXTEEN_BIT_MAX,
) -> LazyImage:
    """Read an image file; a JPEG is decoded when its pixels are asked for, as far as they are.

    Args:
        path: The file.
        max_pixels: As for `decode_image`.
        exif_orientation: As for `decode_image`.
        sixteen_bit_max: As for `decode_image`.

    Returns:
        An `EncodedImage` of a JPEG of 8 bits and one or three channels; everything else is decoded by Pillow now.

    Raises:
        ImageError: As `decode_image` does; a damaged JPEG may be found out only when it is decoded.
    """
    data = read_image_file(path, max_pixels=max_pixels)
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
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from None
    if frame is None:
        return DecodedImage(decode())
    orientation = 1
    if exif_orientation and frame.may_be_turned:
        try:
            with Image.open(BytesIO(data), formats=("JPEG",)) as image:
                orientation = orientation_of(image)
        except Exception:  # also Pillow's warnings of broken EXIF, made errors
            return DecodedImage(decode())
    return EncodedImage(data, frame, orientation, decode)


def _frame_to_decode(data: bytes, *, max_pixels: int) -> JpegFrame | None:
    """Return the frame of a JPEG that can be decoded in part, or None: `decode_bytes` judges the file."""
    frame = jpeg_frame(data)
    num_pixels = 0 if frame is None else frame.height * frame.width
    if frame is None or num_pixels > min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels)):
        return None
    if not frame.one_pass:  # a decoder takes one scan of such a file, and refuses more
        check_jpeg_cost(data, num_pixels=num_pixels)
    return frame


class EncodedImage(LazyImage):
    """A JPEG file from `open_image`, of which the region that is shown is decoded, no larger than it is shown.

    It is decoded at 1/2, 1/4 or 1/8 where that is enough. A region at full size has the bits of `decode_image`.

    Bound. Pixels of a part at 1/2, 1/4 or 1/8, shrunk to what is shown, against a full decode shrunk to the same: on
    photo-like pictures of 239 to 960 rows and on photographs, shown at 8 pixels and more, also with fill around them,
    PSNR is at least 33 dB (median 48), 999 of 1000 values are within 64 of 255 levels, and all within 96.
    ``benchmarks/decode_error.py`` measures it. For that, a result of up to 192 pixels is read with 24 pixels more along
    its shorter side, and where a side is not a multiple of 2, 4 or 8, its last pixel is mixed with the fill beyond it.
    The scaled pixels are the frequencies that fit and not means of pixels, so fine texture keeps more contrast.

    libjpeg-turbo 3 decodes where one is found, else simplejpeg, else Pillow; they give the same bits, and the first
    alone leaves out what lies around the region, and so may not find damage there.

    Runs in: any thread; decoding lets go of the interpreter lock. Owns: the file's bytes.

    Args:
        data: The file.
        frame: Its frame.
        orientation: How its pixels are to be turned, as EXIF counts, 1 to 8.
        decode: Decodes the file in full, or says what is wrong with it: used where the decoder refuses it.
    """

    def __init__(self, data: bytes, frame: JpegFrame, orientation: int, decode: Callable[[], Tensor]) -> None:
        self._data, self._frame, self._orientation, self._decode = data, frame, orientation, decode
        height, width = frame.height, frame.width
        self.size = (width, height) if orientation >= SIDEWAYS else (height, width)

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``, a pixel's three values side by side in memory.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        found = self._stored((0, 0, self._frame.width, self._frame.height), shrink=1)
        return self._decode() if found is None else interleaved(upright(found, self._orientation))

    def read_region(self, region: Part, *, zoom: float) -> ImageRegion:
        """Return a region, not smaller than ``zoom`` times its size or than it is; see `LazyImage.read_region`.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        shrink = next((by for by in _SHRINKS if zoom * by <= 1 and self._can_shrink(by)), 1)
        found = self._stored(stored_region(region, self._orientation, self.size), shrink=shrink)
        if found is None:
            return ImageRegion(self._decode(), 0, 0, 1.0)
        left, top = (side // shrink * shrink for side in region[:2])
        return ImageRegion(upright(found, self._orientation), left, top, 1 / shrink)

    def changed(self, step: Step) -> LazyImage:
        """Return the image with a step put off."""
        return ChangedImage(self, step)

    def _can_shrink(self, by: int) -> bool:
        height, width = self._frame.height, self._frame.width
        if min(height, width) < _SMALLEST_SHRUNK_SIDE:
            return False
        # Turned, what is left of the last block would lie before the first pixel.
        return self._orientation == 1 or (height % by == 0 and width % by == 0)

    def _stored(self, region: Part, *, shrink: int) -> Tensor | None:
        """Return a region of the image as stored, its sides divided by ``shrink``, or None if none takes the file.

        Args:
            region: In pixels as stored, moved outwards to whole pixels of the result.
            shrink: 1, 2, 4 or 8.
        """
        height, width = self._frame.height, self._frame.width
        left, top = region[0] // shrink, region[1] // shrink
        right, bottom = -(-region[2] // shrink), -(-region[3] // shrink)
        crop = whole = (0, 0, -(-width // shrink), -(-height // shrink))
        if self._frame.one_pass:  # see NOTE [Regions of a JPEG]
            low, high = (region[0] - _BESIDE) // _ALIGNED * _ALIGNED, region[2] + _BESIDE
            crop = (max(low, 0) // shrink, top, -(-min(high, width) // shrink), bottom)
        decoder, pixels = turbo_decoder(), None
        if decoder is not None:
            pixels = decoder.decode(self._data, (height, width), crop, shrink=shrink)
        if pixels is None:
            crop, pixels = whole, decode_whole(self._data, (height, width), shrink=shrink)
        if pixels is None:
            return None
        # Cut by numpy: each call of torch lets go of the interpreter lock, for which threads then wait.
        cut = pixels[top - crop[1] : bottom - crop[1], left - crop[0] : right - crop[0]]
        return torch.from_numpy(cut.transpose(2, 0, 1))
