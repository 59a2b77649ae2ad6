"""The block that holds decoded images: a header, an index, pixels; checked when it is opened, then mapped."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import CacheError

__all__ = ["FORMAT", "INDEX", "PixelBlock", "pixels_start", "process_start", "write_all", "write_head"]

# NOTE [nothing in a block is trusted]
# Its size must be the one that its header says, so that no read of the mapping lies beyond its end (which would
# be a bus error); the index has a digest, and every image must lie inside of the block. Pixels have no digest:
# any byte is a valid pixel, and reading all of them is what mapping avoids. Nothing is unpickled. A block on
# disk is written under another name and renamed when complete; one in memory is sealed. Neither is ever changed
# afterwards. Who cuts a file short while it is in use has their own process killed, as with any mapped file.

FORMAT: Final = 1
"""Raised whenever the same files and settings would give another block."""

INDEX: Final = np.dtype(
    [("start", "<i8"), ("width", "<i4"), ("height", "<i4"), ("true_width", "<i4"), ("true_height", "<i4")]
)
"""One row an image: where its pixels ``(height, width, 3)`` start, and the size of the image as decoded. A width
of 0: it could not be decoded."""

_PAGE: Final = 4096
_MAGIC: Final = b"lit_loader.image"
# Magic, format, key, digest of the index, images, bytes in all.
_HEADER: Final = struct.Struct("<16sQ32s16sQQ")


class PixelBlock:
    """The decoded images of a data set, mapped read-only.

    Runs in: the main process, workers and threads alike. A forked worker inherits the mapping; pickled, a block is
    the process and descriptor (and the path, if it has one) by which it is opened again.
    Owns: the descriptor and the mapping, until nobody holds the block any more.

    Args:
        descriptor: An open file; the block closes it, also when it is refused.
        key: The key that it must have.
        num_images: The images that it must have.
        path: Where it lies, or None if in memory.

    Raises:
        CacheError: It is not such a block.
    """

    def __init__(self, descriptor: int, *, key: str, num_images: int, path: Path | None = None) -> None:
        self.key, self.num_images, self.path, self._descriptor = key, num_images, path, descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        try:
            self._open(descriptor)
        except CacheError:
            raise
        except (OSError, ValueError, OverflowError) as error:
            raise CacheError(f"{self._name} cannot be mapped ({error}); delete it") from None

    def _open(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size < _PAGE:
            raise CacheError(f"{self._name} is not a block of images ({found.st_size} bytes); delete it")
        magic, version, key, digest, count, total = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
        if (magic, version, key) != (_MAGIC, FORMAT, self.key.encode()) or count != self.num_images:
            raise CacheError(f"{self._name} was made by another version or of other files; delete it")
        start = pixels_start(count)
        if total != found.st_size or total < start:
            raise CacheError(f"{self._name} has {found.st_size} bytes and should have {total}; delete it")
        self._mapping = mmap.mmap(descriptor, total, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._pixels: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, dtype=np.uint8)
        self._index: npt.NDArray[Any] = self._pixels[_PAGE : _PAGE + count * INDEX.itemsize].view(INDEX)
        if _digest(self._index) != digest:
            raise CacheError(f"{self._name} is damaged (the digest of its index does not match); delete it")
        _check_index(self._index, start=start, total=total, name=self._name)
        self.num_bytes: int = total

    @property
    def _name(self) -> str:
        return "a cache in memory" if self.path is None else str(self.path)

    @property
    def address(self) -> tuple[int, int, int]:
        """Process, when it started, descriptor: what `from_process` takes, as long as this block lives here."""
        return os.getpid(), process_start(os.getpid()) or 0, self._descriptor

    def image(self, slot: int) -> tuple[npt.NDArray[np.uint8], tuple[int, int]] | None:
        """Return an image's pixels and its true size, or None if it could not be decoded.

        Args:
            slot: Its place among the images.

        Returns:
            uint8 ``(height, width, 3)``, a read-only view of the mapping; (width, height) as decoded.
        """
        start, width, height, true_width, true_height = self._index[slot].item()
        if width == 0:
            return None
        pixels = self._pixels[start : start + 3 * height * width].reshape(height, width, 3)
        return pixels, (true_width, true_height)

    @classmethod
    def from_path(cls, path: Path, *, key: str, num_images: int) -> PixelBlock:
        """Open a block on disk.

        Raises:
            CacheError: There is none, or it is not the right one.
        """
        return cls(_opened(path, os.O_NOFOLLOW), key=key, num_images=num_images, path=path)

    @classmethod
    def from_process(
        cls, address: tuple[int, int, int], *, key: str, num_images: int, path: Path | None = None
    ) -> PixelBlock:
        """Open the block that a process of this host and user holds.

        Raises:
            CacheError: The process is gone, or the descriptor is another file's by now.
        """
        pid, start, descriptor = address
        if start == 0 or process_start(pid) != start:
            raise CacheError(f"process {pid}, which held a cache of decoded images, has ended; make it again")
        opened = _opened(Path(f"/proc/{pid}/fd/{descriptor}"))
        return cls(opened, key=key, num_images=num_images, path=path)

    def __reduce__(self) -> tuple[Callable[..., PixelBlock], tuple[Any, ...]]:
        return _reopen, (self.address, self.key, self.num_images, self.path)


def _opened(place: Path, flags: int = 0) -> int:
    try:
        return os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        raise CacheError(f"{place} cannot be opened ({error.strerror}); make the cache again") from None


def _reopen(address: tuple[int, int, int], key: str, num_images: int, path: Path | None) -> PixelBlock:
    """Open by the process that pickled: its file may have been deleted; then by name."""
    try:
        return PixelBlock.from_process(address, key=key, num_images=num_images, path=path)
    except CacheError:
        if path is None:
            raise
        return PixelBlock.from_path(path, key=key, num_images=num_images)


def pixels_start(num_images: int) -> int:
    """Return where pixels begin: behind the header's page and the index, on a page of their own."""
    return _PAGE + -(-num_images * INDEX.itemsize // _PAGE) * _PAGE


def write_head(descriptor: int, index: npt.NDArray[Any], *, key: str, end: int) -> None:
    """Write index and header of a block whose pixels are there.

    Args:
        descriptor: The file.
        index: `INDEX` ``(num_images,)``.
        key: 32 characters.
        end: Where the last pixel ends, the size of the block.

    Raises:
        OSError: It cannot be written.
    """
    os.truncate(descriptor, end)
    write_all(descriptor, index.view(np.uint8).data, _PAGE)
    head = _HEADER.pack(_MAGIC, FORMAT, key.encode(), _digest(index), len(index), end)
    write_all(descriptor, memoryview(head), 0)


def write_all(descriptor: int, data: memoryview, start: int) -> None:
    """Write all of ``data`` at an offset."""
    while data:
        written = os.pwrite(descriptor, data, start)
        data, start = data[written:], start + written


def process_start(pid: int) -> int | None:
    """Return when a process began, in ticks since the host did, or None if there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[19])


def _digest(index: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(index.view(np.uint8).data, digest_size=16).digest()


def _check_index(index: npt.NDArray[Any], *, start: int, total: int, name: str) -> None:
    # Of 32-bit numbers: the area does not overflow, and what follows does not once it is bounded by the size.
    width, height = index["width"].astype(np.int64), index["height"].astype(np.int64)
    area = width * height
    sized = (width >= 1) & (height >= 1) & (index["true_width"] >= width) & (index["true_height"] >= height)
    last = total - 3 * np.minimum(area, total)
    inside = (area <= total) & (index["start"] >= start) & (index["start"] <= last)
    if not ((sized & inside) | (width == 0)).all():
        raise CacheError(f"{name} has images beyond its end; delete it")
