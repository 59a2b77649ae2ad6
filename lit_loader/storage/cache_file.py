"""Cache of stored images on this host: a sparse file of their bytes, and a mapped file of their states.

NOTE [Reboots]
    After a crash of the host, blocks of the data file may be missing although their state was saved. So the header of
    the states has the id of the boot, and a flag that is set after everything was written to the disk. Without that
    flag, states of another boot are forgotten. A killed process needs no such care, because the system has its pages.
"""

from __future__ import annotations

import mmap
import os
import shutil
import weakref
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import CacheError
from lit_loader.foundation.escaping import printable
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.holes import punch_hole
from lit_loader.storage.protocol import ALIGNMENT, HEADER_BYTES, State, boot_id, data_offsets
from lit_loader.types import IndexArray

__all__ = ["CacheFile", "CacheWriter", "MIN_IMAGES"]

MIN_IMAGES: Final = 4
"""Number of images of the largest size that a budget must hold, so that requests never wait for each other."""

_MAGIC: Final = int.from_bytes(b"LLCACHE1", "little")
_STATE_BITS: Final = 0x03
_MAX_ERROR_BYTES: Final = 4096


class _Field(IntEnum):
    """Fields of the header of the states, int64."""

    FORMAT = 0
    NUM_IMAGES = 1
    DATA_BYTES = 2
    BOOT_ID = 3  # two fields
    CLEAN = 5
    USED_BYTES = 6
    PEAK_BYTES = 7
    NUM_TICKS = 8


class _Files:
    """Open files of a cache, as readers use them.

    Owns: the descriptor of the data and the mapping of the states.
    """

    def __init__(self, folder: Path, catalog: Catalog) -> None:
        self.offsets = _checked_offsets(folder, catalog)
        self.lengths = catalog.lengths
        states = os.open(folder / "states", os.O_RDONLY)
        try:
            status = os.fstat(states)
            # A mapping beyond the end of a file would end the process with SIGBUS.
            if status.st_size != HEADER_BYTES + len(catalog):
                raise CacheError(f"{folder / 'states'} is damaged ({status.st_size} bytes); delete {folder}")
            self.inode = status.st_ino
            self.states = mmap.mmap(states, status.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(states)
        self.data = os.open(folder / "data", os.O_RDONLY)
        weakref.finalize(self, os.close, self.data)


class CacheFile:
    """Read stored images from the cache of this host.

    The files are opened when they are first used, in each process. Any process and thread may read while the fetch
    process writes and evicts.

    Args:
        folder: Folder of the cache.
        catalog: Its catalog, or None to read it from the folder.
    """

    def __init__(self, folder: Path | str, catalog: Catalog | None = None) -> None:
        self.folder = Path(folder)
        self._catalog = catalog
        self._files: _Files | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)

    def try_read(self, slot: int) -> bytes | None:
        """Return the bytes of an image, or None if it is not in the cache.

        Args:
            slot: Row of the image in the catalog.

        Raises:
            CacheError: If the files are damaged.
        """
        files = self._files or self._open()
        if files is None:
            return None
        place = HEADER_BYTES + slot
        length = int(files.lengths[slot])
        state_byte = files.states[place]
        if state_byte & _STATE_BITS != State.READY:
            self._reopen(files)
            return None
        data = os.pread(files.data, length, int(files.offsets[slot]))
        # The fetch process raises the generation before it punches a hole, so a changed byte shows a torn read.
        if files.states[place] != state_byte:
            return None
        if len(data) != length:
            raise CacheError(f"{self.folder / 'data'} is damaged: it ends in image {slot}; delete {self.folder}")
        return data

    def state(self, slot: int) -> State:
        """Return the state of an image; ABSENT while no fetch process has made the files.

        Raises:
            CacheError: If the files are damaged.
        """
        return State(self.state_byte(slot) & _STATE_BITS)

    def state_byte(self, slot: int) -> int:
        """Return generation and state of an image; 0 while no fetch process has made the files."""
        files = self._files or self._open()
        return 0 if files is None else files.states[HEADER_BYTES + slot]

    def num_ticks(self) -> int:
        """Return a number that changes every half second while a fetch process lives and does not hang."""
        files = self._files or self._open()
        place = 8 * _Field.NUM_TICKS
        return -1 if files is None else int.from_bytes(files.states[place : place + 8], "little", signed=True)

    def error_text(self, slot: int) -> str:
        """Return the reason why an image could not be fetched."""
        try:
            with (self.folder / "errors" / str(slot)).open("rb") as file:
                return printable(file.read(_MAX_ERROR_BYTES).decode("utf-8", "replace"))
        except OSError:
            return "the reason could not be written to the disk"

    def _open(self) -> _Files | None:
        if self._catalog is None:
            self._catalog = Catalog.load(self.folder / "catalog.arrow")
        try:
            # Two threads may both open the files; the garbage collector closes the first ones.
            self._files = _Files(self.folder, self._catalog)
        except FileNotFoundError:
            return None
        return self._files

    def _reopen(self, files: _Files) -> None:
        """Forget open files if the folder was deleted and made anew."""
        try:
            if (self.folder / "states").stat().st_ino != files.inode:
                self._files = None
        except OSError:
            self._files = None


class CacheWriter:
    """Write and evict images in the cache of this host.

    Runs in: the fetch process that has the lock of the folder. `write` may be called by any thread for PENDING images;
    everything else by the main thread only.

    Args:
        folder: Folder of the cache, with ``catalog.arrow``. Files of an earlier run are used if they fit.
        catalog: Its catalog.
        budget: Largest number of bytes on the disk, or None for half of the disk space that is free or already used
            by this cache.

    Attributes:
        budget: Largest number of bytes on the disk.
        states: uint8 ``(num_images,)``, ``4 * generation + state`` of each image.
        sizes: int64 ``(num_images,)``, bytes of the disk that each image takes.

    Raises:
        CacheError: If the budget is too small, or the file system cannot free parts of a file.
    """

    def __init__(self, folder: Path, catalog: Catalog, budget: int | None) -> None:
        self.folder = folder
        self.catalog = catalog
        self.offsets = _checked_offsets(folder, catalog)
        self.sizes: IndexArray = np.diff(self.offsets)
        (folder / "errors").mkdir(mode=0o700, exist_ok=True)
        self._map = self._map_states()
        self.states: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, offset=HEADER_BYTES)
        self._header = np.frombuffer(self._map, np.int64, HEADER_BYTES // 8)
        self._data = os.open(folder / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._close_data = weakref.finalize(self, os.close, self._data)
        self._hole_problem = self._try_hole()
        self._forget_interrupted()
        self.budget = self._checked_budget(budget)
        self._header[_Field.PEAK_BYTES] = 0
        self._count(int(self.sizes[self.mask(State.READY)].sum()))
        self._shrink()

    @property
    def used_bytes(self) -> int:
        """Bytes of the disk that PENDING and READY images take."""
        return int(self._header[_Field.USED_BYTES])

    @property
    def peak_bytes(self) -> int:
        """Largest `used_bytes` since this process started."""
        return int(self._header[_Field.PEAK_BYTES])

    def mask(self, state: State, slots: npt.NDArray[np.integer[Any]] | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Return which images have a state, bool of the shape of ``slots``."""
        states: npt.NDArray[np.uint8] = self.states[slots]
        is_match: npt.NDArray[np.bool_] = states & _STATE_BITS == state
        return is_match

    def state(self, slot: int) -> State:
        """Return the state of an image."""
        return State(int(self.states[slot]) & _STATE_BITS)

    def reserve(self, slot: int) -> None:
        """Make an ABSENT image PENDING; its bytes count from now on."""
        self._count(self.used_bytes + int(self.sizes[slot]))
        self._set(slot, State.PENDING)

    def write(self, slot: int, data: memoryview | bytes) -> None:
        """Write the bytes of a PENDING image and make it READY.

        Raises:
            ValueError: If the catalog has another number of bytes.
            OSError: If they cannot be written, for example to a full disk; the image stays PENDING.
        """
        length = int(self.catalog.lengths[slot])
        if len(data) != length:
            raise ValueError(f"expected {length} bytes of image {slot}, got {len(data)}")
        view = memoryview(data)
        offset = int(self.offsets[slot])
        while len(view):
            num_written = os.pwrite(self._data, view, offset)
            view = view[num_written:]
            offset += num_written
        # Only now may a reader use the bytes.
        self._set(slot, State.READY)

    def fail(self, slot: int, reason: str) -> None:
        """Make a PENDING image FAILED, with a reason for its readers."""
        # A full disk has no room for the text either; `error_text` says so.
        with suppress(OSError):
            (self.folder / "errors" / str(slot)).write_bytes(reason.encode("utf-8", "replace")[:_MAX_ERROR_BYTES])
        self._free([slot], State.FAILED)

    def evict(self, slots: Iterable[int]) -> None:
        """Make PENDING or READY images ABSENT and free their bytes."""
        self._free(slots, State.ABSENT)

    def forget(self, slot: int) -> None:
        """Make a FAILED image ABSENT, so that the next request tries again."""
        if self.state(slot) == State.FAILED:
            self._set(slot, State.ABSENT)
            (self.folder / "errors" / str(slot)).unlink(missing_ok=True)

    def tick(self) -> None:
        """Show readers that the fetch process lives."""
        self._header[_Field.NUM_TICKS] += 1

    def close(self) -> None:
        """Write everything to the disk, so that it outlives a reboot."""
        os.fsync(self._data)
        self._map.flush()
        self._header[_Field.CLEAN] = 1
        self._map.flush()
        self._close_data()

    def _set(self, slot: int, state: State) -> None:
        self.states[slot] = (int(self.states[slot]) & ~_STATE_BITS) | state

    def _free(self, slots: Iterable[int], state: State) -> None:
        for slot in slots:
            # First the new generation, so that readers discard bytes of the hole.
            self.states[slot] = ((int(self.states[slot]) & ~_STATE_BITS) + 4) % 256 | state
            self._punch(int(self.offsets[slot]), int(self.sizes[slot]))
            self._count(self.used_bytes - int(self.sizes[slot]))

    def _count(self, used_bytes: int) -> None:
        self._header[_Field.USED_BYTES] = used_bytes
        self._header[_Field.PEAK_BYTES] = max(used_bytes, int(self._header[_Field.PEAK_BYTES]))

    def _punch(self, offset: int, num_bytes: int) -> None:
        # Without holes the budget has room for all images, see `_checked_budget`.
        if num_bytes and not self._hole_problem:
            punch_hole(self._data, offset, num_bytes)

    def _try_hole(self) -> str:
        """Return why the file system cannot free parts of a file, or an empty text if it can."""
        try:
            # Behind the last image, where nothing is lost.
            punch_hole(self._data, int(self.offsets[-1]), ALIGNMENT)
        except OSError as error:
            return error.strerror or "unknown error"
        return ""

    def _map_states(self) -> mmap.mmap:
        """Map the states, after making them if they are missing or damaged."""
        path = self.folder / "states"
        size = HEADER_BYTES + len(self.catalog)
        header = np.array([_MAGIC, len(self.catalog), self.offsets[-1]], dtype=np.int64)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_valid = os.fstat(descriptor).st_size == size and os.pread(descriptor, 24, 0) == header.tobytes()
            if not is_valid:
                # Not in place: another process may still map a file that somebody has cut.
                os.close(descriptor)
                path.unlink()
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                # A full disk is an error here, but SIGBUS when a page of the mapping is written.
                os.posix_fallocate(descriptor, 0, size)
                os.pwrite(descriptor, header.tobytes(), 0)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def _forget_interrupted(self) -> None:
        """Make images ABSENT whose bytes may be incomplete: of an interrupted run, or after a crash of the host."""
        size = int(self.offsets[-1])
        status = os.fstat(self._data)
        boot = np.frombuffer(bytes.fromhex(boot_id()).ljust(16, b"\0"), dtype=np.int64)
        is_same_boot = bool(boot.any()) and bool((self._header[_Field.BOOT_ID : _Field.BOOT_ID + 2] == boot).all())
        is_clean = bool(self._header[_Field.CLEAN])
        ready = self.mask(State.READY)
        if status.st_size != size or not (is_same_boot or is_clean):
            ready[:] = False
        generations = self.states & ~np.uint8(_STATE_BITS)
        self._header[_Field.CLEAN] = 0
        # After a loss of power, later states must not be on the disk with the old flag.
        self._map.flush(0, HEADER_BYTES)
        self.states[~ready] = generations[~ready] + 4  # modulo 256
        self._header[_Field.BOOT_ID : _Field.BOOT_ID + 2] = boot
        if not ready.any():
            # A data file of another size, or with blocks that no state describes.
            os.ftruncate(self._data, 0)
        try:
            os.ftruncate(self._data, size)
        except OSError as error:
            raise CacheError(
                f"{self.folder} cannot have a file of {size} bytes ({error.strerror})",
                remedy="choose cache_dir on xfs, or another file system with larger files; ext4 has up to 16 TiB",
            ) from None
        if ready.any() and not is_clean:
            self._punch_gaps(ready)
        shutil.rmtree(self.folder / "errors", ignore_errors=True)
        (self.folder / "errors").mkdir(mode=0o700, exist_ok=True)

    def _punch_gaps(self, ready: npt.NDArray[np.bool_]) -> None:
        """Free bytes between READY images; a killed process may have written some there."""
        edges = np.flatnonzero(np.diff(ready, prepend=True, append=True))
        for first, end in edges.reshape(-1, 2).tolist():
            self._punch(int(self.offsets[first]), int(self.offsets[end] - self.offsets[first]))

    def _checked_budget(self, budget: int | None) -> int:
        total = int(self.offsets[-1])
        if budget is None:
            used_bytes = int(self.sizes[self.mask(State.READY)].sum())
            budget = (shutil.disk_usage(self.folder).free + used_bytes) // 2
        if budget >= total:
            return budget
        least = MIN_IMAGES * int(self.sizes.max(initial=0))
        if budget < least:
            raise CacheError(
                f"cache_budget={budget} bytes is too small for images of up to {int(self.sizes.max())} bytes",
                remedy=f"allow at least {least} bytes",
            )
        if self._hole_problem:
            raise CacheError(
                f"the file system of {self.folder} cannot free parts of a file ({self._hole_problem}), so a "
                f"cache_budget of {budget} bytes would be exceeded",
                remedy=f"choose cache_dir on a local disk (ext4, xfs, btrfs, tmpfs), or allow {total} bytes",
            )
        return budget

    def _shrink(self) -> None:
        """Evict images until a budget that is smaller than an earlier run's is kept."""
        if self.used_bytes > self.budget:
            ready = np.flatnonzero(self.mask(State.READY))
            freed_before = np.cumsum(self.sizes[ready]) - self.sizes[ready]
            self.evict(ready[freed_before < self.used_bytes - self.budget].tolist())
        self._header[_Field.PEAK_BYTES] = self.used_bytes


def _checked_offsets(folder: Path, catalog: Catalog) -> IndexArray:
    offsets = data_offsets(catalog.lengths)
    # A listing may have lengths whose sum exceeds 63 bits.
    if (np.diff(offsets) < 0).any() or float(np.sum(catalog.lengths, dtype=np.float64)) >= 2.0**62:
        raise CacheError(f"the images of {folder / 'catalog.arrow'} are too large; delete {folder}")
    return offsets
