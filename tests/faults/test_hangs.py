"""A worker that hangs prints its stacks, is killed, and is replaced or reported."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import warnings
from functools import partial

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.engine.recovery import HangWatch
from lit_loader.errors import WorkerDiedError, WorkerRestartWarning
from tests.support.dying_sets import Dying, first_time

SIZE = 32
BATCH = 4


class Hanging(Dataset):
    """Random numbers; one index hangs, the first time or always."""

    def __init__(self, marks, at, *, how="sleep", always=False):
        self.marks = marks
        self.at = at
        self.how = how
        self.always = always

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        drawn = torch.rand(3)
        if index == self.at and (self.always or first_time(self.marks, "hang")):
            a_frame_to_be_seen(self.how)
        return drawn


def a_frame_to_be_seen(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        if how == "sleep":
            time.sleep(600)


@pytest.mark.parametrize(
    ("method", "how"),
    [("fork", "sleep"), pytest.param("fork", "spin", marks=pytest.mark.soak), ("fork", "stop"), ("forkserver", "spin")],
)
def test_hung_worker_is_replaced_and_its_work_done_again(tmp_path, capfd, method, how):
    expected = list(DataLoader(Hanging(tmp_path, -1), batch_size=BATCH, seed=5))
    loader = DataLoader(
        Hanging(tmp_path, 13, how=how),
        batch_size=BATCH,
        seed=5,
        num_workers=2,
        hang_timeout_s=1.0,
        multiprocessing_context=method,
    )
    with pytest.warns(WorkerRestartWarning, match=r"hung: .* longer than hang_timeout_s=1, and was killed"):
        batches = list(loader)
    assert all(map(torch.equal, batches, expected))
    assert len(batches) == len(expected)
    printed = capfd.readouterr().err
    assert "Its stacks:" in printed
    if how != "stop":  # a stopped process prints nothing
        assert "a_frame_to_be_seen" in printed


def test_slow_batch_is_not_a_hang(tmp_path):
    class Slow(Hanging):
        def __getitem__(self, index):
            time.sleep(0.15)
            return super().__getitem__(index)

    loader = DataLoader(Slow(tmp_path, -1), batch_size=8, seed=5, sampler=range(16), num_workers=2, hang_timeout_s=0.9)
    assert len(list(loader)) == 2  # each batch takes 1.2 s, each sample 0.15


def test_worker_that_always_hangs_uses_up_the_restarts_and_raises(tmp_path):
    loader = DataLoader(
        Hanging(tmp_path, 2, always=True),
        batch_size=BATCH,
        seed=5,
        num_workers=1,
        hang_timeout_s=0.5,
        max_worker_restarts=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        with pytest.raises(WorkerDiedError, match=r"hung.*has used up max_worker_restarts=1"):
            list(loader)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_hang_without_a_seed_raises(tmp_path, monkeypatch, capfd, has_memfd):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if not has_memfd:
        monkeypatch.setattr(os, "memfd_create", refuse)
    loader = DataLoader(Hanging(tmp_path, 9), batch_size=BATCH, num_workers=2, hang_timeout_s=1.0)
    with pytest.raises(WorkerDiedError, match=r"exited unexpectedly: hung: .*hang_timeout_s=1"):
        list(loader)
    assert "a_frame_to_be_seen" in capfd.readouterr().err


def _hang_in_init(marks, worker_id):
    if first_time(marks, "init"):
        a_frame_to_be_seen("sleep")


@contextlib.contextmanager
def full_stderr():
    """Standard error is a full pipe without a reader; it is closed after 20 s, which ends a blocked write."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    rescue = threading.Timer(20, os.close, [reader])
    rescue.start()
    with open(writer, "w", buffering=1) as stream, contextlib.redirect_stderr(stream):
        yield
    rescue.cancel()
    with contextlib.suppress(OSError):
        os.close(reader)


def print_warning(message, *_):
    sys.stderr.write(str(message))


@pytest.mark.parametrize("how", ["hang", "kill"])
def test_full_standard_error_does_not_block(tmp_path, how):
    dataset = Dying(SIZE, tmp_path, {9: "kill"}) if how == "kill" else Hanging(tmp_path, 9)
    loader = DataLoader(dataset, batch_size=BATCH, seed=5, num_workers=2, hang_timeout_s=1.0)
    start = time.monotonic()
    with full_stderr(), warnings.catch_warnings():
        warnings.simplefilter("default", WorkerRestartWarning)
        warnings.showwarning = print_warning  # pytest's would record it
        assert len(list(loader)) == SIZE // BATCH
    assert time.monotonic() - start < 10


def test_worker_that_hangs_in_its_init_function_is_replaced(tmp_path, capfd):
    loader = DataLoader(
        Hanging(tmp_path, -1),
        batch_size=BATCH,
        seed=5,
        num_workers=1,
        hang_timeout_s=1.0,
        worker_init_fn=partial(_hang_in_init, tmp_path),
    )
    with pytest.warns(WorkerRestartWarning, match="hung"):
        assert len(list(loader)) == SIZE // BATCH
    assert "_hang_in_init" in capfd.readouterr().err


def test_idle_workers_do_not_hang(tmp_path):
    loader = DataLoader(
        Hanging(tmp_path, -1), batch_size=BATCH, seed=5, num_workers=2, hang_timeout_s=0.3, persistent_workers=True
    )
    with loader:
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number == 1:
                    time.sleep(0.5)  # the consumer is busy, and the workers have made all they may


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hang_timeout_s": 3.0}, "hang_timeout_s=3.0 needs worker processes"),
        ({"hang_timeout_s": 3.0, "num_workers": 2, "worker_method": "thread"}, "needs worker processes"),
        ({"hang_timeout_s": 0, "num_workers": 2}, "hang_timeout_s=0 must be a number of seconds above 0"),
        ({"hang_timeout_s": float("nan"), "num_workers": 2}, "hang_timeout_s=nan must be"),
        ({"max_worker_restarts": 2, "num_workers": 2}, "needs worker processes .* seed="),
        ({"max_worker_restarts": 2, "seed": 1}, "needs worker processes"),
        ({"max_worker_restarts": -1, "num_workers": 2, "seed": 1}, "max_worker_restarts=-1 must be an int"),
        ({"max_worker_restarts": True, "num_workers": 2, "seed": 1}, "max_worker_restarts=True must be"),
    ],
)
def test_settings_without_effect_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        DataLoader(range(8), **arguments)


def test_unwatched_time_does_not_count_as_a_hang(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = HangWatch(2, 10.0)
    watch.table.begin(1)
    for _ in range(9):
        watch.look()
        now[0] += 1.0
    assert watch.seconds_left() == 2.0
    now[0] += 3600.0  # everything was stopped for an hour
    watch.look()
    assert not watch.has_hung(1)
    for _ in range(2):
        now[0] += 1.0
        watch.look()
    assert watch.has_hung(1)
    assert not watch.has_hung(0)
    watch.table.begin(1)  # the next sample
    watch.look()
    assert not watch.has_hung(1)
    watch.forget(1)
    assert watch.seconds_left() == 10.0
    watch.table.close()
    watch.table.close()
