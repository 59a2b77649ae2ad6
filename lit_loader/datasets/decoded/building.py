"""Who builds a block: one process at a time for each name, by a lock that ends with its holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    descriptor = _lock(folder, name, progress=progress)
    assert descriptor is not None  # it waited
    try:
        yield
    finally:
        _unlock(folder, name, descriptor)


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
            descriptor = None if name == own else _lock(folder, name, wait=False)
            if name != own and descriptor is None:
                continue  # it is being built
            for leftover in folder.glob(f"{temporary_prefix(name)}*{_SUFFIX}"):
                leftover.unlink(missing_ok=True)
            if descriptor is not None:
                _unlock(folder, name, descriptor)


def _lock(folder: Path, name: str, *, wait: bool = True, progress: bool = False) -> int | None:
    path = folder / f".{name}.lock"
    told = not progress
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _flock(descriptor, wait=False):
                if not wait:
                    os.close(descriptor)
                    return None
                if not told:
                    told = True
                    Console(stderr=True).print("Waiting for another process that decodes these images ...")
                _flock(descriptor, wait=True)
            if _is_still(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder deleted it: not the file that others lock by now


def _flock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unlock(folder: Path, name: str, descriptor: int) -> None:
    (folder / f".{name}.lock").unlink(missing_ok=True)
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile holds the descriptor too
    os.close(descriptor)
