"""A slot is used again when its last holder is gone, and not before."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from lit_loader.memory import open_slots, slots
from lit_loader.memory.mapping import Mapping
from tests.support.memory_link import Link, large, num_maps


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def test_slot_is_reused_after_its_last_reference_and_not_before(link):
    first = link.send(large(1))
    address = first.data_ptr()
    second = link.send(large(2))
    assert link.slots._num_slots == 2
    del first
    third = link.send(large(3))
    assert link.slots._num_slots == 2
    assert third.data_ptr() == address
    assert (second == 2).all()


HOLDERS = {
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


def values(held):
    if isinstance(held, memoryview):
        return bytes(held)
    if isinstance(held, torch.UntypedStorage):
        return bytes(torch.empty(0, dtype=torch.uint8).set_(held).numpy())
    if isinstance(held, torch.Tensor | np.ndarray):
        return np.asarray(held.detach() if isinstance(held, torch.Tensor) else held).tobytes()
    return held._saved_self.numpy().tobytes()


@pytest.mark.parametrize("name", HOLDERS)
def test_everything_made_of_a_tensor_without_copying_keeps_its_slot(link, name):
    held = HOLDERS[name](link.send(large(1)))
    before = values(held)
    for number in range(10):
        link.send(large(number + 2))
    assert values(held) == before
    assert link.slots._num_slots == 2
    del held
    gc.collect()
    assert {link.send(large(5)).data_ptr() for _ in range(3)}
    both = [link.send(large(6)), link.send(large(7))]
    assert link.slots._num_slots == 2
    assert [float(t[0, 0]) for t in both] == [6, 7]


COPIES = {
    "clone": torch.clone,
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "another dtype": lambda t: t.double(),
    "a number": lambda t: t.sum(),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_tensor_lets_its_slot_go(link, name):
    copies = [COPIES[name](link.send(large(number))) for number in range(5)]
    assert link.slots._num_slots == 1
    for number, copied in enumerate(copies):
        assert torch.equal(copied, COPIES[name](large(number)))


def test_one_of_many_tensors_of_a_batch_keeps_the_slot_of_all(link):
    batch = link.send({"a": large(1), "b": [large(2), "text"], "c": large(3).numpy()})
    kept = batch["c"]
    del batch
    link.send(large(9))
    assert (kept == 3).all()
    assert link.slots._num_slots == 2


def test_edits_of_a_batch_show_in_no_later_one(link):
    for number in range(5):
        batch = link.send([large(number), large(-number)])
        assert (batch[0] == number).all()
        assert (batch[1] == -number).all()
        batch[0].fill_(77)
        batch[1].mul_(3).sub_(1)


class TestTheBoundOnWhatIsKept:
    def test_beyond_it_batches_are_copied_and_right(self):
        link = Link(kept_bytes=3 << 18)
        kept = [link.send([large(n), large(n + 0.5)]) for n in range(12)]
        assert link.slots._num_slots == 4  # three that are kept, and one to copy from
        for number, (one, other) in enumerate(kept):
            assert (one == number).all()
            assert (other == number + 0.5).all()
            one += 1  # a copy is the consumer's own as well
        assert all((other == n + 0.5).all() for n, (_, other) in enumerate(kept))
        assert link.slots.kept_bytes == 3 << 18
        del one, other, kept[1]
        assert link.slots.kept_bytes == 2 << 18
        kept.append(link.send(large(50)))
        assert link.slots.kept_bytes == 3 << 18
        kept.clear()
        assert link.slots.kept_bytes == 0
        link.close()

    def test_a_batch_larger_than_all_of_it_is_not_copied_if_nothing_else_is_kept(self):
        link = Link(kept_bytes=1)
        batch = link.send(large(1))
        assert link.slots.kept_bytes > 1
        other = link.send(large(2))
        assert link.slots.kept_bytes == 1 << 18
        assert (batch == 1).all()
        assert (other == 2).all()
        link.close()

    def test_additional_slots_free_their_memory(self, link):
        kept = [link.send(large(n, 1 << 18)) for n in range(40)]
        grown = link.used_bytes
        assert grown >= 40 << 20
        kept.clear()
        assert link.used_bytes <= 8 << 20
        kept = [link.send(large(n, 1 << 18)) for n in range(40)]
        assert link.slots._num_slots == 40
        assert link.used_bytes == grown
        assert all((t == n).all() for n, t in enumerate(kept))


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
    assert link.slots._num_slots == 30
    link.close()
    assert_nothing_is_left(link)


def assert_nothing_is_left(link):
    """Nothing of the file is mapped here but by the writer."""
    del link.writer
    gc.collect()
    assert num_maps(link.inode) == 0


def test_closed_slots_leave_what_is_held_and_free_the_rest(link):
    held = link.send(large(1, 1 << 16))
    let_go = link.send(large(2, 1 << 16))
    unopened = link.slots.ticket()
    link.write(unopened, lambda writer: large(3, 1 << 16))
    file = Mapping(link.file, 0)
    kept = link.used_bytes
    del let_go
    duplicate = os.dup(link.file._fd)
    try:
        link.close()
        assert link.slots.ticket() is None
        assert (held == 1).all()
        held += 1
        del unopened
        assert size_of(duplicate) < kept
        assert (held == 2).all()
        del held
        assert size_of(duplicate) in (0, 1 << 18)  # a slot that is let go after the end and was never opened stays
    finally:
        os.close(duplicate)
    del file
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
    held = link.send(large(1))
    tickets = [link.slots.ticket() for _ in range(2)]
    frames = [link.write(ticket, lambda writer: {"a": large(2), "b": large(3).numpy()}) for ticket in tickets]
    monkeypatch.setattr("lit_loader.memory.mapping._map", refuse)
    for ticket, frame in zip(tickets, frames, strict=True):
        batch = link.read(ticket, frame)
        assert (batch["a"] == 2).all()
        assert (batch["b"] == 3).all()
        batch["a"] += 1
    assert (held == 1).all()


def refuse(*_):
    raise OSError(12, "no memory")


def test_open_slots_returns_none_if_the_platform_refuses(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("lit_loader.memory.mapping._map", refuse)
        assert open_slots() is None
    with monkeypatch.context() as patch:
        patch.delattr("os.memfd_create")
        assert open_slots() is None
    with monkeypatch.context() as patch:
        patch.setattr("os.ftruncate", refuse)
        assert open_slots() is None


def test_slots_are_freed_in_any_thread_while_others_are_opened(link):
    """Every batch is looked at after the threads have had time to let others go."""
    wrong = []
    queue = []

    def let_go():
        while not stop.is_set():
            with contextlib.suppress(IndexError):
                queue.pop()
            time.sleep(1e-5)

    stop = threading.Event()
    threads = [threading.Thread(target=let_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    held = []
    for number in range(400):
        batch = link.send([large(number)])
        held.append((number, batch))
        if len(held) > 5:
            before, old = held.pop(number % 5)
            if not bool((old[0] == before).all()):
                wrong.append(before)
            queue.append(old)
            del old
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_slots_that_are_dropped_are_collected(link):
    reference = weakref.ref(Link().slots)
    gc.collect()
    assert reference() is None
