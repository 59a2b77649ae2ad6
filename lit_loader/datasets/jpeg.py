"""JPEG files: what their header says, what decoding them would cost, and decoding a region of one."""

from __future__ import annotations

import contextlib
import struct
from io import BytesIO
from typing import Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lit_loader.datasets.turbojpeg import Pixels, turbo_decoder
from lit_loader.errors import ImageError

try:
    from simplejpeg import decode_jpeg
except ImportError:  # an extra
    decode_jpeg = None

__all__ = ["BYTES_A_PIXEL", "JpegFrame", "SPARE_BYTES", "check_jpeg_cost", "decode_region", "jpeg_frame"]

# NOTE [Regions of a JPEG]
# Huffman decoding takes most of the time, and its blocks come row by row: libjpeg-turbo 3 leaves out what lies below a
# region, and the inverse transform and the colours of what lies above and beside. Colours are interpolated from the
# pixels beside, so a block more is decoded at the sides. Of a file of several scans it decodes all: where some are
# missing, libjpeg smooths from block to block. The inverse transform is made at 1/2, 1/4 or 1/8 where that is enough;
# the scales between have no fast code and save nothing. All decoders here are libjpeg-turbo: the same bits. What one of
# them warns of goes to Pillow, which accepts some damage and does not warn.

# NOTE [What a JPEG may cost]
# A progressive file goes over all of its pixels once a scan, and a scan of nothing takes a few bytes: a file of
# megabytes can ask for hours. Encoders write at most about a dozen scans. Inside coded data the byte 0xFF is always
# followed by 0 or a restart marker, so counting the marker of a scan in the whole file finds every one (and those of
# thumbnails beside, which is why the bound leaves room). The count is a search for two bytes.
# Pillow reads a header of stray bytes one by one, and copies all segments of EXIF for each one more.
MAX_HEADER_BYTES: Final = 32 << 20
MAX_HEADER_PIECES: Final = 100_000
MAX_EXIF_SEGMENTS: Final = 64
SPARE_BYTES: Final = 64 << 20
BYTES_A_PIXEL: Final = 16
MAX_SCANS: Final = 64
MAX_SCANNED_PIXELS: Final = 1 << 29
_ALWAYS_SCANS: Final = 16
_START, _SCAN, _END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_FRAMES: Final = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE: Final = (0x01, *range(0xD0, 0xDA))
_APP1: Final = 0xE1
_EXIF: Final = b"Exif\0\0"
_SEGMENT: Final = struct.Struct(">BBH")


class JpegFrame(NamedTuple):
    """The frame of a JPEG that is coded with 8 bits, sequential or progressive, grey or of three channels.

    Attributes:
        height: Rows as stored, from 1.
        width: Columns as stored, from 1.
        block_width: Columns that are coded together.
        one_pass: Whether all channels come together in one scan from top to bottom: a decoder reads no further scan.
        may_be_turned: Whether there is an APP1 segment: EXIF or XMP may ask to turn the image.
    """

    height: int
    width: int
    block_width: int
    one_pass: bool
    may_be_turned: bool


def jpeg_frame(data: bytes) -> JpegFrame | None:
    """Return the frame of a JPEG file; None where it is none, incomplete, or of a rarer kind.

    Args:
        data: The whole file.

    Raises:
        ImageError: The header has more than 32 MiB, 100,000 segments and stray bytes, or 64 segments of EXIF: no
            encoder writes it.
    """
    at, pieces, num_exif, frames, may_be_turned = len(_START), 0, 0, [], False
    num_bytes = len(data) if data.startswith(_START) else 0
    while at + 4 <= num_bytes:
        pieces += 1
        if pieces > MAX_HEADER_PIECES or at > MAX_HEADER_BYTES or num_exif > MAX_EXIF_SEGMENTS:
            raise ImageError(
                f"refused before decoding: its header goes on beyond {at} bytes and {pieces - 1} segments or stray "
                f"bytes, {num_exif} of them of EXIF; at most {MAX_HEADER_BYTES} bytes, {MAX_HEADER_PIECES} pieces and "
                f"{MAX_EXIF_SEGMENTS} segments of EXIF are read; save the image again if it is trusted."
            )
        first, marker, length = _SEGMENT.unpack_from(data, at)
        if first != 0xFF or marker in (0x00, 0xFF) or marker in _ALONE:
            at += 2 if first == 0xFF and marker in _ALONE else 1
            continue
        end = at + 2 + length
        if end > num_bytes:
            break
        if marker in _FRAMES:
            frames.append(at)
        elif marker == _APP1:
            may_be_turned = True
            num_exif += data.startswith(_EXIF, at + 4)
        elif marker == _SCAN[1]:
            found = len(frames) == 1 and (data.endswith(_END) or data.find(_END, at) >= 0)
            return _frame(data, frames[0], at, may_be_turned) if found else None
        at = end
    return None


def _frame(data: bytes, at: int, scan_at: int, may_be_turned: bool) -> JpegFrame | None:
    """Return the frame whose segment starts at ``at``; at least 10 bytes follow, which a scan takes."""
    kind, length, bits, height, width, num_channels = struct.unpack_from(">xBHBHHB", data, at)
    usual = kind in (*_BASELINE, _PROGRESSIVE) and bits == 8 and num_channels in (1, 3) and height and width
    if not usual or length != 8 + 3 * num_channels:
        return None
    sampling = data[at + 11 : at + 2 + length : 3]
    rows, columns = max(factor & 15 for factor in sampling), max(factor >> 4 for factor in sampling)
    if not (1 <= rows <= 4 and 1 <= columns <= 4):
        return None
    one_pass = kind in _BASELINE and data[scan_at + 4] == num_channels
    return JpegFrame(height, width, 8 * columns, one_pass, may_be_turned)


def check_jpeg_cost(data: bytes, *, num_pixels: int) -> None:
    """Refuse a JPEG that costs far more than its pixels; see NOTE [What a JPEG may cost].

    Args:
        data: The whole file.
        num_pixels: Width x height, from its header.

    Raises:
        ImageError: It has more than 64 scans, or more than 16 that go over more than 2^29 pixels together; or more
            bytes than 64 MiB and 16 a pixel.
    """
    scans = data.count(_SCAN)
    if len(data) > SPARE_BYTES + BYTES_A_PIXEL * num_pixels:
        bound = f"{len(data)} bytes for {num_pixels} pixels exceed the bound of {SPARE_BYTES} + {BYTES_A_PIXEL} a pixel"
    elif scans > MAX_SCANS or (scans > _ALWAYS_SCANS and scans * num_pixels > MAX_SCANNED_PIXELS):
        bound = (
            f"{scans} scans over {num_pixels} pixels exceed the bound of {MAX_SCANS} scans, or of "
            f"{MAX_SCANNED_PIXELS} pixels over more than {_ALWAYS_SCANS} scans"
        )
    else:
        return
    raise ImageError(f"refused before decoding: {bound}; save the image again if it is trusted.")


def decode_region(
    data: bytes, frame: JpegFrame, region: tuple[int, int, int, int], *, shrink: int = 1
) -> Tensor | None:
    """Return a region of a JPEG file; see NOTE [Regions of a JPEG].

    Args:
        data: The file.
        frame: Its frame.
        region: Left, top, right and bottom, in pixels as stored; at least one pixel, inside of the image.
        shrink: 1, 2, 4 or 8: the sides are divided by it, and the region moved outwards to whole pixels.

    Returns:
        uint8 ``(3, h, w)``, a view of pixels that are channels last in memory, or None if no decoder takes the file.
    """
    left, top = region[0] // shrink, region[1] // shrink
    right, bottom = -(-region[2] // shrink), -(-region[3] // shrink)
    crop = whole = (0, 0, -(-frame.width // shrink), -(-frame.height // shrink))
    if frame.one_pass:
        beside = frame.block_width
        low = max(region[0] // beside - 1, 0) * beside // shrink
        crop = (low, top, -(-min(region[2] + beside, frame.width) // shrink), bottom)
    decoder, pixels = turbo_decoder(), None
    if decoder is not None:
        pixels = decoder.decode(data, (frame.height, frame.width), crop, shrink=shrink)
    if pixels is None:
        crop, pixels = whole, _decode_whole(data, (whole[3], whole[2]), shrink=shrink)
    if pixels is None:
        return None
    # Cut by numpy: each call of torch lets go of the interpreter lock, for which threads then wait.
    cut = pixels[top - crop[1] : bottom - crop[1], left - crop[0] : right - crop[0]]
    return torch.from_numpy(cut.transpose(2, 0, 1))


def _decode_whole(data: bytes, size: tuple[int, int], *, shrink: int) -> Pixels | None:
    """Return all pixels by simplejpeg or Pillow, or None if they refuse the file or find another size."""
    pixels: Pixels | None = None
    # Any error: the next decoder may take the file, and the last, `decode_bytes`, says what is wrong.
    with contextlib.suppress(Exception):
        if decode_jpeg is not None:
            least = {"min_height": size[0], "min_width": size[1]} if shrink > 1 else {}
            pixels = decode_jpeg(data, colorspace="RGB", min_factor=1, **least)
    with contextlib.suppress(Exception):
        if pixels is None:
            with Image.open(BytesIO(data), formats=("JPEG",)) as image:
                image.draft(None, (image.width // shrink, image.height // shrink))
                pixels = np.array(image.convert("RGB"))
    return None if pixels is None or pixels.shape != (*size, 3) else pixels
