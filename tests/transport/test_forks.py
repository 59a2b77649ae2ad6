"""What a process holds when it forks stays as it is, there and in the fork."""

from __future__ import annotations

import os
import threading

import pytest

from lit_loader.transport import Place, forks, mapping
from tests.transport.link import Link, large, num_maps


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def in_a_fork(look):
    """Return the bytes that a function returns in a forked process, which goes on when it is told to."""
    to_child, go = os.pipe()
    answer, to_parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(to_child, 1)
            os.write(to_parent, look())
        finally:
            os._exit(0)

    def ask():
        os.write(go, b"1")
        found = os.read(answer, 1000)
        os.waitpid(pid, 0)
        for fd in (to_child, go, answer, to_parent):
            os.close(fd)
        return found

    return ask


def test_a_fork_sees_what_was_held_after_the_parent_has_gone_on(link):
    held, scalar = link.send([large(1), large(2).numpy()]), link.send(large(3))[0, 0]
    ask = in_a_fork(lambda: bytes([int(held[0].min()), int(held[1].max()), int(scalar)]))
    held.clear()
    for number in range(200):
        link.send([large(number + 7), large(number + 7)])
    assert ask() == bytes([1, 2, 3])


def test_the_parents_own_views_stay_and_can_be_written_to(link):
    held = link.send([large(1), large(2)])
    address = held[0].data_ptr()
    assert in_a_fork(lambda: b"x")() == b"x"
    assert held[0].data_ptr() == address
    for number in range(50):
        link.send([large(number + 7), large(number + 7)])
    assert (held[0] == 1).all()
    held[0] += 4
    assert (held[0] == 5).all()
    assert (held[1] == 2).all()


def test_edits_in_the_fork_and_in_the_parent_do_not_meet(link):
    held = link.send(large(1))

    def edit():
        held.add_(1)
        return bytes([int(held.min()), int(held.max())])

    ask = in_a_fork(edit)
    held.add_(10)
    assert ask() == bytes([2, 2])
    assert (held == 11).all()


def test_the_slots_of_what_was_held_are_free_after_a_fork_and_their_memory_too(link):
    held = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.used_bytes >= 40 << 20
    in_a_fork(lambda: b"x")()
    assert link.used_bytes <= 8 << 20
    assert link.slots.kept_bytes == 0
    more = [link.send(large(n, 1 << 18)) for n in range(40)]
    assert link.slots.num_slots == 40
    assert all((t == n).all() for n, t in enumerate(held))
    assert all((t == n).all() for n, t in enumerate(more))


def test_a_batch_that_is_half_opened_is_whole_after_a_fork():
    link = Link(num_writers=2)
    ticket = link.slots.ticket()
    frames = [link.write_piece(ticket, part, [large(part), large(part + 5)], None, 4) for part in (0, 1)]
    first = link.read(ticket, frames[0])
    ask = in_a_fork(lambda: bytes(int(t.min()) for t in first))
    second = link.read(ticket, frames[1])
    del ticket
    for number in range(20):
        link.send(large(number + 70))
    assert ask() == bytes([0, 5])
    assert [float(t.max()) for t in (*first, *second)] == [0, 5, 1, 6]
    link.close()


def test_memory_stays_flat_over_many_forks(link):
    held = [link.send(large(n, 1 << 16)) for n in range(3)]
    used = []
    for number in range(25):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        held.append(link.send(large(number + 3, 1 << 16)))
        assert float(held.pop(0)[7]) == number
        used.append((link.used_bytes, link.slots.num_slots, num_maps()))
    assert len({used[n] for n in range(5, 25)}) == 1


def test_a_batch_is_not_taken_hold_of_in_the_middle_of_a_fork(link):
    """A thread that reads a batch while another one forks gets it before or after."""
    wrong, stop = [], threading.Event()

    def read():
        number = 0
        while not stop.is_set():
            number = (number + 1) % 100
            batch = link.send([large(number)])
            if not bool((batch[0] == number).all()):
                wrong.append(number)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(15):
            in_a_fork(lambda: b"x")()
    finally:
        stop.set()
        thread.join()
    assert wrong == []


def test_no_memory_for_a_copy_before_a_fork_spoils_no_later_batch(link, monkeypatch):
    """The slot is held on, and a mapping of which a part is private serves no other batch."""
    held = link.send([large(1), large(2, 1 << 18), large(3)])
    place, real = Place(0), mapping._map
    assert place.slot == 0
    sizes = []

    def refuse_the_second(num_bytes, *rest):
        sizes.append(num_bytes)
        if len(sizes) > 1:
            raise OSError(12, "no memory")
        return real(num_bytes, *rest)

    lease = next(iter(link.slots._leases.values()))
    lease.stretches = [(0, 4096), (1 << 19, (1 << 19) + 4096)]  # more than one, so that the second can fail
    monkeypatch.setattr(mapping, "_map", refuse_the_second)
    in_a_fork(lambda: b"x")()
    monkeypatch.undo()
    assert len(sizes) == 2
    assert all((t == n + 1).all() for n, t in enumerate(held))
    del held, lease
    for number in range(5):
        batch = link.send([large(number), large(number, 1 << 18)])
        assert all((t == number).all() for t in batch)


def test_without_the_copy_a_fork_would_see_later_batches(link, monkeypatch):
    """The mechanism taken away."""
    monkeypatch.setattr(type(link.slots), "make_private", lambda self: None)
    held = [link.send(large(1))]
    ask = in_a_fork(lambda: bytes([int(held[0].min())]))
    held.clear()
    link.send(large(9))
    assert ask() == bytes([9])


def test_slots_that_are_gone_are_not_asked_at_a_fork():
    def asked():
        return sum(known() is not None for known in forks._holders)

    before = asked()
    Link().close()
    assert asked() == before
    links = [Link() for _ in range(3)]
    assert asked() == before + 3
    assert len(forks._holders) <= before + 4, "those that are gone are dropped when others come"
    for link in links:
        link.close()
