"""Who builds a block: one process at a time for each name, by a lock that ends with its holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console

from lit_loader.file_lock import file_lock

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

    def tell() -> None:
        if progress:
            Console(stderr=True).print("Waiting for another process that decodes these images ...")

    with file_lock(_lock_path(folder, name), on_wait=tell):
        yield


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
        own_lock = nullcontext(True) if name == own else file_lock(_lock_path(folder, name), wait=False)
        with suppress(OSError), own_lock as is_free:  # an OSError: another user's
            for leftover in folder.glob(f"{temporary_prefix(name)}*{_SUFFIX}") if is_free else ():
                leftover.unlink(missing_ok=True)


def _lock_path(folder: Path, name: str) -> Path:
    return folder / f".{name}.lock"
