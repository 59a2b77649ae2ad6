"""Parse the headers of JPEG files, and refuse files that cost far more to decode than their pixels."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lit_loader.errors import ImageError

__all__ = ["BYTES_A_PIXEL", "JpegFrame", "SPARE_BYTES", "check_jpeg_cost", "jpeg_frame"]

# Pillow takes 0.4 us for each 12 bytes of Photoshop segments.
MAX_HEADER_BYTES: Final = 32 << 20
# Pillow reads stray bytes in a header one by one.
MAX_HEADER_PIECES: Final = 100_000
# Pillow copies all earlier EXIF segments again for each further one.
MAX_EXIF_SEGMENTS: Final = 64
SPARE_BYTES: Final = 64 << 20
BYTES_A_PIXEL: Final = 16
# A progressive JPEG processes all of its pixels in every scan, and an empty scan takes only a few bytes: a file of
# megabytes can take hours. Encoders write at most about a dozen scans; the limits leave room for embedded thumbnails.
MAX_SCANS: Final = 64
MAX_SCANNED_PIXELS: Final = 1 << 29
_UNCHECKED_SCANS: Final = 16

_START_MARKER: Final = b"\xff\xd8"
_SCAN_MARKER: Final = b"\xff\xda"
_END_MARKER: Final = b"\xff\xd9"
_BASELINE_CODES: Final = (0xC0, 0xC1)
_PROGRESSIVE_CODE: Final = 0xC2
_FRAME_CODES: Final = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Markers without a length and a payload.
_STANDALONE_CODES: Final = (0x01, *range(0xD0, 0xDA))
_APP1_CODE: Final = 0xE1
_EXIF_PREFIX: Final = b"Exif\0\0"
_SEGMENT_HEADER: Final = struct.Struct(">BBH")
_REFUSED: Final = "refused before decoding: {}; save the image again if you trust it."


class JpegFrame(NamedTuple):
    """The frame header of an 8-bit JPEG, sequential or progressive, with one or three channels.

    Attributes:
        height: Rows as stored, at least 1.
        width: Columns as stored, at least 1.
        one_pass: True if one scan from top to bottom holds all channels; decoders then read only this scan.
        may_be_turned: True if the file has an APP1 segment, whose EXIF or XMP may hold an orientation.
    """

    height: int
    width: int
    one_pass: bool
    may_be_turned: bool


def jpeg_frame(data: bytes) -> JpegFrame | None:
    """Return the frame header of a JPEG file, or None if the file is not a JPEG, incomplete, or of a rarer kind.

    Args:
        data: The whole file.

    Raises:
        ImageError: The header exceeds 32 MiB, 100,000 segments and stray bytes, or 64 EXIF segments, which no encoder
            writes.
    """
    if not data.startswith(_START_MARKER):
        return None
    frame_offsets = []
    num_pieces = 0
    num_exif = 0
    may_be_turned = False
    offset = len(_START_MARKER)
    while offset + 4 <= len(data):
        num_pieces += 1
        if offset > MAX_HEADER_BYTES or num_pieces > MAX_HEADER_PIECES or num_exif > MAX_EXIF_SEGMENTS:
            size = f"{offset} bytes in {num_pieces - 1} segments or stray bytes ({num_exif} EXIF segments)"
            limits = f"{MAX_HEADER_BYTES} bytes, {MAX_HEADER_PIECES} pieces and {MAX_EXIF_SEGMENTS} EXIF segments"
            raise ImageError(_REFUSED.format(f"its header is longer than {size}; the limits are {limits}"))
        first_byte, code, length = _SEGMENT_HEADER.unpack_from(data, offset)
        if first_byte != 0xFF or code in (0x00, 0xFF) or code in _STANDALONE_CODES:
            offset += 2 if first_byte == 0xFF and code in _STANDALONE_CODES else 1
            continue
        segment_end = offset + 2 + length
        if segment_end > len(data):
            break
        if code in _FRAME_CODES:
            frame_offsets.append(offset)
        elif code == _APP1_CODE:
            may_be_turned = True
            num_exif += data.startswith(_EXIF_PREFIX, offset + 4)
        elif code == _SCAN_MARKER[1]:
            # Most files end with the marker; trailing bytes may follow it in others.
            is_complete = data.endswith(_END_MARKER) or data.find(_END_MARKER, offset) >= 0
            is_supported = is_complete and len(frame_offsets) == 1
            return _frame(data, frame_offsets[0], offset, may_be_turned) if is_supported else None
        offset = segment_end
    return None


def _frame(data: bytes, offset: int, scan_offset: int, may_be_turned: bool) -> JpegFrame | None:
    """Return the frame header at ``offset``, or None if it is of a rarer kind."""
    # Reading 10 bytes is safe: the scan's segment follows the frame's.
    code, length, bits, height, width, num_channels = struct.unpack_from(">xBHBHHB", data, offset)
    is_supported = code in (*_BASELINE_CODES, _PROGRESSIVE_CODE) and bits == 8 and num_channels in (1, 3)
    # A height of 0 means that a later segment defines it, which decoders rarely support.
    if not is_supported or length != 8 + 3 * num_channels or height == 0 or width == 0:
        return None
    one_pass = code in _BASELINE_CODES and data[scan_offset + 4] == num_channels
    return JpegFrame(height, width, one_pass, may_be_turned)


def check_jpeg_cost(data: bytes, *, num_pixels: int) -> None:
    """Refuse a JPEG that costs far more to decode than its pixels.

    Args:
        data: The whole file.
        num_pixels: Width x height from the header.

    Raises:
        ImageError: The file is larger than 64 MiB plus 16 bytes a pixel, has more than 64 scans, or more than 16 scans
            that together process more than 2^29 pixels.
    """
    # Inside coded data, 0xFF is always followed by 0 or a restart marker, so this counts every scan, and at most those
    # of embedded thumbnails in addition.
    num_scans = data.count(_SCAN_MARKER)
    if len(data) > SPARE_BYTES + BYTES_A_PIXEL * num_pixels:
        limit = f"{SPARE_BYTES} + {BYTES_A_PIXEL} a pixel"
        raise ImageError(_REFUSED.format(f"{len(data)} bytes for {num_pixels} pixels exceed the limit of {limit}"))
    if num_scans > MAX_SCANS or (num_scans > _UNCHECKED_SCANS and num_scans * num_pixels > MAX_SCANNED_PIXELS):
        limits = f"{MAX_SCANS} scans, or of {MAX_SCANNED_PIXELS} pixels in more than {_UNCHECKED_SCANS} scans"
        raise ImageError(_REFUSED.format(f"{num_scans} scans over {num_pixels} pixels exceed the limit of {limits}"))
