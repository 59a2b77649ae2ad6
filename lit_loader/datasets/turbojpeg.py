"""libjpeg-turbo 3 or newer, called by ctypes: it decodes a region of a JPEG, which no Python package offers.

NOTE [Which library]
    The system's libturbojpeg, else the copy inside of the wheel of pylibjxl, whose functions can be called from
    outside. Version 2, as in Debian 12, lacks some of them. What is found must give the bits of Pillow, for a small
    image and for a region of it, at full size and at half; else it is not used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import threading
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

__all__ = ["turbo_decode"]

# Of turbojpeg.h
_DECOMPRESS, _RGB, _WARNING, _WIDTH, _HEIGHT = 1, 0, 0, 5, 6


class _Scale(ctypes.Structure):
    _fields_ = (("num", c_int), ("denom", c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", c_int), ("y", c_int), ("w", c_int), ("h", c_int))


class _Decoder:
    """A decoder of one thread. Owns: its handle, until it is deleted.

    Args:
        path: The library's file, or its name.

    Raises:
        OSError: There is no such library.
        AttributeError: It is older than version 3.
    """

    def __init__(self, path: str) -> None:
        # Long calls let go of the interpreter lock and short ones keep it: taking it again may have to wait.
        self._lib, self._decompress = ctypes.PyDLL(path), ctypes.CDLL(path).tj3Decompress8
        self._decompress.argtypes = (c_void_p, c_char_p, c_size_t, c_void_p, c_int, c_int)
        self._lib.tj3DecompressHeader.argtypes = (c_void_p, c_char_p, c_size_t)
        self._lib.tj3SetCroppingRegion.argtypes = (c_void_p, _Region)
        self._lib.tj3SetScalingFactor.argtypes = (c_void_p, _Scale)
        self._lib.tj3Get.argtypes = (c_void_p, c_int)
        self._lib.tj3GetErrorCode.argtypes = self._lib.tj3Destroy.argtypes = (c_void_p,)
        self._lib.tj3Init.restype = c_void_p
        self._handle = self._lib.tj3Init(_DECOMPRESS)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._lib.tj3Destroy(self._handle)

    def decode(
        self,
        data: bytes,
        size: tuple[int, int],
        shrink: int,
        crop: tuple[int, int, int, int],
        *,
        strict: bool,
    ) -> Tensor | None:
        """See `turbo_decode`."""
        lib, handle = self._lib, self._handle
        left, top, right, bottom = crop
        # The size is asked for again, since the decoder writes as much as it believes.
        if (
            lib.tj3DecompressHeader(handle, data, len(data))
            or (lib.tj3Get(handle, _HEIGHT), lib.tj3Get(handle, _WIDTH)) != size
            or lib.tj3SetScalingFactor(handle, _Scale(1, shrink))
            or lib.tj3SetCroppingRegion(handle, _Region(left, top, right - left, bottom - top))
        ):
            return None
        pixels = torch.empty((bottom - top, right - left, 3), dtype=torch.uint8)
        failed = self._decompress(handle, data, len(data), pixels.data_ptr(), 0, _RGB)
        return None if failed and (strict or lib.tj3GetErrorCode(handle) != _WARNING) else pixels


_decoders = threading.local()


def turbo_decode(
    data: bytes, size: tuple[int, int], shrink: int, crop: tuple[int, int, int, int], *, strict: bool
) -> Tensor | None:
    """Return a region of a JPEG; its outermost pixels may differ where colours are stored at half the size.

    Args:
        data: The file.
        size: Height and width in its header, in pixels.
        shrink: 1, 2, 4 or 8: the sides are divided by it, rounded up.
        crop: Left, top, right and bottom of the region, in pixels of the shrunk image; left a multiple of a coded
            block's.
        strict: Refuse what the decoder warns of, as damaged data.

    Returns:
        uint8 ``(h, w, 3)``, or None if there is no such library or it refuses the file.
    """
    if not hasattr(_decoders, "decoder"):
        path = _library()
        _decoders.decoder = None if path is None else _Decoder(path)
    decoder: _Decoder | None = _decoders.decoder
    return None if decoder is None else decoder.decode(data, size, shrink, crop, strict=strict)


@functools.cache
def _library() -> str | None:
    """Return the first library that is right, see NOTE [Which library]."""
    wheel = importlib.util.find_spec("pylibjxl")  # not imported
    folders = (wheel.submodule_search_locations if wheel else None) or ()
    for path in ("libturbojpeg.so.0", *(str(p) for at in folders for p in Path(at).glob("_pylibjxl.*.so"))):
        with contextlib.suppress(OSError, AttributeError):
            if _is_right(_Decoder(path)):
                return path
    return None


def _is_right(decoder: _Decoder) -> bool:
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "JPEG", subsampling="4:2:0")
    for shrink in (1, 2):
        with Image.open(file) as image:
            image.draft(None, (96 // shrink, 64 // shrink))
            expected = torch.from_numpy(np.array(image))
        block = 16 // shrink
        for rim in (0, block):
            crop = rim, rim, 6 * block - rim, 4 * block
            found = decoder.decode(file.getvalue(), (64, 96), shrink, crop, strict=True)
            inner = slice(2 * rim, 5 * block - rim)
            if found is None or not torch.equal(
                found[rim:, rim : 5 * block - 2 * rim], expected[2 * rim :, inner]
            ):
                return False
    return True
