"""An image file that is read and not decoded yet: it decodes the region that is asked for, no larger than needed."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Final

from PIL import Image
from torch import Tensor

from lit_loader.datasets.images import (
    MAX_PIXELS,
    SIDEWAYS,
    decode_bytes,
    interleaved,
    orientation_of,
    read_image_file,
    stored_region,
    upright,
)
from lit_loader.datasets.jpeg import JpegFrame, check_jpeg_cost, decode_region, jpeg_frame
from lit_loader.errors import ImageError
from lit_loader.transforms import ImageRegion

__all__ = ["EncodedImage", "decode_image"]

_SHRINKS: Final = (8, 4, 2)
_SMALLEST_SHRUNK_SIDE: Final = 16


def decode_image(path: Path | str, *, max_pixels: int = MAX_PIXELS, exif_orientation: bool = True) -> Tensor:
    """Decode an image file to 8-bit RGB; the file's content decides the format, not its name.

    - JPEG, MPO, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 and AVIF are read; Pillow's other formats are refused: some
      run programs, or hide pixels that no limit counts.
    - Grayscale, 1-bit, palette, CMYK and YCbCr images become RGB as Pillow converts them.
    - An alpha channel or a transparent colour is dropped and the stored colours are kept, as
      ``PIL.Image.convert("RGB")`` and torchvision's RGB mode do: no background is made up.
    - 16-bit unsigned grayscale is divided by 257 and rounded, so that 0..65535 becomes 0..255; the rule
      looks at the type and not at the values, so 12-bit data in 16 bits comes out dark. 16-bit RGB is
      reduced to its high byte by Pillow.
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

    Returns:
        uint8 tensor, shape ``(3, H, W)``, R G B. In memory the three values of a pixel lie side by side, as they
        come and as a resize takes them in half the time.

    Raises:
        ImageError: The file is missing, empty, truncated, no image, too large, or of a refused type. The
            message names the file.
        ValueError: If ``max_pixels`` is below 1.
    """
    return EncodedImage(path, max_pixels=max_pixels, exif_orientation=exif_orientation).read()


class EncodedImage:
    """The bytes of an image file, which are decoded as far as needed; `lit_loader.transforms.ImageSource`.

    JPEG of 8 bits and one or three channels is decoded in part: at 1/2, 1/4 or 1/8 where what is shown is at most
    that large, and the region that is shown. A region at full size has the bits of `decode_image`. Everything else is
    decoded in full by Pillow when this is made.

    Bound. Pixels of a part at 1/2, 1/4 or 1/8, shrunk to what is shown, against a full decode shrunk to the same: on
    photo-like pictures of 239 to 960 rows and on photographs PSNR is at least 33 dB (median 45), 999 of 1000 values
    are within 64 of 255 levels, and single values at sharp edges within 96. ``benchmarks/decode_error.py`` measures it.
    Where a view reaches beyond the image, and a side is not a multiple of 2, 4 or 8, the last row or column is part of
    a pixel and drawn as a whole one: beside the fill, 2 of 1000 values may be beyond 64, and single ones 110 off.
    The scaled pixels are the frequencies that fit and not means of pixels, so fine texture keeps more contrast.

    libjpeg-turbo 3 decodes where one is found, else simplejpeg, else Pillow; they give the same bits, and the first
    alone leaves out what lies around the region. A file that is damaged where it is decoded goes to Pillow.

    Runs in: any thread; decoding lets go of the interpreter lock. Owns: the file's bytes.

    Args:
        path: The file.
        max_pixels: As for `decode_image`.
        exif_orientation: As for `decode_image`.

    Raises:
        ImageError: As `decode_image` does; a damaged file may be found out only when it is decoded.

    Attributes:
        size: Height and width of the upright image, in pixels.
    """

    def __init__(
        self, path: Path | str, *, max_pixels: int = MAX_PIXELS, exif_orientation: bool = True
    ) -> None:
        self._path = path
        self._settings: dict[str, Any] = {"max_pixels": max_pixels, "exif_orientation": exif_orientation}
        self._data = read_image_file(path, max_pixels=max_pixels)
        self._pixels: Tensor | None = None
        self._orientation = 1
        try:
            self._frame = self._decodable_frame(**self._settings)
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None
        height, width = self.read().shape[-2:] if self._frame is None else self._frame[:2]
        self.size: tuple[int, int] = (width, height) if self._orientation >= SIDEWAYS else (height, width)

    def read(self) -> Tensor:
        """Return all pixels, uint8 ``(3, H, W)``, a pixel's three values side by side in memory.

        Raises:
            ImageError: The file is damaged; the message names it.
        """
        if self._frame is not None:
            whole = (0, 0, self._frame.width, self._frame.height)
            found = decode_region(self._data, self._frame, whole)
            if found is not None:
                return interleaved(upright(found, self._orientation))
        if self._pixels is None:
            self._pixels = decode_bytes(self._data, self._path, **self._settings)
        return self._pixels

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
        left, top, right, bottom = region
        if self._frame is not None:
            shrink = next((by for by in _SHRINKS if zoom * by <= 1 and self._can_shrink(self._frame, by)), 1)
            stored = stored_region(region, self._orientation, self.size)
            found = decode_region(self._data, self._frame, stored, shrink=shrink)
            if found is not None:
                corner = left // shrink * shrink, top // shrink * shrink
                return ImageRegion(upright(found, self._orientation), *corner, 1 / shrink)
            self._frame = None  # Pillow may accept it, or says what is wrong
        return ImageRegion(self.read()[:, top:bottom, left:right], left, top, 1.0)

    def _can_shrink(self, frame: JpegFrame, by: int) -> bool:
        if min(frame.height, frame.width) < _SMALLEST_SHRUNK_SIDE:
            return False
        # Turned, what is left of the last block would lie before the first pixel.
        return self._orientation == 1 or (frame.height % by == 0 and frame.width % by == 0)

    def _decodable_frame(self, *, max_pixels: int, exif_orientation: bool) -> JpegFrame | None:
        """Return the frame of a JPEG that can be decoded in part, or None: `decode_bytes` judges the file."""
        frame = jpeg_frame(self._data)
        num_pixels = 0 if frame is None else frame.height * frame.width
        if frame is None or num_pixels > min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels)):
            return None
        if not frame.one_pass:  # a decoder takes one scan of such a file, and refuses more
            check_jpeg_cost(self._data, num_pixels=num_pixels)
        if exif_orientation and frame.may_be_turned:
            try:
                with Image.open(BytesIO(self._data), formats=("JPEG",)) as image:
                    self._orientation = orientation_of(image)
            except Exception:  # also Pillow's warnings of broken EXIF, made errors
                return None
        return frame
