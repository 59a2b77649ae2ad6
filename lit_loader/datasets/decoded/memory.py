"""Blocks in the memory of a host: made by one process, found by the others through a record of it."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from pathlib import Path
from tempfile import mkstemp
from typing import Final, TypeAlias

from lit_loader.datasets.decoded.building import building, remove_leftovers, temporary_prefix
from lit_loader.datasets.decoded.layout import PixelBlock, process_start
from lit_loader.datasets.decoded.wanted import CacheRequest
from lit_loader.errors import CacheError

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

_SUFFIX: Final = ".memory"
_MOST_RECORD_BYTES: Final = 4096
_Address: TypeAlias = tuple[int, int, int]


def block_in_memory(wanted: CacheRequest) -> PixelBlock:
    """Return the block that a process of this host has in memory, or make it.

    Raises:
        CacheError: It does not fit, the record of it cannot be written, or its images change.
    """
    folder, name = wanted.settings.folder, f"{wanted.name}-{_host()}"
    record = folder / f"{name}{_SUFFIX}"
    found = _from_record(record, wanted)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with building(folder, name, progress=wanted.settings.progress):
            found = _from_record(record, wanted)  # another process made it while this one waited
            if found is None:
                remove_leftovers(folder, own=name)
                _remove_stale(folder)
                found = _made(wanted)
                _write_record(record, name, found)
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(
            f"decoded images cannot be kept in memory with a record in {folder} ({error.strerror or error}); name "
            'a cache_dir that can be written, or give cache="disk" or None'
        ) from error
    return found


def _made(wanted: CacheRequest) -> PixelBlock:
    try:
        descriptor = os.memfd_create("lit_loader_images", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise CacheError(
            f'this system makes no anonymous memory files ({error.strerror}); give cache="disk"'
        ) from error
    try:
        wanted.filling(descriptor).run(key=wanted.key)
        wanted.check_unchanged()
        if fcntl is not None:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return PixelBlock(descriptor, key=wanted.key, num_images=wanted.num_images)


def _from_record(record: Path, wanted: CacheRequest) -> PixelBlock | None:
    address = _read_record(record)
    if address is None:
        return None
    try:
        return PixelBlock.from_process(address, key=wanted.key, num_images=wanted.num_images)
    except CacheError:
        return None


def _read_record(record: Path) -> _Address | None:
    try:
        with record.open("rb") as file:
            told = json.loads(file.read(_MOST_RECORD_BYTES))
        pid, start, descriptor = told["pid"], told["start"], told["descriptor"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(type(number) is int and 0 <= number < 2**63 for number in (pid, start, descriptor)):
        return None
    return pid, start, descriptor


def _write_record(record: Path, name: str, block: PixelBlock) -> None:
    address = block.address
    descriptor, temporary = mkstemp(prefix=temporary_prefix(name), suffix=".tmp", dir=record.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(zip(("pid", "start", "descriptor"), address, strict=True)), file)
        Path(temporary).replace(record)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    weakref.finalize(block, _forget, record, address)


def _forget(record: Path, address: _Address) -> None:
    """Delete the record of a block that its maker lets go; a forked child is not its maker."""
    if address[0] == os.getpid() and _read_record(record) == address:
        record.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Delete the records of processes of this host that have ended."""
    for record in folder.glob(f"*-{_host()}{_SUFFIX}"):
        address = _read_record(record)
        if address is None or process_start(address[0]) != address[1]:
            record.unlink(missing_ok=True)


def _host() -> str:
    """Return what tells this boot of this host, and its process numbers, from others; 16 characters."""
    told = []
    try:
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        told.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        pass
    return hashlib.blake2b("\0".join(told).encode(), digest_size=8).hexdigest()
