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
    """Return the open descriptors, each with the inode of its file."""
    pairs = []
    for fd in range(4 * LIMIT):
        with contextlib.suppress(OSError):
            pairs.append((fd, os.fstat(fd).st_ino))
    return pairs


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[str]:
    pids = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            pids += file.read().split()
    return sorted(pids)


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
    """Try a loader of two workers with each number of free descriptors.

    Raises:
        AssertionError: If an epoch fails without need or an explanation, or leaves a descriptor or a process.
    """
    needed = count_descriptors(2)
    # For imports and processes that happen once.
    list(loader_of(1, context, seed=seed))
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loader = loader_of(2, context, seed=seed)
    original_descriptors = descriptors()
    original_children = children()
    for number in numbers:
        with Holding(number):
            outcome = epoch_or_error(loader)
        if context == "thread" or number >= needed:
            assert outcome == 6, (number, outcome)
        else:
            assert isinstance(outcome, OSError), (number, outcome)
            assert outcome.errno == errno.EMFILE, (number, outcome)
            assert f"num_workers=2 needs {needed} free file descriptors, more than" in str(outcome), outcome
            assert "raise the limit, close files, or lower num_workers" in str(outcome), outcome
        assert descriptors() == original_descriptors, (number, descriptors(), original_descriptors)
        assert children() == original_children, number
        # The same loader works when descriptors are free again.
        outcome = epoch_or_error(loader)
        assert outcome == 6, (number, outcome)


def try_used(context: str, num_workers: int) -> None:
    """Compare the number of descriptors that a loader asks for with the number that it uses."""
    with loader_of(num_workers, context, seed=1, persistent_workers=True) as loader:
        iterator = iter(loader)
        num_before = len(descriptors())
        next(iterator)
        num_used = len(descriptors()) - num_before
    num_checked = count_descriptors(num_workers)
    assert num_used <= num_checked <= num_used + 30, (num_used, num_checked)


if __name__ == "__main__":
    context, seed, *numbers = sys.argv[1:]
    try_numbers(context, None if seed == "None" else int(seed), [int(number) for number in numbers])
    if context != "thread":
        with warnings.catch_warnings():
            # Torch advises against more workers than cores.
            warnings.simplefilter("ignore")
            try_used(context, 5)
