"""JPEG files: what their header says, and what decoding them would cost."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lit_loader.errors import ImageError

__all__ = ["BYTES_A_PIXEL", "JpegFrame", "SPARE_BYTES", "check_jpeg_cost", "jpeg_frame"]

# NOTE [What a JPEG may cost]
# A progressive file goes over all of its pixels once a scan, and a scan of nothing takes a few bytes: a file of
# megabytes can ask for hours. Encoders write at most about a dozen scans. Inside coded data the byte 0xFF is always
# followed by 0 or a restart marker, so counting the marker of a scan in the whole file finds every one (and those of
# thumbnails beside, which is why the bound leaves room). The count is a search for two bytes.
# Pillow reads a header of stray bytes one by one, copies all segments of EXIF for each one more, and takes 0.4 us for
# each 12 bytes of Photoshop's.
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
        one_pass: Whether all channels come together in one scan from top to bottom: a decoder reads no further scan.
        may_be_turned: Whether there is an APP1 segment: EXIF or XMP may ask to turn the image.
    """

    height: int
    width: int
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
        if at > MAX_HEADER_BYTES or pieces > MAX_HEADER_PIECES or num_exif > MAX_EXIF_SEGMENTS:
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
    one_pass = kind in _BASELINE and data[scan_at + 4] == num_channels
    return JpegFrame(height, width, one_pass, may_be_turned)


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
