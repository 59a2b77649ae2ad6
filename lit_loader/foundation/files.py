"""Files that several processes write: complete or not there, and a lock between the processes of a host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

__all__ = ["file_lock", "new_file", "new_folder"]


@contextmanager
def new_file(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Give a file to write that takes the place of ``path`` at the end, and is deleted if there is an error.

    A missing folder is made. Both are the user's own unless ``mode`` gives others rights. Several writers at once
    leave the complete file of one of them.

    Raises:
        OSError: If the folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.stem}.{token_hex(8)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write into that becomes ``path`` at the end, and is deleted if there is an error.

    Raises:
        OSError: If it cannot be written, or ``path`` is there already and is not an empty folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def file_lock(
    path: Path, *, wait: bool = True, on_wait: Callable[[], object] | None = None
) -> Iterator[bool]:
    """Hold an exclusive lock on a file, which is made for it and stays.

    The system drops the lock when its holder ends, however it ends.

    Args:
        path: The file; its folder exists.
        wait: Wait until another holder lets go.
        on_wait: Called once before waiting.

    Yields:
        Whether the lock is held: False only without ``wait``, where another process or thread holds it.

    Raises:
        OSError: The file cannot be made.
    """
    from filelock import FileLock, Timeout  # 80 ms, which workers need not wait for

    lock = FileLock(path, mode=0o600)
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
