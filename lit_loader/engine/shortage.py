"""What is told when the system has no descriptors, processes or memory left for worker processes.

NOTE [Descriptors of a pool]
    A worker costs the main process six descriptors: its ends of three pipes, two of multiprocessing and a pidfd. The
    pool has five of its own, and while a worker is started both ends of its pipes are open here, and in a fork of this
    process what the worker opens comes on top. They are counted before the first one is opened, because multiprocessing
    leaves some open when it fails halfway.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from lit_loader.resources import read_resources

__all__ = ["check_descriptors", "count_descriptors", "explained", "shortages_explained"]

T = TypeVar("T")

_OF_A_WORKER, _OF_A_POOL = 6, 24
_LISTS = ("/proc/self/fd", "/dev/fd")
_ENDS = (("parent_r", "child_w"), ("child_r", "parent_w"))


def count_descriptors(num_workers: int) -> int:
    """Return how many descriptors must be free for a pool to be started; see NOTE [Descriptors of a pool]."""
    return _OF_A_WORKER * num_workers + _OF_A_POOL


def check_descriptors(num_workers: int) -> None:
    """Raise the error of a process that cannot open as many descriptors as a pool needs.

    Raises:
        OSError: EMFILE, with what is needed, what is free, and the remedy.
    """
    free = _count_free()
    if free is not None and free < count_descriptors(num_workers):
        raise OSError(errno.EMFILE, _on_descriptors(num_workers))


@contextlib.contextmanager
def shortages_explained(num_workers: int) -> Iterator[None]:
    """Raise an OSError of starting workers as one that says what was wanted, what there is, and the remedy."""
    try:
        yield
    except OSError as error:
        _close_pipes_of_failed_fork(error)
        explain = _EXPLANATIONS.get(error.errno or 0)
        if explain is None:
            raise
        raise OSError(error.errno, explain(num_workers)) from error
    except EOFError as error:
        error.add_note(
            f"the fork server ended while it started one of num_workers={num_workers} workers (its own words are on "
            "the standard error): was it killed, or is there no room for another process?"
        )
        raise


def explained(start: Callable[[int], T], num_workers: int) -> Callable[[int], T]:
    """Return ``start``, which starts the worker of a number, with its shortages explained."""

    def start_explained(worker_id: int) -> T:
        with shortages_explained(num_workers):
            return start(worker_id)

    return start_explained


def _count_free() -> int | None:
    """Return how many descriptors this process may still open; None: that cannot be found out, or is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    for folder in _LISTS:
        try:
            names = os.listdir(folder)  # noqa: PTH208 - among them that of the list itself, which is closed now
        except OSError as error:
            if error.errno == errno.EMFILE:
                return 0
            continue
        return limit - sum(int(name) < limit for name in names) + 1
    return None


def _on_descriptors(num_workers: int) -> str:
    limit, free = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _count_free()
    needed = count_descriptors(num_workers)
    there = "" if free is None else f", of which {free} are free"
    raised = f"raise the limit (ulimit -n {limit + needed}), " if limit != resource.RLIM_INFINITY else ""
    return (
        f"num_workers={num_workers} needs {needed} file descriptors, and this process may have {limit}{there}; "
        f"{raised}close files, or lower num_workers"
    )


def _on_descriptors_of_all(num_workers: int) -> str:
    return (
        f"num_workers={num_workers} needs {count_descriptors(num_workers)} file descriptors, and all processes of this "
        "machine together have opened as many as they may (sysctl fs.file-max); end some, or lower num_workers"
    )


def _on_processes(num_workers: int) -> str:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    told = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
    return (
        f"num_workers={num_workers} needs as many processes, of three threads each, and this user may have no more "
        f"(RLIMIT_NPROC: {told} for all processes and threads; a control group's pids.max may be lower); end some, "
        "raise the limit (ulimit -u), or lower num_workers"
    )


def _on_memory(num_workers: int) -> str:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    told = "" if limit == resource.RLIM_INFINITY else f", RLIMIT_AS is {limit} bytes"
    available = read_resources().available_bytes
    there = "" if available is None else f", {available} bytes are available"
    return (
        f"num_workers={num_workers} needs memory that is not to be had: this process has mapped {_mapped_bytes()} "
        f"bytes, which a fork must be able to have too{there}{told}; lower num_workers, make the dataset smaller, or "
        'use multiprocessing_context="forkserver", whose workers start small'
    )


_EXPLANATIONS: dict[int, Callable[[int], str]] = {
    errno.EMFILE: _on_descriptors,
    errno.ENFILE: _on_descriptors_of_all,
    errno.EAGAIN: _on_processes,
    errno.ENOMEM: _on_memory,
    errno.ENOSPC: _on_memory,
}


def _mapped_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _close_pipes_of_failed_fork(error: OSError) -> None:
    """Close what multiprocessing leaves open when a fork fails (CPython, ``popen_fork.Popen._launch``)."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if (
            frame.f_globals.get("__name__") == "multiprocessing.popen_fork"
            and frame.f_code.co_name == "_launch"
        ):
            for names in _ENDS:
                ends: list[int] = [frame.f_locals[name] for name in names if name in frame.f_locals]
                if _are_a_pipe(ends):
                    for fd in ends:
                        os.close(fd)


def _are_a_pipe(ends: list[int]) -> bool:
    """Whether two descriptors are still the ends of one pipe."""
    try:
        found = [os.fstat(fd) for fd in ends]
    except OSError:
        return False
    return (
        len(found) == 2
        and found[0].st_ino == found[1].st_ino
        and all(stat.S_ISFIFO(e.st_mode) for e in found)
    )
