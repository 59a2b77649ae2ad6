"""Loaders in a process that has few descriptors: ``python -m tests.support.short_of fork 1 0 5 10`` tries so many.

A process of its own, as it lowers its limit and has a fork server of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import warnings
from typing import Any

from lit_loader import DataLoader
from lit_loader.engine.worker_process import count_descriptors
from tests.support.toys import Slow

LIMIT = 200


def descriptors() -> list[tuple[int, int]]:
    """Return every descriptor and what it is."""
    found = []
    for fd in range(4 * LIMIT):
        with contextlib.suppress(OSError):
            found.append((fd, os.fstat(fd).st_ino))
    return found


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            found += file.read().split()
    return sorted(found)


class Holding:
    """Leaves so many descriptors free, until it is left."""

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free

    def __enter__(self) -> None:
        self.held = [os.open(os.devnull, os.O_RDONLY)]
        try:
            while True:
                self.held.append(os.dup(self.held[0]))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        for _ in range(self.num_free):
            os.close(self.held.pop())

    def __exit__(self, *_: object) -> None:
        for fd in self.held:
            os.close(fd)


def loader_of(num_workers: int, context: str, **arguments: Any) -> DataLoader[Any]:
    if context == "thread":
        arguments |= {"worker_method": "thread"}
    else:
        arguments |= {"multiprocessing_context": context}
    return DataLoader(Slow(0, 23), batch_size=4, num_workers=num_workers, timeout=30, **arguments)


def epoch_or_error(loader: DataLoader[Any]) -> Any:
    """Return the number of batches, or the error, which keeps nothing alive."""
    try:
        return len(list(loader))
    except Exception as error:
        return error.with_traceback(None)


def try_numbers(context: str, seed: int | None, numbers: list[int]) -> None:
    """Try a loader of two workers with each number of free descriptors; raise AssertionError where it fails."""
    num_workers, needed = 2, count_descriptors(2)
    list(loader_of(1, context, seed=seed))  # what is imported and started once
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loader = loader_of(num_workers, context, seed=seed)
    before, processes = descriptors(), children()
    for number in numbers:
        with Holding(number):
            found = epoch_or_error(loader)
        if context == "thread" or number >= needed:
            assert found == 6, (number, found)
        else:
            assert isinstance(found, OSError), (number, found)
            assert found.errno == errno.EMFILE, (number, found)
            assert f"num_workers=2 needs {needed} free file descriptors, more than" in str(found), found
            assert "raise the limit, close files, or lower num_workers" in str(found), found
        assert descriptors() == before, (number, descriptors(), before)
        assert children() == processes, number
        found = epoch_or_error(loader)  # the same loader, after files were closed
        assert found == 6, (number, found)


def try_used(context: str, num_workers: int) -> None:
    """Compare what is asked for with what is used."""
    with loader_of(num_workers, context, seed=1, persistent_workers=True) as loader:
        iterator, before = iter(loader), len(descriptors())
        next(iterator)
        used = len(descriptors()) - before
    asked = count_descriptors(num_workers)
    assert used <= asked <= used + 30, (used, asked)


if __name__ == "__main__":
    context, seed, *numbers = sys.argv[1:]
    try_numbers(context, None if seed == "None" else int(seed), [int(number) for number in numbers])
    if context != "thread":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on more workers than cores
            try_used(context, 5)
