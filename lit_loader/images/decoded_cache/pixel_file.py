"""The file format of the decoded cache: a digest, an index and pixels; checked when opened, then memory-mapped."""

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

# NOTE [A cache file is not trusted]
# The digest covers the key and the index, and the sizes in the index must add up to the size of the file, so no read
# goes beyond the end of the mapping, which would be a bus error. Pixels have no digest: any byte is a valid pixel, and
# a digest would read all of them, which the mapping avoids. A file is written under a temporary name, renamed when it
# is complete, and never changed afterwards. Truncating a file in use kills the processes that read it, as for any
# mapped file.

# Linux refuses a private, writable mapping larger than the host's memory without this flag. Python 3.13 names it.
_MAP_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0

FORMAT: Final = 2
"""Version of the file format; increase it whenever the same images and settings would result in another file."""

INDEX: Final = np.dtype(
    [("end", "<i8"), ("width", "<i4"), ("height", "<i4"), ("true_width", "<i4"), ("true_height", "<i4")]
)
"""One row per image: the offset where its pixels ``(height, width, 3)`` end and the next image's start, the size of
these pixels, and the size of the image as decoded. All sizes are 0 for an image that could not be decoded."""

Index: TypeAlias = npt.NDArray[Any]
"""Array of `INDEX` rows, shape ``(num_images,)``."""

_DIGEST_BYTES: Final = 64


class PixelFile:
    """The memory-mapped decoded images of a dataset.

    Runs in: the main process, workers and threads. A forked worker inherits the mapping; a pickled object is opened
    again by its path.
    Owns: the mapping and its descriptor, which live as long as any tensor of the mapping.

    Args:
        path: The file.
        key: The expected key.
        num_images: The expected number of images.

    Raises:
        CacheError: The file is missing, damaged, or belongs to other images or settings.
    """

    def __init__(self, path: Path, key: str, num_images: int) -> None:
        self._arguments = path, key, num_images
        start = pixels_start(num_images)
        try:
            # Opening a named pipe would block until someone writes to it.
            if not path.is_file() or path.stat().st_size < start:
                raise ValueError("it contains no decoded images, or was deleted")
            # torch has no read-only tensors. With a private mapping, writes stay in the process that makes them.
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            with path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)
            data = np.frombuffer(mapping, dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise CacheError(f"{path} cannot be read ({error}); create the dataset again") from None
        self.num_bytes = len(data)
        self._pixels = torch.from_numpy(data)
        self._index: Index = data[_DIGEST_BYTES:start].view(INDEX)
        if data[:start].tobytes() != head(self._index, key) or not _is_consistent(self._index, len(data)):
            raise CacheError(f"{path} is damaged, or was made from other files or by another version; delete it")

    def image(self, slot: int) -> tuple[Tensor, tuple[int, int]] | None:
        """Return the pixels and the decoded size of an image, or None if it could not be decoded.

        Args:
            slot: Position of the image in the file.

        Returns:
            Pixels, uint8 ``(3, height, width)``, a channels-last view of the mapping; (width, height) as decoded.
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
    """Open the cache file, or build it while other processes wait.

    Args:
        path: ``SUBJECT-KEY.pixels``; a new file replaces older files of its subject.
        key: See `PixelFile`.
        num_images: See `PixelFile`.
        fill: Writes the contents of a new file.
        on_wait: Called once before waiting for another process.

    Raises:
        CacheError: ``fill`` raised it, or the folder cannot be written to.
    """
    with suppress(CacheError):
        return PixelFile(path, key, num_images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A build that was killed leaves its temporary file behind, but the operating system releases its lock. A
        # temporary file whose lock is free is therefore garbage.
        for leftover in path.parent.glob(".*.tmp"):
            # OSError: the file belongs to another user.
            with suppress(OSError), file_lock(_lock_path(leftover), wait=False) as is_free:
                if is_free:
                    leftover.unlink()
        with file_lock(_lock_path(path), on_wait=on_wait):
            # Another process may have built the file while this one waited for the lock.
            with suppress(CacheError):
                return PixelFile(path, key, num_images)
            with new_file(path) as file:
                fill(file)
                file.flush()
                # Without fsync, the rename may survive a power cut that the pixels do not.
                os.fsync(file.fileno())
            for older_path in path.parent.glob(f"{_subject(path)}-*.pixels"):
                # Processes that map the older file can still read it.
                if older_path != path:
                    older_path.unlink(missing_ok=True)
            return PixelFile(path, key, num_images)
    except CacheError:
        raise
    except OSError as error:
        problem = f"decoded images cannot be written to {path.parent} ({error.strerror or error})"
        raise CacheError(
            f"{problem}, and the incomplete file was deleted",
            remedy="free disk space, lower cache_size, choose another cache_dir",
            settings={"cache": False},
        ) from error


def pixels_start(num_images: int) -> int:
    """Return the offset of the first pixel in a file."""
    return _DIGEST_BYTES + num_images * INDEX.itemsize


def head(index: Index, key: str) -> bytes:
    """Return the bytes before the pixels: digest and index."""
    data = index.tobytes()
    digest = hashlib.blake2b(f"{FORMAT} {key} ".encode() + data, digest_size=_DIGEST_BYTES)
    return digest.digest() + data


def _is_consistent(index: Index, num_bytes: int) -> bool:
    """Return True if the sizes and offsets in an index add up to the size of the file."""
    # float64 does not overflow for hostile sizes, and is exact for the sizes of any real file.
    end, width, height, true_width, true_height = (index[name].astype(np.float64) for name in INDEX.names or ())
    expected_ends = np.cumsum(np.append(pixels_start(len(index)), 3 * width * height))
    valid_sizes = (width >= 0) & ((width > 0) == (height > 0)) & (true_width >= width) & (true_height >= height)
    return bool(valid_sizes.all() and np.array_equal(end, expected_ends[1:]) and expected_ends[-1] == num_bytes)


def _subject(path: Path) -> str:
    """Return the subject of a file, complete or temporary."""
    return path.name.lstrip(".").partition("-")[0]


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{_subject(path)}.lock")
