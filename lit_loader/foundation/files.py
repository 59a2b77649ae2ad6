"""The cache folder, atomic creation of files and folders that several processes write, and a lock between processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from lit_loader.errors import CacheError

__all__ = ["cache_folder", "file_lock", "new_file", "new_folder"]


def cache_folder(cache_dir: Path | str | None = None) -> Path:
    """Return ``cache_dir``, or the default ``$XDG_CACHE_HOME/lit_loader``, else ``~/.cache/lit_loader``.

    Raises:
        CacheError: If the user has no home folder.
    """
    if cache_dir is not None:
        return Path(cache_dir).absolute()
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "lit_loader"
    try:
        return Path.home() / ".cache" / "lit_loader"
    except RuntimeError:
        raise CacheError("no home folder found for the cache; pass `cache_dir` or `use_cache=False`") from None


@contextmanager
def new_file(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces ``path`` at the end, or is deleted after an error.

    Readers never see a partial file. Of several concurrent writers, the last one's complete file remains.

    Args:
        path: File to create or replace. A missing folder is created, accessible only to the user.
        mode: Permissions of the file.

    Raises:
        OSError: If the folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In the same folder: a file cannot be renamed atomically to another file system.
    temporary = path.with_name(f".{path.stem}.{token_hex(8)}.tmp")
    try:
        # O_EXCL also refuses a link that someone else has put there.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        # Atomic, and after the file is closed, so that all of it has been handed to the system.
        temporary.replace(path)
    except BaseException:
        # Also after Ctrl-C.
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder that is renamed to ``path`` at the end, or deleted after an error.

    Raises:
        OSError: If it cannot be written, or ``path`` exists and is not an empty folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        # Raises if the folder exists and is not empty, for example because another process was faster.
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def file_lock(path: Path, *, wait: bool = True, on_wait: Callable[[], object] | None = None) -> Iterator[bool]:
    """Hold an exclusive lock on a lock file, which is created if needed and never deleted.

    The operating system releases the lock when its holder ends, however it ends.

    Args:
        path: The lock file; its folder must exist.
        wait: Whether to wait until another holder releases the lock.
        on_wait: Called once before waiting.

    Yields:
        True while the lock is held; False if another process or thread holds it and ``wait`` is False.

    Raises:
        OSError: If the file cannot be created.
    """
    from filelock import FileLock, Timeout  # takes 80 ms, which workers without a lock need not spend

    lock = FileLock(path, mode=0o600)
    # First without waiting, so that `on_wait` is called only if another process has the lock.
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            yield False
            return
        if on_wait is not None:
            on_wait()
        lock.acquire()
    try:
        yield True
    finally:
        lock.release()
