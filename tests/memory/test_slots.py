"""A slot is used again when its last reference is gone, and not before."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import time
import weakref

import numpy as np
import pytest
import torch

from lit_loader.memory import open_slots, slots
from lit_loader.memory.mapping import Mapping
from tests.support.background import running
from tests.support.memory_link import Link, large, num_maps


def test_slot_is_reused_after_its_last_reference_and_not_before(link):
    first = link.send(large(1))
    address = first.data_ptr()
    second = link.send(large(2))
    assert link.slots.num_slots == 2
    del first
    third = link.send(large(3))
    assert link.slots.num_slots == 2
    assert third.data_ptr() == address
    assert (second == 2).all()


VIEWS = {
    "slice": lambda t: t[3:5],
    "scalar index": lambda t: t[3, 4],
    "view": lambda t: t.view(-1),
    "transpose": lambda t: t.T,
    "unbind": lambda t: t.unbind()[2],
    "numpy": lambda t: t.numpy()[2:],
    "memoryview": lambda t: memoryview(t.numpy()),
    "storage": lambda t: t.untyped_storage(),
    "dlpack": lambda t: torch.from_dlpack(t),
    "numpy by dlpack": lambda t: np.from_dlpack(t),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "parameter": lambda t: torch.nn.Parameter(t),
    "subclass": lambda t: t.as_subclass(Marked),
    "set_": lambda t: torch.empty(0).set_(t),
    "saved by autograd": lambda t: (t * torch.ones((), requires_grad=True)).grad_fn,
    "as_strided": lambda t: t.as_strided((2, 2), (1, 1)),
    "view of another dtype": lambda t: t.view(torch.int32),
    "expand": lambda t: t[:1].expand(5, -1),
}


class Marked(torch.Tensor):
    pass


def values(view):
    if isinstance(view, torch.UntypedStorage):
        return view.tolist()
    if isinstance(view, (torch.Tensor, np.ndarray, memoryview)):
        return np.asarray(view.detach() if isinstance(view, torch.Tensor) else view).tobytes()
    return view._saved_self.numpy().tobytes()


@pytest.mark.parametrize("name", VIEWS)
def test_everything_made_of_a_tensor_without_copying_keeps_its_slot(link, name):
    view = VIEWS[name](link.send(large(1)))
    original_values = values(view)
    for number in range(10):
        link.send(large(number + 2))
    assert values(view) == original_values
    assert link.slots.num_slots == 2
    del view
    gc.collect()
    batches = [link.send(large(6)), link.send(large(7))]
    assert link.slots.num_slots == 2
    assert [float(batch[0, 0]) for batch in batches] == [6, 7]


COPIES = {
    "clone": torch.clone,
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "another dtype": lambda t: t.double(),
    "a number": lambda t: t.sum(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copy_of_a_tensor_does_not_keep_its_slot(link, name):
    copies = [COPIES[name](link.send(large(number))) for number in range(5)]
    assert link.slots.num_slots == 1
    for number, copied in enumerate(copies):
        assert torch.equal(copied, COPIES[name](large(number)))


def test_one_tensor_of_a_batch_keeps_the_slot_of_all(link):
    batch = link.send({"a": large(1), "b": [large(2), "text"], "c": large(3).numpy()})
    array = batch["c"]
    del batch
    link.send(large(9))
    assert (array == 3).all()
    assert link.slots.num_slots == 2


def test_edits_of_a_batch_do_not_show_in_later_ones(link):
    for number in range(5):
        batch = link.send([large(number), large(-number)])
        assert (batch[0] == number).all()
        assert (batch[1] == -number).all()
        batch[0].fill_(77)
        batch[1].mul_(3).sub_(1)


def test_batches_beyond_the_limit_are_copied():
    link = Link(kept_bytes=3 << 18)
    batches = [link.send([large(n), large(n + 0.5)]) for n in range(12)]
    assert link.slots.num_slots == 4  # three that are kept, and one to copy from
    for number, (first, second) in enumerate(batches):
        assert (first == number).all()
        assert (second == number + 0.5).all()
        first += 1  # a copy is the consumer's own as well
    assert all((second == n + 0.5).all() for n, (_, second) in enumerate(batches))
    assert link.slots.kept_bytes == 3 << 18
    del first, second, batches[1]
    assert link.slots.kept_bytes == 2 << 18
    batches.append(link.send(large(50)))
    assert link.slots.kept_bytes == 3 << 18
    batches.clear()
    assert link.slots.kept_bytes == 0
    link.close()


def test_single_batch_may_exceed_the_limit():
    link = Link(kept_bytes=1)
    batch = link.send(large(1))
    assert link.slots.kept_bytes > 1
    copied = link.send(large(2))
    assert link.slots.kept_bytes == 1 << 18
    assert (batch == 1).all()
    assert (copied == 2).all()
    link.close()


def test_additional_slots_free_their_memory(link):
    batches = [link.send(large(n, 1 << 18)) for n in range(40)]
    peak_bytes = link.used_bytes
    assert peak_bytes >= 40 << 20
    batches.clear()
    assert link.used_bytes <= 8 << 20
    batches = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.slots.num_slots == 40
    assert link.used_bytes == peak_bytes
    assert all((batch == n).all() for n, batch in enumerate(batches))


def test_without_a_free_slot_there_is_no_ticket(link, monkeypatch):
    monkeypatch.setattr(slots, "MAX_SLOTS", 3)
    tickets = [link.slots.ticket() for _ in range(4)]
    assert [ticket and ticket.number for ticket in tickets] == [0, 1, 2, None]
    del tickets[1]
    assert link.slots.ticket().number == 1


def test_many_tickets_that_are_never_opened_come_back(link):
    tickets = [link.slots.ticket() for _ in range(30)]
    for ticket in tickets:
        link.write(ticket, lambda writer: large(3, 1 << 16))
    assert link.used_bytes >= 30 << 18
    tickets.clear()
    assert len({link.slots.ticket().number for _ in range(3)}) == 1
    assert link.slots.num_slots == 30
    link.close()
    assert_nothing_is_left(link)


def assert_nothing_is_left(link):
    """Check that only the writer had the file mapped."""
    del link.writer
    gc.collect()
    assert num_maps(link.inode) == 0


def test_closed_slots_keep_batches_and_free_the_others(link):
    batch = link.send(large(1, 1 << 16))
    dropped = link.send(large(2, 1 << 16))
    unopened = link.slots.ticket()
    link.write(unopened, lambda writer: large(3, 1 << 16))
    mapping = Mapping(link.file, 0)
    bytes_before = link.used_bytes
    del dropped
    duplicate = os.dup(link.file.fd)
    try:
        link.close()
        assert link.slots.ticket() is None
        assert (batch == 1).all()
        batch += 1
        del unopened
        assert size_of(duplicate) < bytes_before
        assert (batch == 2).all()
        del batch
        assert size_of(duplicate) in (0, 1 << 18)  # a slot that was dropped after the end, and never opened, stays
    finally:
        os.close(duplicate)
    del mapping
    assert_nothing_is_left(link)


def size_of(fd):
    return os.fstat(fd).st_blocks * 512


def test_opening_a_batch_of_closed_slots_raises(link):
    ticket = link.slots.ticket()
    frame = link.write(ticket, lambda writer: large(1))
    link.close()
    with pytest.raises(RuntimeError, match="closed"):
        link.read(ticket, frame)


def test_batches_are_copied_if_mapping_fails(link, monkeypatch):
    earlier_batch = link.send(large(1))
    tickets = [link.slots.ticket() for _ in range(2)]
    frames = [link.write(ticket, lambda writer: {"a": large(2), "b": large(3).numpy()}) for ticket in tickets]
    monkeypatch.setattr("lit_loader.memory.mapping._map", refuse)
    for ticket, frame in zip(tickets, frames, strict=True):
        batch = link.read(ticket, frame)
        assert (batch["a"] == 2).all()
        assert (batch["b"] == 3).all()
        batch["a"] += 1
    assert (earlier_batch == 1).all()


def refuse(*_):
    raise OSError(12, "no memory")


@pytest.mark.parametrize("name", ["lit_loader.memory.mapping._map", "os.ftruncate", "os.memfd_create"])
def test_open_slots_returns_none_if_the_platform_refuses(monkeypatch, name):
    monkeypatch.setattr(name, refuse)
    assert open_slots() is None


def test_slots_are_freed_in_any_thread_while_others_are_opened(link):
    wrong = []
    dropped = []

    def drop(stop):
        while not stop.is_set():
            with contextlib.suppress(IndexError):
                dropped.pop()
            time.sleep(1e-5)

    batches = []
    with running(drop, drop, drop):
        for number in range(400):
            batches.append((number, link.send([large(number)])))
            if len(batches) > 5:
                # Checked late, after the threads had time to free other slots.
                value, batch = batches.pop(number % 5)
                if not bool((batch[0] == value).all()):
                    wrong.append(value)
                dropped.append(batch)
                del batch
    assert wrong == []


def test_unused_slots_are_collected():
    reference = weakref.ref(Link().slots)
    gc.collect()
    assert reference() is None
