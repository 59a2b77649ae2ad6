"""The file of a decoded cache: a digest, an index, pixels; checked when it is opened, then mapped."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_loader.errors import CacheError
from lit_loader.foundation.files import file_lock, new_file

__all__ = ["FORMAT", "INDEX", "Index", "PixelFile", "head", "open_or_build", "pixels_start"]

# NOTE [nothing in a file is trusted]
# The digest covers key and index, and the sizes in the index must give the size of the file: no read of the mapping
# lies beyond its end, which would be a bus error. Pixels have no digest: any byte is a valid pixel, and reading all of
# them is what mapping avoids. A file is written under another name, renamed when it is complete, and never changed
# afterwards. Who cuts one short while it is in use has their own process killed, as with any mapped file.

# NOTE [the mapping is private]
# torch has no read-only tensors. What a process writes to a private mapping stays in that process. Linux refuses one
# that is larger than the memory of the host, unless MAP_NORESERVE is set, which Python names from 3.13 on.
_MAP_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0

FORMAT: Final = 2
"""Raised whenever the same files and settings would give another file."""

INDEX: Final = np.dtype(
    [("end", "<i8"), ("width", "<i4"), ("height", "<i4"), ("true_width", "<i4"), ("true_height", "<i4")]
)
"""One row an image: where its pixels ``(height, width, 3)`` end and the next one's begin, their size, and that of the
image as decoded. All sizes are 0 where it could not be decoded."""

Index: TypeAlias = npt.NDArray[Any]
"""`INDEX` ``(num_images,)``."""

_DIGEST_BYTES: Final = 64


class PixelFile:
    """The decoded images of a data set, mapped.

    Runs in: the main process, workers and threads alike. A forked worker inherits the mapping; pickled, it is the path
    by which it is opened again.
    Owns: the mapping and its descriptor, until nobody holds a tensor of it any more.

    Args:
        path: The file.
        key: The key that it must have.
        num_images: The images that it must have.

    Raises:
        CacheError: There is no such file, or it is not the right one, or damaged.
    """

    def __init__(self, path: Path, key: str, num_images: int) -> None:
        self._arguments = path, key, num_images
        start = pixels_start(num_images)
        try:
            if not path.is_file() or path.stat().st_size < start:  # a pipe would wait for its writer
                raise ValueError("no decoded images are there, or no longer")
            flags, rights = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            with path.open("rb") as file:
                data = np.frombuffer(mmap.mmap(file.fileno(), 0, flags=flags, prot=rights), dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise CacheError(f"{path} cannot be read ({error}); make the data set again") from None
        self.num_bytes = len(data)
        self._pixels = torch.from_numpy(data)
        self._index: Index = data[_DIGEST_BYTES:start].view(INDEX)
        if data[:start].tobytes() != head(self._index, key) or not _fits(self._index, self.num_bytes):
            raise CacheError(f"{path} is damaged, or made of other files or by another version; delete it")

    def image(self, slot: int) -> tuple[Tensor, tuple[int, int]] | None:
        """Return an image's pixels and its true size, or None if it could not be decoded.

        Args:
            slot: Its place among the images.

        Returns:
            uint8 ``(3, height, width)``, a view of the mapping, channels last; (width, height) as decoded.
        """
        end, width, height, *true_size = self._index[slot].item()
        if width == 0:
            return None
        start = end - 3 * width * height
        return self._pixels.as_strided((3, height, width), (1, 3 * width, 3), start), tuple(true_size)

    def __reduce__(self) -> tuple[Callable[..., PixelFile], tuple[Path, str, int]]:
        return PixelFile, self._arguments


def open_or_build(
    path: Path, key: str, num_images: int, *, fill: Callable[[BinaryIO], None], on_wait: Callable[[], object]
) -> PixelFile:
    """Return the file that is there, or build it as the only process that does.

    NOTE [a killed build]
        What is being built has a temporary name that nobody opens; the system drops the lock when its holder dies. So
        every build begins by deleting the temporary files of each subject whose lock is free.

    Args:
        path: ``SUBJECT-KEY.pixels``. Files of one subject replace each other.
        key: As for `PixelFile`.
        num_images: As for `PixelFile`.
        fill: Writes the file.
        on_wait: Called once before waiting for another process.

    Raises:
        CacheError: ``fill`` raises one, or the folder cannot be written.
    """
    with suppress(CacheError):
        return PixelFile(path, key, num_images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in path.parent.glob(".*.tmp"):
            # an OSError: another user's
            with suppress(OSError), file_lock(_lock_path(leftover), wait=False) as is_free:
                if is_free:
                    leftover.unlink()
        with file_lock(_lock_path(path), on_wait=on_wait):
            with suppress(CacheError):  # another process built it while this one waited
                return PixelFile(path, key, num_images)
            with new_file(path) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())  # the name must not outlive a power cut that the pixels do not
            for older in path.parent.glob(f"{path.name.partition('-')[0]}-*.pixels"):
                if older != path:
                    older.unlink(missing_ok=True)  # whoever maps it keeps it
            return PixelFile(path, key, num_images)
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(
            f"decoded images cannot be written to {path.parent} ({error.strerror or error}); nothing was left there: "
            "make room, lower cache_size, name another cache_dir, or give cache=False"
        ) from error


def pixels_start(num_images: int) -> int:
    """Return where pixels begin."""
    return _DIGEST_BYTES + num_images * INDEX.itemsize


def head(index: Index, key: str) -> bytes:
    """Return what lies before the pixels: digest and index."""
    data = index.tobytes()
    digest = hashlib.blake2b(f"{FORMAT} {key} ".encode() + data, digest_size=_DIGEST_BYTES)
    return digest.digest() + data


def _fits(index: Index, num_bytes: int) -> bool:
    # Floats do not overflow, and are exact for the bytes of any file.
    found, width, height, true_width, true_height = (
        index[name].astype(np.float64) for name in INDEX.names or ()
    )
    ends = np.cumsum(np.append(pixels_start(len(index)), 3 * width * height))
    sized = (width >= 0) & ((width > 0) == (height > 0)) & (true_width >= width) & (true_height >= height)
    return bool(sized.all() and (ends[1:] == found).all() and ends[-1] == num_bytes)


def _lock_path(path: Path) -> Path:
    """Return the lock of the subject of a file, complete or not."""
    return path.with_name(f".{path.name.lstrip('.').partition('-')[0]}.lock")
