"""Decoders of JPEG: libjpeg-turbo 3, called by ctypes, which alone decodes a region; else simplejpeg or Pillow.

NOTE [Which library]
    The system's libturbojpeg, else the copy inside of the wheel of pylibjxl, whose functions can be called from
    outside. Version 2, as in Debian 12, lacks some of them. What is found must give the bits of Pillow, for a small
    image and for a region of it, at full size and at half; else it is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from ctypes import c_int, c_size_t, c_void_p
from importlib.metadata import PackageNotFoundError, files
from io import BytesIO
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

try:
    from simplejpeg import decode_jpeg
except ImportError:  # an extra
    decode_jpeg = None

__all__ = ["Pixels", "TurboDecoder", "decode_whole", "turbo_decoder"]

Pixels: TypeAlias = npt.NDArray[np.uint8]
"""RGB ``(h, w, 3)``."""

# Of turbojpeg.h
_DECOMPRESS, _RGB, _WIDTH, _HEIGHT = 1, 0, 5, 6


class _Scale(ctypes.Structure):
    _fields_ = (("num", c_int), ("denom", c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", c_int), ("y", c_int), ("w", c_int), ("h", c_int))


class TurboDecoder:
    """libjpeg-turbo 3 or newer. Runs in: any thread.

    Args:
        path: Its file or its name.

    Raises:
        OSError: There is no such library.
        AttributeError: It is older than version 3.
    """

    def __init__(self, path: str) -> None:
        # Long calls let go of the interpreter lock and short ones keep it: taking it again may have to wait.
        self._decompress, self._lib = ctypes.CDLL(path).tj3Decompress8, ctypes.PyDLL(path)
        self._lib.tj3Init.restype = c_void_p

    def decode(
        self,
        data: bytes,
        size: tuple[int, int],
        crop: tuple[int, int, int, int],
        *,
        shrink: int = 1,
    ) -> Pixels | None:
        """Return a region, whose outermost columns may differ where colours are stored at half the size.

        Args:
            data: The file.
            size: Height and width in its header, in pixels: the decoder must read the same.
            crop: Left, top, right and bottom, in pixels of the shrunk image; left a multiple of a coded block's.
            shrink: 1, 2, 4 or 8: the image's sides are divided by it, rounded up.

        Returns:
            uint8 ``(h, w, 3)``, or None if the decoder refuses the file or the region, or warns of damage: pixels may
            be left unwritten then.
        """
        lib, num_bytes = self._lib, c_size_t(len(data))
        left, top, right, bottom = crop
        # A handle for each file (0.5 us): it keeps a file's tables, and would decode one that lacks them by those.
        handle = c_void_p(lib.tj3Init(_DECOMPRESS))
        try:
            if (
                lib.tj3DecompressHeader(handle, data, num_bytes)
                or (lib.tj3Get(handle, _HEIGHT), lib.tj3Get(handle, _WIDTH)) != size
                or lib.tj3SetScalingFactor(handle, _Scale(1, shrink))
                or lib.tj3SetCroppingRegion(handle, _Region(left, top, right - left, bottom - top))
            ):
                return None
            pixels = np.empty((bottom - top, right - left, 3), dtype=np.uint8)
            address = c_void_p(pixels.__array_interface__["data"][0])
            failed = self._decompress(handle, data, num_bytes, address, 0, _RGB)
            return None if failed else pixels
        finally:
            lib.tj3Destroy(handle)


def decode_whole(data: bytes, size: tuple[int, int], *, shrink: int) -> Pixels | None:
    """Return all pixels by simplejpeg or else Pillow, or None if neither takes the file; see `TurboDecoder.decode`."""
    height, width = -(-size[0] // shrink), -(-size[1] // shrink)
    pixels: Pixels | None = None
    with contextlib.suppress(Exception):  # it refuses damage that Pillow accepts, and says nothing that helps
        if decode_jpeg is not None:
            pixels = decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width, min_factor=1)
    with contextlib.suppress(Exception):  # `decode_bytes` tries again, and says what is wrong
        if pixels is None:
            with Image.open(BytesIO(data), formats=("JPEG",)) as image:
                image.draft(None, (size[1] // shrink, size[0] // shrink))
                pixels = np.array(image.convert("RGB"))
    return None if pixels is None or pixels.shape != (height, width, 3) else pixels


@functools.cache
def turbo_decoder() -> TurboDecoder | None:
    """Return the first library that is right, or None if there is none; see NOTE [Which library]."""
    paths = ["libturbojpeg.so.0"]
    with contextlib.suppress(PackageNotFoundError):
        paths += [
            str(file.locate()) for file in files("pylibjxl") or () if file.name.startswith("_pylibjxl.")
        ]
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            decoder = TurboDecoder(path)
            if _is_right(decoder):
                return decoder
    return None


def _is_right(decoder: TurboDecoder) -> bool:
    """Return whether the decoder's bits are Pillow's, at both sizes, of all of an image and of a region."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "JPEG", subsampling="4:2:0")
    for shrink, block in ((1, 16), (2, 8)):
        with Image.open(file) as image:
            image.draft(None, (96 // shrink, 64 // shrink))
            expected = np.array(image)
        parts = ((0, 0, 6 * block, 4 * block), 0), ((block, 5, 5 * block, 4 * block - 3), block)
        for crop, rim in parts:
            found = decoder.decode(file.getvalue(), (64, 96), crop, shrink=shrink)
            inner = expected[crop[1] : crop[3], crop[0] + rim : crop[2] - rim]
            if found is None or not np.array_equal(found[:, rim : found.shape[1] - rim], inner):
                return False
    return True
