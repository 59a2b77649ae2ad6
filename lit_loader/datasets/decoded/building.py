"""Who builds a block: one process at a time for each name, by a lock that ends with its holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout
from rich.console import Console

__all__ = ["building", "remove_leftovers", "temporary_prefix"]

# NOTE [a killed build]
# What is being built has a temporary name that nobody opens; the system drops the lock when its holder dies. So
# whoever holds the lock of a name may delete all temporary files of that name, and every build begins by doing
# so for each name that it can lock: what was left behind by other settings goes as well. A block in memory
# needs none of that, the memory ends with the process; only its record may stay, which names a process that is
# no more.

_SUFFIX = ".tmp"


@contextmanager
def building(folder: Path, name: str, *, progress: bool) -> Iterator[None]:
    """Be the only process that builds a name; waits for whoever does.

    Args:
        folder: Where the lock file is made.
        name: What is built.
        progress: Say on standard error that another process is waited for.

    Raises:
        OSError: The folder cannot be written.
    """
    lock = _lock(folder, name, progress=progress)
    assert lock is not None  # it waited
    try:
        yield
    finally:
        _unlock(folder, name, lock)


def temporary_prefix(name: str) -> str:
    """Return how the names of temporary files of a build begin; they end in ``.tmp``."""
    return f".{name}."


def remove_leftovers(folder: Path, *, own: str) -> None:
    """Delete temporary files, and locks, of builds that have ended.

    Args:
        folder: Where they lie.
        own: The name whose lock the caller holds.
    """
    for name in {
        entry.name[1:].split(".")[0] for kind in (_SUFFIX, ".lock") for entry in folder.glob(f".*{kind}")
    }:
        with suppress(OSError):  # another user's
            lock = None if name == own else _lock(folder, name, wait=False)
            if name != own and lock is None:
                continue  # it is being built
            for leftover in folder.glob(f"{temporary_prefix(name)}*{_SUFFIX}"):
                leftover.unlink(missing_ok=True)
            if lock is not None:
                _unlock(folder, name, lock)


def _lock(folder: Path, name: str, *, wait: bool = True, progress: bool = False) -> BaseFileLock | None:
    lock = FileLock(folder / f".{name}.lock", mode=0o600)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            return None
        if progress:
            Console(stderr=True).print("Waiting for another process that decodes these images ...")
        lock.acquire()
    return lock


def _unlock(folder: Path, name: str, lock: BaseFileLock) -> None:
    # Deleted while it is held: who waits for this file takes it for gone (filelock looks), and makes another.
    with suppress(OSError):  # Windows deletes no open file
        (folder / f".{name}.lock").unlink()
    lock.release()
