"""The queue that worker processes share."""

from __future__ import annotations

import os
import threading

import pytest

from lit_loader.engine.inbox import Inbox
from lit_loader.engine.messages import pack_frame
from lit_loader.engine.task_queue import MAX_TASK_BYTES, TaskQueue, take
from lit_loader.transport import FrameWriter


@pytest.fixture
def queue():
    queue = TaskQueue()
    yield queue
    queue.close()


def test_messages_stay_apart_and_in_order(queue):
    messages = [b"a", b"bb", os.urandom(MAX_TASK_BYTES), b"c" * 3000]
    for message in messages:
        queue.put(message)
    assert [take(queue.theirs) for _ in messages] == messages
    assert take(queue.theirs) is None


def test_what_the_socket_does_not_take_waits_in_order(queue):
    """Many small tasks: prefetch_factor=1000, say."""
    messages = [f"task {n}".encode() * 20 for n in range(20_000)]
    for message in messages:
        queue.put(message)
    assert queue.waiting
    found = []
    while len(found) < len(messages):
        message = take(queue.theirs)
        if message is None:
            queue.flush()
        else:
            found.append(message)
    assert found == messages
    assert not queue.waiting


def test_each_message_goes_to_exactly_one_taker(queue):
    found: list[list[int]] = [[], [], []]

    def work(number):
        while (message := take(queue.theirs)) != b"end":
            if message is not None:
                found[number].append(int(message))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3000):
        queue.put(b"%d" % number)
    while queue.waiting:
        queue.flush()
    for _ in threads:
        queue.put(b"end")
    for thread in threads:
        thread.join()
    assert sorted(number for part in found for number in part) == list(range(3000))


def test_putting_when_nobody_is_left_to_take_says_nothing(queue):
    queue.theirs.close()
    queue.put(b"for nobody")  # the pool notices the deaths by itself


@pytest.fixture
def inbox(queue):
    """An inbox and what writes to its own pipe."""
    tasks, own = os.pipe()
    inbox = Inbox(tasks, queue.theirs)
    yield inbox, FrameWriter(own)
    for fd in (tasks, own, inbox._awake, inbox._wake):
        os.close(fd)


def test_an_inbox_gives_shared_frames_and_a_workers_own_until_it_is_to_stop(queue, inbox):
    inbox, own = inbox
    queue.put(pack_frame([b"shared"]))
    own.send([b"own"])
    assert {bytes(inbox.get()[0]) for _ in range(2)} == {b"own", b"shared"}
    own.send([b"not any more"])
    inbox.stop()
    assert inbox.get() is None


@pytest.mark.parametrize("source", ["shared", "own", "stop"])
def test_an_inbox_waits_until_something_comes(queue, inbox, source):
    (inbox, own), found = inbox, []
    thread = threading.Thread(target=lambda: found.append(inbox.get()))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    if source == "shared":
        queue.put(pack_frame([b"shared"]))
    elif source == "own":
        own.send([b"own"])
    else:
        inbox.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert (
        found == [None] if source == "stop" else [bytes(buffer) for buffer in found[0]] == [source.encode()]
    )


def test_an_inbox_ends_with_the_other_end_of_its_pipe(queue):
    tasks, own = os.pipe()
    inbox = Inbox(tasks, None)
    os.close(own)
    try:
        assert inbox.get() is None
    finally:
        for fd in (tasks, inbox._awake, inbox._wake):
            os.close(fd)
