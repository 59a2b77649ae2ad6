"""Page-locked slots wait for the copies out of them; told by a fake lock that notes everything."""

from __future__ import annotations

import os

import pytest

from lit_loader.transport import slots
from tests.transport.link import Link, large


class FakeLock:
    """Page-locks nothing, notes what it is asked, and has fences that pass when they are told to."""

    def __init__(self, *, grants=True):
        self.grants, self.locked, self.log, self.fences = grants, {}, [], []

    def lock(self, address, num_bytes):
        assert address not in self.locked, "locked twice"
        self.log.append(("lock", num_bytes))
        if self.grants:
            self.locked[address] = num_bytes
        return self.grants

    def unlock(self, address):
        self.log.append(("unlock", self.locked.pop(address)))

    def fence(self):
        fence = Fence()
        self.fences.append(fence)
        return fence

    def pass_all(self):
        for fence in self.fences:
            fence.passed = True


class Fence:
    passed, num_asked = False, 0

    def __call__(self):
        self.num_asked += 1
        return self.passed


@pytest.fixture
def lock():
    return FakeLock()


@pytest.fixture
def link(lock):
    link = Link(page_lock=lock)
    yield link
    lock.pass_all()
    link.close()
    assert lock.locked == {}


def test_a_slot_is_not_used_again_before_its_fence_has_passed(link, lock):
    link.send(large(1))
    first = set(link.slots._mappings)
    kept = [link.send(large(2))]
    assert set(link.slots._mappings) > first
    link.send(large(3))
    assert link.slots.num_slots == 3  # two of them fenced
    lock.fences[0].passed = True
    ticket = link.slots.ticket()
    assert {ticket.number} == first
    assert (kept[0] == 2).all()


def test_a_fence_is_made_when_the_last_view_dies_and_not_before(link, lock):
    batch = link.send([large(1), large(2)])
    view = batch[1][3:]
    del batch
    assert lock.fences == []
    del view
    assert len(lock.fences) == 1


def test_slots_that_were_never_opened_have_no_fence(link, lock):
    for _ in range(3):
        ticket = link.slots.ticket()
        link.write(ticket, lambda place: large(1))
        del ticket
    assert lock.fences == []
    assert link.slots.num_slots == 1


def test_memory_is_locked_once_for_each_slot_and_anew_when_a_batch_is_larger(link, lock):
    def send(size):
        link.send(large(1, size))
        lock.pass_all()

    for _ in range(5):
        send(1 << 12)
    assert lock.log == [("lock", 1 << 21)]
    send(1 << 20)
    assert lock.log[1:] == [("unlock", 1 << 21), ("lock", 1 << 22)]
    send(1 << 12)
    assert len(lock.log) == 3


def test_memory_that_cannot_be_locked_is_used_without_fences_and_not_asked_for_again():
    lock = FakeLock(grants=False)
    link = Link(page_lock=lock)
    for number in range(5):
        assert (link.send(large(number)) == number).all()
    assert lock.log == [("lock", 1 << 21)]
    assert lock.fences == []
    assert link.slots.num_slots == 1
    link.close()


def test_nothing_to_wait_for_lets_a_slot_go_at_once(link, lock):
    lock.fence = lambda: None
    for number in range(3):
        link.send(large(number))
    assert link.slots.num_slots == 1


def test_copies_beyond_the_bound_lock_nothing():
    lock = FakeLock()
    link = Link(page_lock=lock, kept_bytes=1)
    kept = [link.send(large(n)) for n in range(4)]
    assert len(lock.log) == 1
    assert [float(t[0, 0]) for t in kept] == [0, 1, 2, 3]
    lock.pass_all()
    kept.clear()
    lock.pass_all()
    link.close()


def test_closing_waits_for_fences_and_unlocks_before_memory_goes(link, lock, monkeypatch):
    link.send(large(1))
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        assert len(lock.locked) == 1, "unlocked too early"
        if len(waited) == 4:
            lock.pass_all()

    monkeypatch.setattr(slots.time, "sleep", sleep)
    link.close()
    assert len(waited) == 4
    assert lock.log[-1] == ("unlock", 1 << 21)


def test_closing_does_not_wait_for_ever_and_leaves_what_a_device_may_read(link, lock, monkeypatch):
    link.send(large(1))
    monkeypatch.setattr(slots, "_FENCE_S", 0.01)
    link.close()
    assert len(lock.locked) == 1
    lock.pass_all()
    link.slots._look_at_fences()
    assert lock.locked == {}


def test_a_batch_that_dies_after_the_end_waits_too(link, lock, monkeypatch):
    batch = link.send(large(1))
    link.close()
    assert len(lock.locked) == 1
    monkeypatch.setattr(slots.time, "sleep", lambda seconds: lock.pass_all())
    del batch
    assert lock.fences[0].num_asked >= 2
    assert lock.locked == {}


def test_before_a_fork_memory_is_unlocked_and_then_copied(link, lock, monkeypatch):
    held = [link.send(large(n)) for n in range(2)]
    made_private = mapping_spy(monkeypatch, lock)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert made_private == [1, 0]  # locked slots that were left each time
    assert lock.locked == {}
    for number in range(5):
        link.send(large(number + 5))
    assert [float(t.mean()) for t in held] == [0, 1]


def mapping_spy(monkeypatch, lock):
    found = []
    kind = slots.Mapping
    make_private = kind.make_private

    def spied(self, stretches):
        found.append(len(lock.locked))
        make_private(self, stretches)

    monkeypatch.setattr(kind, "make_private", spied)
    return found


def test_what_a_device_still_reads_when_the_process_forks_is_not_written_to(link, lock):
    """Unlocking need not wait for the copies; the slot does."""
    held = link.send(large(1))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(lock.fences) == 1
    number = link.slots.ticket().number
    assert number == 1
    lock.pass_all()
    assert {link.slots.ticket().number, link.slots.ticket().number} & {0}
    assert (held == 1).all()


def test_memory_that_a_slot_gives_back_is_unlocked_first(link, lock, monkeypatch):
    kept = [link.send(large(n)) for n in range(12)]
    given, give_back = [], slots.Mapping.give_back

    def spied(self):
        given.append(self.address in lock.locked)
        give_back(self)

    monkeypatch.setattr(slots.Mapping, "give_back", spied)
    kept.clear()
    lock.pass_all()
    link.slots.ticket()
    assert given
    assert not any(given)


def test_two_threads_that_look_at_fences_take_only_what_has_passed(link, lock):
    """The one that looked first may find another fence at the head when it comes to take."""
    link.send(large(1))
    link.send(large(2))
    first, second = lock.fences
    first.passed = True
    taken = []

    def ask_and_be_overtaken():
        if not taken:
            taken.append(True)
            link.slots._look_at_fences()  # another thread, in between
        return True

    number, _ = link.slots._fenced.popleft()
    link.slots._fenced.appendleft((number, ask_and_be_overtaken))
    link.slots._look_at_fences()
    assert second.num_asked >= 1
    assert not second.passed
    assert [fence for _, fence in link.slots._fenced] == [second]
