"""Guarantee: worker threads hold up neither a fork, nor the end of the interpreter, nor Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path

import pytest

from lit_loader import DataLoader
from tests.support.toys import Drawing, Slow


def threads(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, "worker_method": "thread", "seed": 1, **arguments})


def in_a_fork(check):
    """Return the exit code of a fork that runs a check; it may take ten seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("seed", [pytest.param(None, marks=pytest.mark.soak), 1])
def test_a_fork_while_threads_are_at_work_does_not_hang(seed):
    for number in range(5):
        loader = threads(Slow(0.001, 400), seed=seed, persistent_workers=True)
        iterator = iter(loader)
        for _ in range(1 + number % 4):
            next(iterator)

        def child(number=number, iterator=iterator, loader=loader):
            with pytest.raises(RuntimeError, match="belong to process"):
                for _ in range(300):
                    next(iterator)
            del iterator
            gc.collect()
            own = loader.__class__(Slow(0, 6), num_workers=2, worker_method="thread", seed=1)
            list(own)
            loader.close()
            return len(list(loader)) == 200 if number == 0 else True

        assert in_a_fork(child) == 0
        next(iterator)  # and nothing has happened to this one
        loader.close()


def test_a_fork_with_a_pools_lock_held_does_not_hang():
    loader = threads(range(24), persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    lock = loader._worker_manager.backend._lock
    held = threading.Event()
    release = threading.Event()

    def hold():
        with lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)

    def child():
        try:
            while True:
                next(iterator)
        except RuntimeError as error:
            return "belong to process" in str(error)

    assert in_a_fork(child) == 0
    release.set()
    holder.join()
    assert len(list(iterator)) == 11
    loader.close()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_process_loader_may_be_started_while_threads_are_at_work(method):
    with threads(Slow(0.001, 600), prefetch_factor=20) as loader:
        iterator = iter(loader)
        next(iterator)
        for _ in range(3):
            inner = DataLoader(Drawing(), batch_size=4, num_workers=2, seed=3, multiprocessing_context=method)
            assert len(list(inner)) == 6
            next(iterator)


SCRIPT = """
    import sys, threading, time
    from lit_loader import DataLoader
    from torch.utils.data import Dataset

    class Samples(Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            if index >= 2:
                time.sleep({seconds})
            return index

    loader = DataLoader(Samples(), num_workers=2, seed={seed}, worker_method="thread", persistent_workers={persistent})
    iterator = iter(loader)
    next(iterator)
    print("first", flush=True)
    {then}
"""


def script(tmp_path, then, *, seconds=0.01, seed=1, persistent=True):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT.format(seconds=seconds, seed=seed, persistent=persistent, then=then)))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "first\n"
    return process


@pytest.mark.parametrize(
    ("seconds", "then"),
    [pytest.param(0.01, "sys.exit(7)", marks=pytest.mark.soak), (60, "time.sleep(0.5); sys.exit(7)")],
)
@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_an_interpreter_exits_with_a_live_iterator_and_stuck_threads(tmp_path, seconds, then, persistent):
    start = time.monotonic()
    process = script(tmp_path, then, seconds=seconds, persistent=persistent)
    _, errors = process.communicate(timeout=40)
    assert (process.returncode, errors) == (7, "")
    assert time.monotonic() - start < 35


def test_ctrl_c_ends_a_loop_over_threads_with_one_traceback(tmp_path):
    process = script(tmp_path, "[None for _ in iterator]", seconds=1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT or process.returncode == 130 or process.returncode == 1
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3), reason="these start no thread then: python/cpython issue 113964"
)
def test_threads_start_after_the_main_thread_has_ended():
    code = """
        import atexit, threading, time
        from lit_loader import DataLoader

        def train(where):
            loader = DataLoader([1, 2, 3, 4], batch_size=2, num_workers=1, worker_method="thread", seed=0)
            print(where, [batch.tolist() for batch in loader], flush=True)

        def later():
            threading.main_thread().join()
            train("thread")

        threading.Thread(target=later).start()
        atexit.register(train, "exit")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["exit [[1, 2], [3, 4]]", "thread [[1, 2], [3, 4]]"]
