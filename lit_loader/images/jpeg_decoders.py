"""JPEG decoders: libjpeg-turbo 3 through ctypes, the only one that decodes a region; otherwise simplejpeg or Pillow."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from ctypes import c_int, c_size_t, c_void_p
from importlib.metadata import PackageNotFoundError, files
from io import BytesIO
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

try:
    from simplejpeg import decode_jpeg
except ImportError:
    decode_jpeg = None

__all__ = ["Pixels", "TurboDecoder", "decode_whole", "turbo_decoder"]

Pixels: TypeAlias = npt.NDArray[np.uint8]
"""RGB ``(h, w, 3)``."""

# Constants from turbojpeg.h.
_TJINIT_DECOMPRESS: Final = 1
_TJPF_RGB: Final = 0
_TJPARAM_JPEGWIDTH: Final = 5
_TJPARAM_JPEGHEIGHT: Final = 6


class _Scale(ctypes.Structure):
    _fields_ = (("num", c_int), ("denom", c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", c_int), ("y", c_int), ("w", c_int), ("h", c_int))


class TurboDecoder:
    """JPEG decoder from a libjpeg-turbo library, version 3 or newer. Runs in: any thread.

    Args:
        path: File or name of the library.

    Raises:
        OSError: The library does not exist.
        AttributeError: The library is older than version 3.
    """

    def __init__(self, path: str) -> None:
        # CDLL releases the GIL during a call and PyDLL does not. Only decompression takes long enough to release it:
        # taking it again may have to wait for other threads.
        self._decompress = ctypes.CDLL(path).tj3Decompress8
        self._lib = ctypes.PyDLL(path)
        self._lib.tj3Init.restype = c_void_p

    def decode(
        self, data: bytes, size: tuple[int, int], crop: tuple[int, int, int, int], *, shrink: int = 1
    ) -> Pixels | None:
        """Decode a region; its outermost columns may differ if colours are subsampled.

        Args:
            data: The file.
            size: Height and width from the header, in pixels; the decoder must read the same.
            crop: Left, top, right and bottom in pixels of the shrunk image; left must be the start of a coded block.
            shrink: 1, 2, 4 or 8: the image's sides are divided by it, rounded up.

        Returns:
            uint8 ``(h, w, 3)``, or None if the decoder refuses the file or the region, or warns about damage, in which
            case some pixels may not have been written.
        """
        lib = self._lib
        num_bytes = c_size_t(len(data))
        left, top, right, bottom = crop
        # Each file needs a new handle (0.5 us): a handle stores the tables of a file, and would use them to decode
        # a later file without tables.
        handle = c_void_p(lib.tj3Init(_TJINIT_DECOMPRESS))
        try:
            if (
                lib.tj3DecompressHeader(handle, data, num_bytes)
                or (lib.tj3Get(handle, _TJPARAM_JPEGHEIGHT), lib.tj3Get(handle, _TJPARAM_JPEGWIDTH)) != size
                or lib.tj3SetScalingFactor(handle, _Scale(1, shrink))
                or lib.tj3SetCroppingRegion(handle, _Region(left, top, right - left, bottom - top))
            ):
                return None
            pixels = np.empty((bottom - top, right - left, 3), dtype=np.uint8)
            address = c_void_p(pixels.__array_interface__["data"][0])
            failed = self._decompress(handle, data, num_bytes, address, 0, _TJPF_RGB)
            return None if failed else pixels
        finally:
            lib.tj3Destroy(handle)


def decode_whole(data: bytes, size: tuple[int, int], *, shrink: int) -> Pixels | None:
    """Decode all pixels with simplejpeg or Pillow; None if both refuse the file. See `TurboDecoder.decode`."""
    height = -(-size[0] // shrink)
    width = -(-size[1] // shrink)
    pixels: Pixels | None = None
    if decode_jpeg is not None:
        # simplejpeg refuses some damage that Pillow accepts.
        with contextlib.suppress(Exception):
            pixels = decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width, min_factor=1)
    if pixels is None:
        # `decode_bytes` decodes the file again and raises the error.
        with contextlib.suppress(Exception), Image.open(BytesIO(data), formats=("JPEG",)) as image:
            image.draft(None, (size[1] // shrink, size[0] // shrink))
            pixels = np.array(image.convert("RGB"))
    return None if pixels is None or pixels.shape != (height, width, 3) else pixels


@functools.cache
def turbo_decoder() -> TurboDecoder | None:
    """Return a decoder from the first libjpeg-turbo library with Pillow's bits, or None if there is none."""
    paths = ["libturbojpeg.so.0"]
    # The wheel of pylibjxl contains a libjpeg-turbo 3 whose functions can be called from outside. It is the only one on
    # systems such as Debian 12, whose own library is version 2 and lacks some of the functions.
    with contextlib.suppress(PackageNotFoundError):
        paths += [str(file.locate()) for file in files("pylibjxl") or () if file.name.startswith("_pylibjxl.")]
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            decoder = TurboDecoder(path)
            if _matches_pillow(decoder):
                return decoder
    return None


def _matches_pillow(decoder: TurboDecoder) -> bool:
    """Return True if the decoder has Pillow's bits for an image and a region of it, at full and at half size."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "JPEG", subsampling="4:2:0")
    for shrink, block in ((1, 16), (2, 8)):
        with Image.open(file) as image:
            image.draft(None, (96 // shrink, 64 // shrink))
            expected = np.array(image)
        full_image = (0, 0, 6 * block, 4 * block)
        region = (block, 5, 5 * block, 4 * block - 3)
        # The outermost columns of a region may differ, so a margin of one block is not compared.
        for crop, margin in ((full_image, 0), (region, block)):
            pixels = decoder.decode(file.getvalue(), (64, 96), crop, shrink=shrink)
            inner = expected[crop[1] : crop[3], crop[0] + margin : crop[2] - margin]
            if pixels is None or not np.array_equal(pixels[:, margin : pixels.shape[1] - margin], inner):
                return False
    return True
