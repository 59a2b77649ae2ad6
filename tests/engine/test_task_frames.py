"""Packed messages and tasks are unpacked unchanged."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.engine import BatchKey, StreamPlace, Task
from lit_loader.engine.channels import pack_frame, unpack_frame
from lit_loader.engine.spec import Kind, Message
from lit_loader.engine.worker import pack_message, pack_task, unpack_message, unpack_task

NUMBERS = st.integers(0, 2**32)


def sent(task):
    """Return a task as a worker receives it."""
    frame = [pack_message(Message(Kind.TASK)), *pack_task(task)]
    return unpack_task(unpack_frame(pack_frame(frame)))


@given(
    message=st.builds(
        Message, st.sampled_from(Kind), NUMBERS, NUMBERS, st.integers(-1, 2**31 - 1), st.integers(0, 2**32 - 1)
    )
)
def test_messages_are_unpacked_unchanged(message):
    received = unpack_message(pack_message(message))
    assert received == message
    assert type(received.kind) is Kind


@given(buffers=st.lists(st.binary(max_size=100), max_size=5))
def test_frames_are_unpacked_unchanged(buffers):
    assert [bytes(buffer) for buffer in unpack_frame(pack_frame(buffers))] == buffers


@given(
    index=st.one_of(st.lists(st.integers()), st.text(), st.tuples(st.integers(), st.integers()), st.none()),
    key=st.none() | st.builds(BatchKey, *[st.integers(0, 2**60)] * 5),
    number=NUMBERS,
    spares=st.none() | st.lists(st.lists(st.integers()), max_size=3),
    places=st.none() | st.lists(st.builds(StreamPlace, NUMBERS, NUMBERS, st.booleans()), max_size=3),
)
def test_tasks_are_unpacked_unchanged(index, key, number, spares, places):
    task = Task(index, key, number, spares, places)
    received = sent(task)
    assert received == task
    assert type(received) is Task
    assert key is None or type(received.key) is BatchKey


def test_tensor_index_is_unpacked_unchanged():
    received = sent(Task(torch.arange(2000)))
    assert torch.equal(received.index, torch.arange(2000))
