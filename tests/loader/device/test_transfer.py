"""The order of events between slots, copies and steps: right whatever is late, and each mechanism is needed."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lit_loader.loader.device import MAX_QUEUED, DevicePrefetcher, PendingTransfer, transfer
from tests.support.simulated_device import Consumer, SimulatedDevice, SimulatedEvent, SlotRun, simulate

SEEDS = range(60)


def script(length=14):
    return list(range(1, length + 1))


def with_errors():
    return [1, 2, ValueError("third"), 3, KeyError("fifth"), OSError("sixth"), 4, 5, 6, StopIteration("tenth"), 7]


def expected(items):
    return [str(item) if isinstance(item, Exception) else item for item in items]


def faults(kind=DevicePrefetcher, items=script):
    """Return what goes wrong over many chances: with memory, and with the sequence of events."""
    actual = set()
    for seed in SEEDS:
        try:
            consumer, _, _ = simulate(seed, items(), kind=kind)
        except Exception as error:
            actual.add(f"raised {type(error).__name__}")
            continue
        actual.update(fault.partition(": ")[2] for fault in consumer.faults)
        if consumer.events != expected(items()):
            actual.add("another sequence of events")
    return actual


@pytest.mark.parametrize("items", [script, with_errors])
def test_late_copies_never_change_batches_or_their_order(items):
    assert faults(items=items) == set()


def test_every_slot_is_let_go_in_the_end():
    for seed in SEEDS:
        consumer, device, slots = simulate(seed, with_errors())
        del consumer
        assert slots.slots_out == 0
        assert slots.closed
        assert device.copies == 7


# -- each mechanism is taken away ---------------------------------------------------------------------------


def test_a_source_that_is_not_kept_until_its_copy_has_ended_is_noticed(monkeypatch):
    monkeypatch.setattr(PendingTransfer, "is_done", True)
    assert faults() == {"its slot was overwritten before its copy had ended"}


def test_a_consumer_that_does_not_wait_for_the_copy_is_noticed(monkeypatch):
    monkeypatch.setattr(SimulatedDevice, "wait_event", lambda device, event: None)
    assert "read before its copy had ended" in faults()


def test_memory_that_is_not_kept_for_the_consumers_stream_is_noticed(monkeypatch):
    monkeypatch.setattr(SimulatedDevice, "record_stream", lambda device, value: None)
    assert faults() & {"its memory was used again while it was read", "read before its copy had ended"}


def test_a_host_that_runs_on_does_not_fill_the_device(monkeypatch):
    def blocks():
        device = SimulatedDevice(pace=0.0)  # nothing runs unless it is waited for
        run = DevicePrefetcher(SlotRun(script(40), ready=1.0), None, device)
        Consumer(run, device, random.Random(0)).consume()
        run.close()
        return device.num_blocks

    assert blocks() <= MAX_QUEUED + 5  # and the batches ahead, in the consumer, and not yet given back
    monkeypatch.setattr(transfer, "MAX_QUEUED", 1000)
    assert blocks() > 20


# -- looking ahead ------------------------------------------------------------------------------------------


def run_over(items, *, ready=1.0, device=None):
    device = device or SimulatedDevice()
    slots = SlotRun(items, ready=ready)
    return DevicePrefetcher(slots, None, device), slots, device


def test_the_next_batch_is_copied_before_this_one_is_returned_if_it_is_ready():
    run, slots, device = run_over(script())
    assert run.next_batch()["number"] == 1
    assert (slots.asked, device.copies) == (2, 2)
    run.close()


def test_prefetching_does_not_wait_for_the_engine():
    run, slots, device = run_over(script(), ready=0.0)
    for number in (1, 2, 3):
        assert run.next_batch()["number"] == number
        assert (slots.asked, device.copies) == (number, number)
    run.close()


def test_an_interrupt_while_looking_ahead_loses_no_batch():
    run, _, _ = run_over([1, KeyboardInterrupt(), 2])
    with pytest.raises(KeyboardInterrupt):
        run.next_batch()
    assert [run.next_batch()["number"] for _ in range(2)] == [1, 2]
    run.close()


def test_an_interrupt_while_waiting_for_the_device_loses_no_batch(monkeypatch):
    run, _, _ = run_over(script(), device=SimulatedDevice(pace=0.0))
    actual = [run.next_batch()["number"] for _ in range(MAX_QUEUED)]

    def interrupted(event):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedEvent, "synchronize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.next_batch()
    actual += [run.next_batch()["number"] for _ in range(2)]
    assert actual == script(MAX_QUEUED + 2)
    run.close()


def test_time_in_which_the_device_does_earlier_work_is_noted(monkeypatch):
    synchronize = SimulatedEvent.synchronize

    def slow(event):
        time.sleep(0.01)
        synchronize(event)

    monkeypatch.setattr(SimulatedEvent, "synchronize", slow)
    run, _, _ = run_over(script(), device=SimulatedDevice(pace=0.0))
    for _ in range(MAX_QUEUED):
        run.next_batch()
    assert run.device_wait_s == 0
    run.next_batch()
    assert run.device_wait_s >= 0.01
    run.close()


def test_to_close_waits_for_the_copy_of_the_batch_ahead_and_lets_it_go():
    device = SimulatedDevice(pace=0.0)
    run, slots, _ = run_over(script(), device=device)
    run.next_batch()
    assert slots.slots_out == 2
    assert device.num_run["side"] == 0
    run.close()
    assert device.num_run["side"] == 4  # two copies, two events
    assert slots.slots_out == 0
    assert slots.closed


@pytest.mark.parametrize("question", ["is_capturing", "wait"])
def test_a_device_that_has_failed_is_not_waited_for_and_its_sources_are_kept(monkeypatch, question):
    run, slots, device = run_over(script())
    run.next_batch()

    def fails(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        if question == "wait":
            patch.setattr(PendingTransfer, "synchronize", fails)
        else:
            patch.setattr(device, "is_capturing", fails)
        run.close()
    assert slots.closed
    assert slots.slots_out > 0
    other, _, _ = run_over(script(), device=device)
    other.close()  # for example, another thread had captured, and the device is well
    assert slots.slots_out == 0
    assert transfer._unfinished == set()


def test_while_a_graph_is_captured_close_asks_no_event_and_keeps_the_sources_until_later():
    run, slots, device = run_over(script(), device=SimulatedDevice(pace=0.0))
    run.next_batch()
    device.capturing = True
    run.close()
    assert slots.closed
    assert slots.slots_out == 2  # the copies out of them may be under way
    device.capturing = False
    other, other_slots, _ = run_over(script(), device=device)
    other.next_batch()
    other.close()
    assert (slots.slots_out, other_slots.slots_out) == (0, 0)


def test_an_interrupt_while_closing_keeps_the_sources_until_later(monkeypatch):
    run, slots, device = run_over(script(), device=SimulatedDevice(pace=0.0))
    run.next_batch()

    def interrupted(pending):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PendingTransfer, "synchronize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.close()
    assert slots.closed
    assert slots.slots_out == 2  # the copies out of them may be under way
    other, _, _ = run_over(script(), device=device)
    other.close()
    assert slots.slots_out == 0


def test_a_fork_leaves_the_device_and_the_batch_ahead_to_its_parent(monkeypatch):
    run, slots, device = run_over(script(), device=SimulatedDevice(pace=0.0))
    run.next_batch()
    copies = device.copies
    kept_in_fork = []
    monkeypatch.setattr(transfer, "_kept_in_fork", kept_in_fork)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert run.next_batch()["number"] == 3  # the engine decides which batches a fork gets
    run.close()
    assert (device.copies, device.num_run["side"], slots.slots_out) == (copies, 0, 2)  # nothing freed, nothing run
    kept_in_fork.clear()


# -- moved objects ------------------------------------------------------------------------------------------


class Whole:
    """A batch type that moves as a whole."""

    def __init__(self):
        self.moved_to = []

    def to(self, device):
        self.moved_to.append(device)
        return self


def begun(batch, device, **settings):
    pending = PendingTransfer(batch, device, **settings)
    pending.start()
    return pending


def test_types_that_hide_their_tensors_are_moved_when_they_are_handed_over(monkeypatch):
    device = SimulatedDevice()
    hiding = Whole()
    sparse = torch.eye(2).to_sparse()
    pending = begun({"hiding": hiding, "sparse": sparse, "plain": torch.ones(2)}, device)
    assert hiding.moved_to == []
    assert device.copies == 1
    late = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_: late.append(tensor.layout) or tensor)
    actual = pending.finish()
    assert actual["hiding"] is hiding
    assert hiding.moved_to == [device.device]
    assert late == [torch.sparse_coo, torch.strided]  # the second is there already


class Opaque:
    """Shows neither its tensor nor a way to move it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Carrying(dict):
    """A mapping with an attribute beside its items."""


@dataclass
class Fields:
    image: torch.Tensor


class Forgetful(Whole):
    """Leaves an array on the CPU when it moves."""

    def __init__(self):
        super().__init__()
        self.array = np.ones(2)


@pytest.mark.parametrize("from_slots", [False, True])
def test_unmoved_objects_of_a_batch_in_slots_are_copied(from_slots, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_: tensor)
    hidden = Opaque(torch.ones(2))
    array = np.ones(2)
    forgetful = Forgetful()
    carrying = Carrying(image=torch.ones(3))
    fields = Fields(torch.ones(3))
    carrying.extra = np.ones(2)
    fields.extra = np.ones(2)
    batch = {
        "again": hidden,
        "meta": hidden,
        "array": array,
        "carrying": carrying,
        "fields": fields,
        "forgetful": forgetful,
        "name": "a",
        "none": None,
    }
    actual = begun(batch, SimulatedDevice(), from_slots=from_slots).finish()
    for mine, original in (
        (actual["meta"].tensor, hidden.tensor),
        (actual["array"], array),
        (actual["carrying"].extra, carrying.extra),
        (actual["fields"].extra, fields.extra),
        (actual["forgetful"].array, forgetful.array),
    ):
        assert (mine is not original) is from_slots
        assert (np.asarray(mine) == 1).all()
    assert actual["again"] is actual["meta"]
    assert (actual["name"], actual["none"]) == ("a", None)


def test_a_source_is_not_lost_by_an_interrupt_while_its_copies_are_queued():
    run, slots, device = run_over(script(), device=SimulatedDevice(pace=0.0))
    record = device.record_event
    interrupts = [KeyboardInterrupt()]

    def interrupted():
        if interrupts:
            raise interrupts.pop()
        return record()

    device.record_event = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.next_batch()
    assert not device.streams["side"]  # all queued copies have ended
    run.close()
    assert slots.slots_out == 0


def test_a_source_is_kept_until_what_is_moved_at_delivery_is_copied_too(monkeypatch):
    device = SimulatedDevice(pace=0.0)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_: tensor)
    pending = begun({"plain": torch.ones(2), "hiding": Whole()}, device)
    device.drain()
    assert not pending.is_done  # a part is copied at delivery
    pending.finish()
    assert device.streams["main"]  # among them the event behind the late copies
    while device._advance("side"):
        pass
    assert not pending.is_done
    device.drain()
    assert pending.is_done


def test_copies_begun_before_an_error_have_ended_when_it_is_raised():
    device = SimulatedDevice(pace=0.0)
    copy_to_device = device.copy_to_device

    def copy_one(tensor):
        if device.copies:
            raise ValueError("cannot be copied")
        return copy_to_device(tensor)

    device.copy_to_device = copy_one
    with pytest.raises(ValueError, match="cannot be copied"):
        begun([torch.ones(2), torch.ones(2)], device)
    assert device.copies == 1
    assert not device.streams["side"]
