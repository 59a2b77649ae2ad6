"""The queue that worker processes share."""

from __future__ import annotations

import os
import threading

import pytest

from lit_loader.engine.channels import MAX_TASK_BYTES, TaskQueue, take


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
    queue.put(b"never read")  # no error: the backend notices the deaths by itself
