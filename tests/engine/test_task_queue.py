"""The queue that worker processes share."""

from __future__ import annotations

import os
from collections import deque

import pytest

from lit_loader.engine.channels import MAX_TASK_BYTES, TaskQueue, take
from tests.support.background import running


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


def test_messages_beyond_the_sockets_capacity_wait_in_order(queue):
    """Many small tasks, as with prefetch_factor=1000."""
    messages = [f"task {n}".encode() * 20 for n in range(20_000)]
    for message in messages:
        queue.put(message)
    assert queue.waiting
    received = []
    while len(received) < len(messages):
        message = take(queue.theirs)
        if message is None:
            queue.flush()
        else:
            received.append(message)
    assert received == messages
    assert not queue.waiting


def test_message_goes_to_exactly_one_worker(queue):
    task_numbers = deque()

    def work(_):
        while (message := take(queue.theirs)) != b"end":
            if message is not None:
                task_numbers.append(int(message))

    with running(work, work, work):
        for number in range(3000):
            queue.put(b"%d" % number)
        for _ in range(3):
            queue.put(b"end")
        # After the last message, which also waits if the socket is full.
        while queue.waiting:
            queue.flush()
    assert sorted(task_numbers) == list(range(3000))


def test_put_without_workers_raises_nothing(queue):
    queue.theirs.close()
    queue.put(b"never read")  # no error, because the backend will notice the deaths
