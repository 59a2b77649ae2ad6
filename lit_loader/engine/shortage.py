"""What is told when the system has no descriptors, processes or memory left for worker processes.

NOTE [Descriptors of a pool]
    A worker costs the main process six descriptors: its ends of three pipes, two of multiprocessing and a pidfd. The
    pool has five of its own, and while a worker is started both ends of its pipes are open here, and in a fork of this
    process what the worker opens comes on top. They are counted before the first one is opened, because multiprocessing
    leaves some open when it fails halfway.

    When ``os.fork`` itself fails, CPython leaves up to four open, of ``popen_fork.Popen._launch``. They stay: their
    numbers are known to local variables in frames of CPython only, and may be those of another thread's files by the
    time one would close them. A program hardly goes on starting workers after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from lit_loader.resources import read_resources

try:
    import resource
except ImportError:  # Windows: nothing is counted, and errors stay as they are
    resource = None  # type: ignore[assignment] # a module elsewhere

__all__ = ["check_descriptors", "count_descriptors", "shortages_explained"]

_OF_A_WORKER, _OF_A_POOL = 6, 24
_LISTS = ("/proc/self/fd", "/dev/fd")


def count_descriptors(num_workers: int) -> int:
    """Return how many descriptors must be free for a pool to be started; see NOTE [Descriptors of a pool]."""
    return _OF_A_WORKER * num_workers + _OF_A_POOL


def check_descriptors(num_workers: int) -> None:
    """Raise the error of a process that cannot open as many descriptors as a pool needs.

    Raises:
        OSError: EMFILE, with what is needed, what is free, and the remedy.
    """
    free = None if resource is None else _count_free(_limit("RLIMIT_NOFILE"))
    if free is not None and free < count_descriptors(num_workers):
        raise OSError(errno.EMFILE, _explain(errno.EMFILE, num_workers))


@contextlib.contextmanager
def shortages_explained(num_workers: int) -> Iterator[None]:
    """Raise an OSError of starting workers as one that says what was wanted, what there is, and the remedy."""
    try:
        yield
    except OSError as error:
        text = None if resource is None else _explain(error.errno, num_workers)
        if text is None:
            raise
        raise OSError(error.errno, text) from error
    except EOFError as error:
        error.add_note(
            f"the fork server ended while it started one of num_workers={num_workers} workers (its own words are on "
            "the standard error): was it killed, or is there no room for another process?"
        )
        raise


def _explain(number: int | None, num_workers: int) -> str | None:
    """Return the message for a shortage of this errno, or None if the error is another one."""
    needed = count_descriptors(num_workers)
    if number == errno.EMFILE:
        limit = _limit("RLIMIT_NOFILE")
        free = _count_free(limit)
        there = "" if free is None else f", of which {free} are free"
        raised = "" if limit is None else f"raise the limit (ulimit -n {limit + needed}), "
        return (
            f"num_workers={num_workers} needs {needed} file descriptors, and this process may have {limit}{there}; "
            f"{raised}close files, or lower num_workers"
        )
    if number == errno.ENFILE:
        return (
            f"num_workers={num_workers} needs {needed} file descriptors, and all processes of this machine together "
            "have opened as many as they may (sysctl fs.file-max); end some, or lower num_workers"
        )
    if number == errno.EAGAIN:
        limit = _limit("RLIMIT_NPROC")
        return (
            f"num_workers={num_workers} needs as many processes, of three threads each, and this user may have no more "
            f"(RLIMIT_NPROC: {'no limit' if limit is None else limit} for all processes and threads; a control group's "
            "pids.max may be lower); end some, raise the limit (ulimit -u), or lower num_workers"
        )
    if number in (errno.ENOMEM, errno.ENOSPC):
        limit, available = _limit("RLIMIT_AS"), read_resources().available_bytes
        there = "" if available is None else f", {available} bytes are available"
        there += "" if limit is None else f", RLIMIT_AS is {limit} bytes"
        return (
            f"num_workers={num_workers} needs memory that is not to be had: this process has mapped {_mapped_bytes()} "
            f"bytes, which a fork must be able to have too{there}; lower num_workers, make the dataset smaller, or use "
            'multiprocessing_context="forkserver", whose workers start small'
        )
    return None


def _limit(name: str) -> int | None:
    """Return one of this process's limits, or None if it is not limited."""
    limit: int = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _count_free(limit: int | None) -> int | None:
    """Return how many descriptors this process may still open, or None if that is not limited or not known."""
    if limit is None:
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


def _mapped_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
