"""Ctrl-C leaves a loader that can be used, or one that says that it cannot."""

from __future__ import annotations

import _thread
import signal
import threading
import time

import pytest

from lit_loader import DataLoader
from lit_loader.engine.channels import FrameReader
from lit_loader.memory import Slots
from tests.support.scheduled_set import Draws
from tests.support.slot_sets import Large, loader_of
from tests.support.toys import Slow, plain


@pytest.mark.parametrize("persistent", [False, True])
def test_ctrl_c_in_the_middle_of_a_message_never_gives_a_shifted_one(monkeypatch, persistent):
    """After an interrupt the position in the pipe must be right, or every later batch would be garbage."""
    frames = []

    def interrupted(self):
        frame = receive(self)
        if frame is not None and len(frames) < 6:
            frames.append(frame)
            if len(frames) == 6:
                raise KeyboardInterrupt  # the frame is lost
        return frame

    receive = FrameReader.receive
    monkeypatch.setattr(FrameReader, "receive", interrupted)
    expected = [plain(batch) for batch in DataLoader(Draws(), batch_size=2, seed=0)]
    with DataLoader(Draws(), batch_size=2, num_workers=1, seed=0, persistent_workers=persistent) as loader:
        iterator = iter(loader)
        actual = []
        with pytest.raises(KeyboardInterrupt):
            while True:
                actual.append(plain(next(iterator)))
        assert actual == expected[: len(actual)]
        with pytest.raises(RuntimeError, match="were closed"):
            next(iterator)
        loader.set_epoch(0)
        assert [plain(batch) for batch in loader] == expected


def test_ctrl_c_while_a_batch_is_waited_for_keeps_the_workers_and_loses_nothing():
    with DataLoader(Slow(0.3, 6), num_workers=1, seed=0, persistent_workers=True) as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.1, _thread.interrupt_main)
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, handler)
        assert [int(batch) for batch in iterator] == [1, 2, 3, 4, 5]
        assert int(next(iter(loader))) == 0


def test_ctrl_c_ends_the_wait_for_workers_of_a_collected_iterator():
    """Workers may finish their present sample within five seconds, but not after a Ctrl-C."""
    iterator = iter(DataLoader(Slow(30.0), num_workers=1, seed=0, timeout=0.2))
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    start = time.monotonic()
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            del iterator
            time.sleep(60)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - start < 4


def test_ctrl_c_while_a_batch_gives_its_slot_back_comes_again(monkeypatch):
    """Python would print it and lose it: a slot is given back by a finalizer."""
    free = Slots.free
    interrupts = [KeyboardInterrupt()]

    def interrupted(slots, number):
        if interrupts:
            raise interrupts.pop()
        free(slots, number)

    with loader_of(Large(40), num_workers=1) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        monkeypatch.setattr(Slots, "free", interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                del batch
                time.sleep(5)
        finally:
            signal.signal(signal.SIGINT, handler)
        assert len(list(iterator)) == 9


@pytest.mark.parametrize("worker_method", ["thread", "multiprocessing"])
def test_a_signal_handler_takes_the_batch_that_is_waited_for_and_the_wait_goes_on_for_the_next(worker_method):
    with DataLoader(Slow(0.2, 6), num_workers=1, seed=0, worker_method=worker_method) as loader:
        iterator = iter(loader)
        actual = [int(next(iterator))]  # a signal while processes are forked would fork within the hooks of a fork
        handler = signal.signal(signal.SIGALRM, lambda *_: actual.append(int(next(iterator))))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            actual += map(int, iterator)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
    assert actual == list(range(6))
