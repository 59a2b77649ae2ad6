"""Guarantee: worker threads hold up neither a fork, nor the end of the interpreter, nor Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback

import pytest

from lit_loader import DataLoader
from tests.support.in_threads import batched_threads as threads
from tests.support.scripts import run_code, start_script
from tests.support.toys import Drawing, Slow


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
            new_loader = loader.__class__(Slow(0, 6), num_workers=2, worker_method="thread", seed=1)
            list(new_loader)
            loader.close()
            return len(list(loader)) == 200 if number == 0 else True

        assert in_a_fork(child) == 0
        next(iterator)  # and nothing has happened to this one
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

    loader = DataLoader(Samples(), num_workers=2, seed=1, worker_method="thread", persistent_workers={persistent})
    iterator = iter(loader)
    next(iterator)
    print("first", flush=True)
    {then}
"""


def script(tmp_path, then, *, seconds=0.01, persistent=True):
    return start_script(tmp_path / "script.py", SCRIPT.format(seconds=seconds, persistent=persistent, then=then))


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
    assert sorted(run_code(code).stdout.splitlines()) == ["exit [[1, 2], [3, 4]]", "thread [[1, 2], [3, 4]]"]
