"""What a JPEG file says before its pixels: size, how it is coded, and what decoding it would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lit_loader.errors import ImageError

__all__ = ["BYTES_A_PIXEL", "JpegHeader", "SPARE_BYTES", "check_jpeg_cost", "jpeg_header", "with_rows"]

# NOTE [What a JPEG may cost]
# A progressive file goes over all of its pixels once a scan, and a scan of nothing takes a few bytes: a file of
# megabytes can ask for hours. Encoders write at most about a dozen scans. Inside coded data the byte 0xFF is always
# followed by 0 or a restart marker, so counting the marker of a scan in the whole file finds every one (and those of
# thumbnails beside, which is why the bound leaves room). The count is a search for two bytes.
# Pillow reads a header of stray bytes one by one, and adds each segment of EXIF to those before it.
MAX_HEADER_BYTES: Final = 32 << 20
MAX_HEADER_PIECES: Final = 100_000
SPARE_BYTES: Final = 64 << 20
BYTES_A_PIXEL: Final = 16
MAX_SCANS: Final = 64
MAX_SCANNED_PIXELS: Final = 1 << 29
_ALWAYS_SCANS: Final = 16
_START: Final = b"\xff\xd8"
_SCAN: Final = b"\xff\xda"
_END: Final = b"\xff\xd9"
_BASELINE: Final = (0xC0, 0xC1)
_PROGRESSIVE: Final = 0xC2
_FRAMES: Final = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_ALONE: Final = (0x01, *range(0xD0, 0xDA))
_APP1: Final = 0xE1


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """The frame of a JPEG that is coded with 8 bits, sequential or progressive, grey or of three channels.

    Attributes:
        height: Rows as stored, from 1.
        width: Columns as stored, from 1.
        rows_at: Where in the file the number of rows stands, two bytes, big endian.
        row_block: Rows that are coded together.
        one_pass: Whether all channels come together in one scan from top to bottom: rows can be left off, and a
            decoder reads no further scan.
        may_be_turned: Whether there is an APP1 segment: EXIF or XMP may ask to turn the image.
    """

    height: int
    width: int
    rows_at: int
    row_block: int
    one_pass: bool
    may_be_turned: bool


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Return the header of a JPEG file; None where it is none, incomplete, or of a rarer kind.

    Args:
        data: The whole file.

    Raises:
        ImageError: The header has more than 32 MiB or 100,000 segments and stray bytes: no encoder writes it.
    """
    if not data.startswith(_START):
        return None
    frames, turned = [], False
    for marker, at in _segments(data):
        if marker in _FRAMES:
            frames.append(at)
        turned = turned or marker == _APP1
        if marker == _SCAN[1] and len(frames) == 1 and (data.endswith(_END) or data.find(_END, at) >= 0):
            return _header(data, frames[0], scan_at=at, turned=turned)
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield marker and place of each segment that lies in the file whole, up to the first scan.

    Raises:
        ImageError: The header is longer, or in more pieces, than any encoder writes.
    """
    at, pieces = len(_START), 0
    while at + 4 <= len(data):
        pieces += 1
        if pieces > MAX_HEADER_PIECES or at > MAX_HEADER_BYTES:
            raise ImageError(
                f"refused before decoding: its header goes on beyond {at} bytes and {pieces - 1} segments or stray "
                f"bytes; at most {MAX_HEADER_BYTES} bytes and {MAX_HEADER_PIECES} pieces are read; save the image "
                "again if it is trusted."
            )
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            if at + 2 + length > len(data):
                return
            yield marker, at
            if marker == _SCAN[1]:
                return
            at += 2 + length


def _header(data: bytes, frame: int, *, scan_at: int, turned: bool) -> JpegHeader | None:
    kind, length = data[frame + 1], int.from_bytes(data[frame + 2 : frame + 4], "big")
    if kind not in (*_BASELINE, _PROGRESSIVE) or length < 8:
        return None
    bits, num_channels = data[frame + 4], data[frame + 9]
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    width = int.from_bytes(data[frame + 7 : frame + 9], "big")
    if bits != 8 or num_channels not in (1, 3) or not height or not width or length != 8 + 3 * num_channels:
        return None
    tallest = max(data[frame + 11 + 3 * channel] & 15 for channel in range(num_channels))
    return JpegHeader(
        height=height,
        width=width,
        rows_at=frame + 5,
        row_block=8 * tallest,
        one_pass=kind in _BASELINE
        and data[scan_at + 4 : scan_at + 5] == bytes([num_channels])
        and 1 <= tallest <= 4,
        may_be_turned=turned,
    )


def with_rows(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Return a copy of the file that says it has fewer rows, so that a decoder stops there.

    Args:
        data: The file.
        header: Its header, with ``one_pass``.
        rows: From 1 to ``header.height``.
    """
    at = header.rows_at
    return b"".join((data[:at], rows.to_bytes(2, "big"), data[at + 2 :]))


def check_jpeg_cost(data: bytes, *, num_pixels: int) -> None:
    """Refuse a JPEG that costs far more than its pixels; see NOTE [What a JPEG may cost].

    Args:
        data: The whole file.
        num_pixels: Width x height, from its header.

    Raises:
        ImageError: It has more than 64 scans, or more than 16 that go over more than 2^29 pixels together; or more
            bytes than 64 MiB and 16 a pixel.
    """
    if len(data) > SPARE_BYTES + BYTES_A_PIXEL * num_pixels:
        raise ImageError(
            f"refused before decoding: {len(data)} bytes for {num_pixels} pixels exceed the bound of {SPARE_BYTES} + "
            f"{BYTES_A_PIXEL} a pixel; save the image again if it is trusted."
        )
    scans = data.count(_SCAN)
    if scans > MAX_SCANS or (scans > _ALWAYS_SCANS and scans * num_pixels > MAX_SCANNED_PIXELS):
        raise ImageError(
            f"refused before decoding: {scans} scans over {num_pixels} pixels exceed the bound of {MAX_SCANS} scans, "
            f"or of {MAX_SCANNED_PIXELS} pixels over more than {_ALWAYS_SCANS} scans; save the image again if it is "
            "trusted."
        )
