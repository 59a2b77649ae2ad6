"""Guarantee: workers end when the loader is closed, collected or its loop is broken off, and with the main process."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.engine import worker_process
from tests.support.toys import Drawing, Pids, Slow


def workers_of(process=None):
    actual = []
    for child in (process or psutil.Process()).children():
        try:
            if "lit_loader" in child.name() or "python" in child.name():
                actual.append(child)
        except psutil.Error:
            continue
    return actual


def gone(pids, within_s=20.0):
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("persistent", [False, True])
class TestWorkersEnd:
    def loader(self, seed, persistent):
        return DataLoader(Pids(), batch_size=2, num_workers=2, seed=seed, persistent_workers=persistent)

    def test_when_the_loop_is_broken_off(self, seed, persistent):
        loader = self.loader(seed, persistent)
        for batch in loader:
            pids = set(batch.tolist())
            break
        assert gone(pids, 0.5 if persistent else 20.0) is not persistent
        loader.close()
        assert gone(pids)

    def test_when_the_epoch_is_over(self, seed, persistent):
        loader = self.loader(seed, persistent)
        before = set(psutil.Process().children())
        iterator = iter(loader)
        next(iterator)
        pids = {child.pid for child in set(psutil.Process().children()) - before}
        assert len(pids) == 2
        assert {pid for batch in iterator for pid in batch.tolist()} <= pids
        assert gone(pids, 0.5 if persistent else 20.0) is not persistent
        if persistent:
            assert {pid for batch in loader for pid in batch.tolist()} <= pids
        loader.close()
        assert gone(pids)

    def test_when_the_loader_is_collected(self, seed, persistent):
        loader = self.loader(seed, persistent)
        iterator = iter(loader)
        pids = set(next(iterator).tolist())
        del iterator, loader
        assert gone(pids)

    def test_when_the_loop_raises(self, seed, persistent):
        loader = self.loader(seed, persistent)
        pids = set()
        with pytest.raises(ZeroDivisionError), loader:
            for batch in loader:
                pids.update(batch.tolist())
                1 / 0
        assert gone(pids)

    def test_and_a_closed_loader_starts_new_ones(self, seed, persistent):
        loader = self.loader(seed, persistent)
        next(iterator := iter(loader))
        loader.close()
        with pytest.raises((RuntimeError, StopIteration)):
            for _ in range(10):
                next(iterator)
        assert len(list(loader)) == 12
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
        loader = DataLoader(Slow({seconds}), num_workers=2, seed={seed}, multiprocessing_context="{method}",
                            persistent_workers=True)
        for batch in loader:
            print("first", flush=True)
            {then}
"""


def script(tmp_path, then="input()", *, seconds=0.01, method="fork", seed=1):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT.format(seconds=seconds, seed=seed, method=method, then=then)))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in the background
    )
    assert process.stdout.readline() == "first\n"
    return process


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
            next(iterator)
            pids.extend(worker.pid for worker in iterator._workers)

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        time.sleep(0.2)  # a signal of the thread's end would have come
        assert set(torch.cat(list(iterator)).tolist()) <= set(pids)
        assert set(torch.cat(list(loader)).tolist()) <= set(pids)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_with_the_main_process_even_if_it_is_killed(tmp_path, method):
    process = script(tmp_path, method=method)
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


def test_with_ctrl_c_and_only_one_traceback(tmp_path):
    process = script(tmp_path, then="pass", seconds=0.05)
    pids = [child.pid for child in psutil.Process(process.pid).children()]
    for pid in (process.pid, *pids):  # a terminal sends it to all
        os.kill(pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert gone(pids)


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


def test_many_loaders_leave_nothing(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(12):
        iterator = iter(DataLoader(Drawing(), num_workers=2, seed=number))
        next(iterator)
        del iterator
    assert len(os.listdir("/proc/self/fd")) <= before + 1
