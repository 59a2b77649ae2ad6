"""Guarantee: workers end when the loader is closed, collected or its loop is broken off, and with the main process."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import re
import signal
import struct
import threading
import time

import psutil
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.engine import worker_process
from tests.support.scripts import start_script
from tests.support.toys import Drawing, Failing, Pids, Slow


def gone(pids, within_s=20.0):
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def live_workers():
    """Return the numbers of this process's children and worker threads."""
    workers = {thread.ident for thread in threading.enumerate() if thread.name.startswith("lit_loader-worker")}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != "zombie":
                workers.add(child.pid)
    return workers


@pytest.fixture
def num_workers():
    """Return a function that counts the live workers, and waits until there are as many as expected."""
    earlier = live_workers()

    def count(expected, within_s=20.0):
        deadline = time.monotonic() + within_s
        while len(live_workers() - earlier) != expected and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(live_workers() - earlier)

    return count


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
class TestWorkersEnd:
    def loader(self, method, seed, persistent, dataset=range(24)):
        settings = {"worker_method": method, "seed": seed, "persistent_workers": persistent}
        return DataLoader(dataset, batch_size=2, num_workers=2, **settings)

    def test_when_the_loop_is_broken_off(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        for _ in loader:
            assert num_workers(2) == 2
            break
        assert num_workers(0, 0.5 if persistent else 20.0) == 2 * persistent
        loader.close()
        assert num_workers(0) == 0

    def test_when_the_epoch_is_over(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        for _ in range(2):
            list(loader)
            assert num_workers(0, 0.5 if persistent else 20.0) == 2 * persistent
        loader.close()
        assert num_workers(0) == 0

    def test_when_the_loader_is_collected(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        iterator = iter(loader)
        next(iterator)
        del iterator, loader
        assert num_workers(0) == 0

    def test_when_their_iterator_is_collected_from_a_cycle(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        knot = [iter(loader), loader]
        next(knot[0])
        knot.append(knot)
        del knot, loader
        gc.collect()
        assert num_workers(0) == 0

    def test_at_once_although_an_error_was_raised(self, method, seed, persistent, num_workers):
        """No cycle of an error and its frames waits for the garbage collector."""
        loader = self.loader(method, seed, persistent, Failing({0: ZeroDivisionError()}))
        iterator = iter(loader)
        gc.disable()
        try:
            try:
                next(iterator)
            except ZeroDivisionError:
                pass
            else:
                pytest.fail("nothing was raised")
            del iterator, loader
            assert num_workers(0) == 0
        finally:
            gc.enable()

    def test_and_a_closed_loader_starts_new_ones(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        next(iterator := iter(loader))
        loader.close()
        assert num_workers(0) == 0
        with pytest.raises((RuntimeError, StopIteration)):
            for _ in range(14):
                next(iterator)
        assert len(list(loader)) == 12
        loader.close()

    def test_without_those_of_a_copy(self, method, seed, persistent, num_workers):
        loader = self.loader(method, seed, persistent)
        iterator = iter(loader)
        batches = [next(iterator).tolist()]
        for twin in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert len(list(twin)) == 12
            twin.close()
        batches += [batch.tolist() for batch in iterator]
        assert sorted(sample for batch in batches for sample in batch) == list(range(24))
        loader.close()


def test_a_sample_in_hand_does_not_keep_workers_for_long(monkeypatch):
    monkeypatch.setattr(worker_process, "_GRACE_S", 1.0)
    loader = DataLoader(Slow(60.0), num_workers=1, seed=0)
    iterator = iter(loader)
    loader.timeout = 0.2
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    start = time.monotonic()
    del iterator
    assert 1 <= time.monotonic() - start < 50  # the grace, then by force


SCRIPT = """
    import sys, torch
    from lit_loader import DataLoader
    from tests.support.toys import Slow
    if __name__ == "__main__":
        loader = DataLoader(Slow({seconds}), num_workers=2, seed=1, multiprocessing_context="{method}",
                            persistent_workers=True)
        for batch in loader:
            print("first", flush=True)
            {then}
"""


def script(tmp_path, then="input()", *, seconds=0.01, method="fork"):
    return start_script(tmp_path / "script.py", SCRIPT.format(seconds=seconds, method=method, then=then))


class Unresponsive:
    """Sends its worker's pid; then the worker stops itself, or holds the interpreter lock for minutes."""

    def __init__(self, writer, how):
        self.writer = writer
        self.how = how

    def __len__(self):
        return 8

    def __getitem__(self, index):
        os.write(self.writer, struct.pack("i", os.getpid()))
        if self.how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        return re.match(r"(a+)+$", "a" * 60 + "b")


@pytest.mark.parametrize("how", ["stopped", "holding the interpreter lock"])
def test_with_a_killed_main_process_in_the_middle_of_anything(how):
    reader, writer = os.pipe()
    main_pid = os.fork()
    if main_pid == 0:
        list(DataLoader(Unresponsive(writer, how), num_workers=2, seed=1, multiprocessing_context="fork"))
        os._exit(1)
    workers = [struct.unpack("i", os.read(reader, 4))[0] for _ in range(2)]
    os.close(reader)
    os.close(writer)
    time.sleep(0.1)  # until both are in the call
    os.kill(main_pid, signal.SIGKILL)
    os.waitpid(main_pid, 0)
    assert gone(workers, 2.0)


def test_not_with_the_thread_that_started_them():
    with DataLoader(Pids(), batch_size=2, num_workers=2, seed=1, persistent_workers=True) as loader:
        iterator = iter(loader)
        pids = []

        def begin():
            earlier = set(psutil.Process().children())
            next(iterator)
            pids.extend(child.pid for child in set(psutil.Process().children()) - earlier)

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        time.sleep(0.2)  # a signal of the thread's end would have come
        assert set(torch.cat(list(iterator)).tolist()) <= set(pids)
        assert set(torch.cat(list(loader)).tolist()) <= set(pids)


def test_with_the_main_process_even_if_it_is_killed(tmp_path):
    process = script(tmp_path, method="forkserver")
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(pids) >= 2
    process.kill()
    process.communicate(timeout=10)
    assert gone(pids)


def test_with_an_interpreter_that_exits_with_a_live_iterator(tmp_path):
    process = script(tmp_path, then="keep = iter(loader); next(keep); sys.exit(7)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 7
    assert errors == ""


def test_an_iterator_in_a_forked_process_is_refused_and_harms_nobody():
    loader = DataLoader(Drawing(), batch_size=2, num_workers=2, seed=0, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            fine = "belong to process" in str(error)
            del iterator
            fine = fine and len(list(loader)) == 12  # with workers of its own
            loader.close()
            os._exit(0 if fine else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(iterator)) == 11
    loader.close()
