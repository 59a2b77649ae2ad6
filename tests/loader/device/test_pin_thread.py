"""Page-locking one batch ahead in a thread: the same batches and errors in their order, nothing lost, nothing left."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref

import pytest
import torch

from lit_loader.engine import EndOfEpoch
from lit_loader.loader.device import pin_thread
from lit_loader.loader.device.pin_thread import PinnedBatches
from tests.support.simulated_device import SlotRun


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    """Let the thread find an accelerator; return the devices that were made the current one."""
    devices = []
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    yield devices
    wait_until(lambda: not threads())


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "lit_loader-pin"]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def copy_of(batch):
    return {**batch, "image": batch["image"].clone(), "thread": threading.current_thread().name}


def events(batches):
    numbers = []
    while True:
        try:
            numbers.append(batches.next_batch()["number"])
        except EndOfEpoch:
            return numbers
        except ValueError as error:
            numbers.append(str(error))


@pytest.mark.parametrize("ready", [0.0, 0.5, 1.0])
def test_batches_and_errors_come_in_their_order(ready):
    slots = SlotRun([1, 2, ValueError("third"), 3, ValueError("fifth"), 4], ready=ready)
    batches = PinnedBatches(slots, copy_of)
    assert events(batches) == [1, 2, "third", 3, "fifth", 4]
    with pytest.raises(EndOfEpoch):
        batches.next_batch()
    batches.close()
    assert slots.closed
    gc.collect()
    wait_until(lambda: slots.slots_out == 0)


def test_the_next_batch_is_page_locked_while_this_one_is_used(accelerator):
    started = threading.Event()
    go_on = threading.Event()

    def pin(batch):
        if batch["number"] == 2:
            started.set()
            assert go_on.wait(10)
        return copy_of(batch)

    slots = SlotRun([1, 2], ready=1.0)
    batches = PinnedBatches(slots, pin)
    first = batches.next_batch()  # returns while the second is being page-locked
    assert started.wait(10)
    assert first["thread"] == threading.current_thread().name
    go_on.set()
    second = batches.next_batch()
    assert (second["number"], second["thread"]) == (2, "lit_loader-pin")
    assert second["image"].tolist() == [2, 2, 2]
    assert accelerator == [3]  # the consumer's device
    wait_until(lambda: slots.slots_out == 0)  # each slot is free when its batch was copied
    batches.close()


def test_without_workers_there_is_no_thread():
    batches = PinnedBatches(SlotRun([1, 2, 3], ready=0.0), copy_of)
    assert events(batches) == [1, 2, 3]
    assert threads() == []
    batches.close()


@pytest.mark.parametrize("ready", [0.0, 1.0])
def test_an_error_of_page_locking_is_raised_for_its_batch_alone(ready):
    def pin(batch):
        if batch["number"] == 2:
            raise ValueError("cannot be page-locked")
        return copy_of(batch)

    batches = PinnedBatches(SlotRun([1, 2, 3], ready=ready), pin)
    assert events(batches) == [1, "cannot be page-locked", 3]
    batches.close()


def test_batch_is_page_locked_by_consumer_when_thread_fails():
    thread_failed = threading.Event()

    def pin(batch):
        if threading.current_thread().name == "lit_loader-pin":
            thread_failed.set()
            raise SystemExit(5)
        return copy_of(batch)

    batches = PinnedBatches(SlotRun([1, 2], ready=1.0), pin)
    batches.next_batch()
    assert thread_failed.wait(10)
    assert events(batches) == [2]
    batches.close()


def take_despite_interrupts(batches, count):
    numbers = []
    while len(numbers) < count:
        with contextlib.suppress(KeyboardInterrupt):
            numbers.append(batches.next_batch()["number"])
    return numbers


def test_ctrl_c_in_engine_or_page_locking_loses_no_batch():
    interrupts = [KeyboardInterrupt()]

    def pin(batch):
        if interrupts and threading.current_thread() is threading.main_thread():
            raise interrupts.pop()
        return copy_of(batch)

    batches = PinnedBatches(SlotRun([1, KeyboardInterrupt(), 2, 3], ready=1.0), pin)
    assert take_despite_interrupts(batches, 3) == [1, 2, 3]
    assert not interrupts
    batches.close()


def test_ctrl_c_before_thread_gets_its_batch_loses_no_batch(monkeypatch):
    start_thread = pin_thread._start_thread
    interrupts = [KeyboardInterrupt()]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        return start_thread()

    monkeypatch.setattr(pin_thread, "_start_thread", interrupted)
    batches = PinnedBatches(SlotRun([1, 2, 3], ready=1.0), copy_of)
    assert take_despite_interrupts(batches, 3) == [1, 2, 3]
    batches.close()


def test_closing_ends_the_thread_and_frees_the_batches():
    slots = SlotRun([1, 2, 3], ready=1.0)
    batches = PinnedBatches(slots, copy_of)
    batches.next_batch()
    reference = weakref.ref(batches)
    batches.close()
    del batches
    wait_until(lambda: not threads())
    assert reference() is None
    wait_until(lambda: slots.slots_out == 0)


def test_a_fork_page_locks_without_the_thread(monkeypatch):
    batches = PinnedBatches(SlotRun([1, 2, 3], ready=1.0), copy_of)
    batches.next_batch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        batch = batches.next_batch()
        assert (batch["number"], batch["thread"]) == (3, threading.current_thread().name)
    batches.close()
