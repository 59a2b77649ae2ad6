"""Who builds a block: one process at a time for each name, by a lock that ends with its holder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console

from lit_loader.datasets.decoded.layout import PixelBlock
from lit_loader.errors import CacheError
from lit_loader.files import file_lock

__all__ = ["building", "found_or_built"]

# NOTE [a killed build]
# What is being built has a temporary name that nobody opens; the system drops the lock when its holder dies. So
# whoever holds the lock of a name may delete all temporary files of that name, and every build begins by doing
# so for each name that it can lock: what was left behind by other settings goes as well. A block in memory
# needs none of that, the memory ends with the process; only its record may stay, which names a process that is
# no more.


def found_or_built(
    path: Path,
    *,
    find: Callable[[], PixelBlock],
    build: Callable[[], PixelBlock],
    progress: bool,
    failure: str,
    remedy: str,
) -> PixelBlock:
    """Return the block that is there, or build it as the only process of its name that does.

    Args:
        path: The file of the block, or of the record of it.
        find: Gives the block; a CacheError if there is none, or it is damaged.
        build: Makes the block, and the file.
        progress: As for `building`.
        failure: What could not be done if the folder cannot be written.
        remedy: What to do about that.

    Raises:
        CacheError: ``build`` raises one, or the folder cannot be written.
    """
    with suppress(CacheError):
        return find()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with building(path.parent, path.stem, progress=progress):
            with suppress(CacheError):  # another process built it while this one waited
                return find()
            _remove_leftovers(path.parent, own=path.stem)
            return build()
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(f"{failure} {path.parent} ({error.strerror or error}); {remedy}") from error


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


def _remove_leftovers(folder: Path, *, own: str) -> None:
    """Delete temporary files, and locks, of builds that have ended; ``own`` is the name whose lock is held."""
    found = [*folder.glob(".*.tmp"), *folder.glob(".*.lock")]
    for name in {entry.name[1:].split(".")[0] for entry in found}:
        own_lock = nullcontext(True) if name == own else file_lock(_lock_path(folder, name), wait=False)
        with suppress(OSError), own_lock as is_free:  # an OSError: another user's
            for leftover in folder.glob(f".{name}.*.tmp") if is_free else ():
                leftover.unlink(missing_ok=True)


def _lock_path(folder: Path, name: str) -> Path:
    return folder / f".{name}.lock"
