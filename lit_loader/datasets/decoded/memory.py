"""Blocks in the memory of a host: made by one process, found by the others through a record of it."""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from lit_loader.datasets.decoded.building import found_or_built
from lit_loader.datasets.decoded.layout import PixelBlock, process_start
from lit_loader.datasets.decoded.wanted import CacheRequest
from lit_loader.errors import CacheError
from lit_loader.files import new_file

__all__ = ["block_in_memory"]

try:
    import fcntl
except ImportError:  # then a block cannot be sealed against writing; readers open it to read only
    fcntl = None  # type: ignore[assignment]

# NOTE [finding memory]
# A block is an anonymous memory file (memfd). Its record in the cache folder names the process that made it, when
# that process started (numbers of processes are used again) and the descriptor; another rank opens the
# descriptor through /proc, which the system allows to the same user alone, and from then on holds the memory
# itself. When the maker ends, the others keep what they map, and the record counts as stale: who comes later
# makes a block of their own. The record's name holds the host's boot and the namespace of process numbers, so
# that hosts and containers may share a cache folder.

_RECORD: Final = re.compile(rb"(\d{1,18}) (\d{1,18}) (\d{1,18})")
_Address: TypeAlias = tuple[int, int, int]


def block_in_memory(wanted: CacheRequest) -> PixelBlock:
    """Return the block that a process of this host has in memory, or make it.

    Raises:
        CacheError: It does not fit, the record of it cannot be written, or its images change.
    """
    record = wanted.settings.folder / f"{wanted.name}-{_host()}.memory"

    def find() -> PixelBlock:
        return PixelBlock.from_process(_read_record(record), key=wanted.key, num_images=wanted.num_images)

    def build() -> PixelBlock:
        for other in record.parent.glob(f"*-{_host()}.memory"):  # of processes that have ended
            pid, start, _ = _read_record(other)
            if process_start(pid) != start:
                other.unlink(missing_ok=True)
        block = PixelBlock(_filled(wanted), key=wanted.key, num_images=wanted.num_images)
        with new_file(record) as file:
            file.write(b"%d %d %d" % block.address)
        weakref.finalize(block, _forget, record, block.address)
        return block

    return found_or_built(
        record,
        find=find,
        build=build,
        progress=wanted.settings.progress,
        failure="decoded images cannot be kept in memory with a record in",
        remedy='name a cache_dir that can be written, or give cache="disk" or None',
    )


def _filled(wanted: CacheRequest) -> int:
    """Return the descriptor of an anonymous memory file that holds the block."""
    try:
        descriptor = os.memfd_create("lit_loader_images", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise CacheError(
            f'this system makes no anonymous memory files ({error.strerror}); give cache="disk"'
        ) from error
    try:
        wanted.fill(descriptor)
        if fcntl is not None:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_record(record: Path) -> _Address:
    """Return process, its start, and descriptor; all 0 where there is no such record."""
    with suppress(OSError), record.open("rb") as file:
        if found := _RECORD.fullmatch(file.read(64)):
            return int(found[1]), int(found[2]), int(found[3])
    return 0, 0, 0


def _forget(record: Path, address: _Address) -> None:
    """Delete the record of a block that its maker lets go; a forked child is not its maker."""
    if address[0] == os.getpid() and _read_record(record) == address:
        record.unlink(missing_ok=True)


def _host() -> str:
    """Return what tells this boot of this host, and its process numbers, from others; 16 characters."""
    names = []
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        names.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()
