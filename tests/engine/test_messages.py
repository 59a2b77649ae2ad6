"""What is packed is unpacked as it was."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.engine.messages import (
    Header,
    Kind,
    pack_frame,
    pack_header,
    pack_task,
    unpack_frame,
    unpack_header,
    unpack_task,
)
from lit_loader.engine.task import BatchKey, Task

NUMBERS = st.integers(0, 2**32)


@given(
    header=st.builds(
        Header,
        st.sampled_from(Kind),
        NUMBERS,
        NUMBERS,
        st.integers(0, 2**31),
        st.integers(1, 2**31),
        st.integers(-1, 2**31 - 1),
        st.floats(0, 1e6, allow_nan=False),
    )
)
def test_headers(header):
    found = unpack_header(pack_header(*header))
    assert found == header
    assert type(found.kind) is Kind


@given(buffers=st.lists(st.binary(max_size=100), max_size=5))
def test_frames(buffers):
    assert [bytes(buffer) for buffer in unpack_frame(pack_frame(buffers))] == buffers


@given(
    index=st.one_of(st.lists(st.integers()), st.text(), st.tuples(st.integers(), st.integers()), st.none()),
    key=st.none() | st.builds(BatchKey, *[st.integers(0, 2**60)] * 5),
    whole=st.booleans(),
)
def test_tasks(index, key, whole):
    task = Task(index, key, whole)
    found = unpack_task(unpack_frame(pack_frame(pack_task(Header(Kind.TASK), task))))
    assert found == task
    assert type(found) is Task
    assert key is None or type(found.key) is BatchKey


def test_an_index_may_be_a_tensor():
    found = unpack_task(unpack_frame(pack_frame(pack_task(Header(Kind.TASK), Task(torch.arange(2000))))))
    assert torch.equal(found.index, torch.arange(2000))


def test_an_index_that_cannot_be_pickled_raises():
    with pytest.raises(Exception, match="pickle"):
        pack_task(Header(Kind.TASK), Task(lambda: 0))


@pytest.mark.parametrize(
    "index", [range(5), (0, 1, 2, 3, 4), {0, 1, 2, 3, 4}, {0: "a", 1: "b", 2: "", 3: "", 4: ""}]
)
def test_any_container_of_indices_is_cut_into_pieces(index):
    pieces = Task(index, BatchKey(7, 1, 2, first=100)).pieces(2)
    assert [piece.index for piece in pieces] == [[0, 1], [2, 3], [4]]
    assert [piece.key.first for piece in pieces] == [100, 102, 104]
    assert {piece.key.batch for piece in pieces} == {2}
    assert not any(piece.whole for piece in pieces)


def test_a_batch_no_larger_than_a_piece_stays_whole():
    task = Task([1, 2], BatchKey(0, 0))
    assert task.pieces(2) == [task]
