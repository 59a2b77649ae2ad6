"""Guarantee: where descriptors, processes or memory for workers are short, the error says so, and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lit_loader.engine.worker_process import WORKER_NAME, check_descriptors, count_descriptors, shortages_explained
from lit_loader.errors import WorkerDiedError
from tests.support.short_of import children, descriptors, epoch_or_error, has_children, loader_of

ANOTHER_USER = 65527  # a user id without other processes
CPYTHONS = 4  # descriptors that CPython leaves open when os.fork fails


def try_numbers(context, seed, numbers):
    """Let a process try a loader with so many free descriptors, one number after the other."""
    arguments = [context, str(seed), *map(str, numbers)]
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.short_of", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")


NEEDED = count_descriptors(2)
FEW_NUMBERS = [*range(0, NEEDED, 6), NEEDED - 1, NEEDED, NEEDED + 1]


@pytest.mark.parametrize(
    ("context", "seed", "numbers"),
    [
        ("fork", 1, FEW_NUMBERS),
        ("thread", 1, [0]),
        pytest.param("fork", None, range(NEEDED + 3), marks=pytest.mark.soak),
        pytest.param("forkserver", 1, range(NEEDED + 3), marks=pytest.mark.soak),
        pytest.param("forkserver", None, range(NEEDED + 3), marks=pytest.mark.soak),
        pytest.param("spawn", 1, [0, 9, NEEDED - 1, NEEDED], marks=pytest.mark.soak),
    ],
)
def test_any_number_of_free_descriptors_works_or_is_explained(context, seed, numbers):
    try_numbers(context, seed, numbers)


def test_failed_start_of_a_thread_raises(monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    loader = loader_of(2, "thread", seed=1, persistent_workers=True)
    with monkeypatch.context() as patch:
        patch.setattr("lit_loader.engine.threads.set_worker_info", fails)
        with pytest.raises(RuntimeError, match="worker thread of the loader failed") as caught:
            next(iter(loader))
    assert caught.value.__cause__.errno == errno.EMFILE
    assert len(list(loader)) == 6
    loader.close()


def no_more(*_):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize("num_started", [0, 1])
def test_failed_fork_is_explained_and_leaves_no_worker(num_started, monkeypatch):
    """The workers that were started are ended; all descriptors but the four of CPython's are closed."""
    forks = []
    fork = os.fork

    def fork_some():
        forks.append(1)
        return fork() if len(forks) <= num_started else no_more()

    loader = loader_of(2, "fork", seed=1)
    descriptors_before = descriptors()
    processes = children()
    for _ in range(3):
        forks.clear()
        with monkeypatch.context() as patch:
            patch.setattr("os.fork", fork_some)
            with pytest.raises(
                BlockingIOError, match=r"num_workers=2 needs as many processes.*lower num_workers"
            ) as error_info:
                next(iter(loader))
        assert error_info.value.errno == errno.EAGAIN
        assert "ulimit -u" in str(error_info.value)
        del error_info
        assert children() == processes
        leaked = set(descriptors()) - set(descriptors_before)
        assert len(leaked) <= CPYTHONS
        for fd, _ in leaked:
            os.close(fd)
        assert descriptors() == descriptors_before
    assert len(list(loader)) == 6


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user, whose processes are counted alone")
@pytest.mark.parametrize(
    ("limit", "message"), [(1, "needs as many processes"), (2, "it could not start its threads, more than this user")]
)
def test_process_limit_of_a_user_is_explained(limit, message):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        loader = loader_of(1, "fork")
        os.setgroups([])
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setuid(ANOTHER_USER + limit)
        descriptors_before = descriptors()
        outcome = epoch_or_error(loader)
        fine = isinstance(outcome, OSError | WorkerDiedError) and message in str(outcome)
        leaked = set(descriptors()) - set(descriptors_before)
        os._exit(0 if fine and len(leaked) <= CPYTHONS and not has_children() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_refused_threads_are_explained(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith(("lit_loader-sender", f"{WORKER_NAME}-1")):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    limits = r"more than this user or control group may have \(ulimit -u, pids.max\).*lower num_workers"
    with pytest.raises(WorkerDiedError, match=f"it could not start its threads, {limits}"):
        list(loader_of(2, "fork"))
    with pytest.raises(RuntimeError, match=f"num_workers=2 needs as many threads, {limits}"):
        list(loader_of(2, "thread"))


def test_failed_start_of_the_fork_server_is_explained(monkeypatch):
    monkeypatch.setattr("lit_loader.loader.worker_manager.start_forkserver", no_more)
    with pytest.raises(BlockingIOError, match="num_workers=2 needs as many processes"):
        list(loader_of(2, "forkserver"))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOMEM, r"num_workers=3 needs more memory than the \d+ bytes that are available"),
        (errno.ENOSPC, r"needs more memory .*forkserver"),
        (errno.EMFILE, r"num_workers=3 needs 42 free file descriptors, .*\(ulimit -n\)"),
        (errno.ENFILE, r"needs 42 free file descriptors, .*this machine \(sysctl fs.file-max\)"),
    ],
)
def test_each_shortage_keeps_its_number_and_names_the_remedy(number, message):
    with pytest.raises(OSError, match=message) as caught, shortages_explained(3):
        raise OSError(number, "short")
    assert caught.value.errno == number
    assert "lower num_workers" in str(caught.value) or "or lower" in str(caught.value)
    assert caught.value.__cause__.args == (number, "short")


def test_other_errors_are_unchanged():
    original = FileNotFoundError(errno.ENOENT, "gone")

    def start(number):
        raise original

    with pytest.raises(FileNotFoundError) as caught:
        shortages_explained(2)(start)(0)
    assert caught.value is original


def test_ended_fork_server_is_explained():
    with pytest.raises(EOFError) as caught, shortages_explained(2):
        raise EOFError("unexpected EOF")
    assert "fork server ended while it started one of num_workers=2" in caught.value.__notes__[0]


def test_interrupted_check_leaves_no_descriptor_open():
    def interrupt(*_):
        raise KeyboardInterrupt

    descriptors_before = descriptors()
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for microseconds in list(range(5, 400)) * 10:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                check_descriptors(8)
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert descriptors() == descriptors_before
