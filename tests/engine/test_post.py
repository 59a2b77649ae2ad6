"""Every task is answered, so every slot comes back: whole batches, pieces, errors, ends, tasks that cannot be sent."""

from __future__ import annotations

import pytest
import torch

from lit_loader.engine.messages import Header, Kind, pack_header, unpack_header
from lit_loader.engine.post import Parcel, Post
from lit_loader.engine.task import BatchKey, Task
from lit_loader.transport import Layout, Place, SlotWriter, encode, open_slots
from tests.transport.link import carried, large


@pytest.fixture
def post():
    post = Post(open_slots())
    yield post
    post.close()


def task_header(number=0, piece=0, num_pieces=1, run=1):
    return Header(Kind.TASK, run, number, piece, num_pieces)


def sent(post, number=0, piece=0, num_pieces=1, run=1):
    """Return the header that a worker gets."""
    frame = post.pack(task_header(number, piece, num_pieces, run), Task([1, 2], BatchKey(1, 2)))
    return unpack_header(frame[0])


def answer(header, kind, data=None, *, layout=b"", writer=None):
    """Return a worker's answer to a task."""
    header = pack_header(kind, *header[1:6])
    if kind in (Kind.ENDED, Kind.SKIPPED):
        return carried([header])
    return carried([header, layout, *encode(data, writer.name if writer else None)])


def made(post, header, data):
    """Return the parcel of a result that is in its slot."""
    writer = SlotWriter(post.file, joins=True)
    writer.open(Place(header.slot, header.piece, header.num_pieces, 0, 1), None)
    frame = answer(header, Kind.RESULT, data, writer=writer)
    writer.close()
    return post.unpack(frame)[1]


def free_slots(post):
    """Return the slots that wait for another batch."""
    return sorted(post.slots._free)


def test_a_batch_goes_to_a_slot_of_its_own_until_its_tensors_die(post):
    headers = [sent(post, number) for number in range(3)]
    assert [header.slot for header in headers] == [0, 1, 2]
    parcels = [made(post, header, large(header.number)) for header in headers]
    tensors = [post.open(parcel) for parcel in parcels]
    del parcels
    assert free_slots(post) == []
    assert [float(tensor.mean()) for tensor in tensors] == [0, 1, 2]
    del tensors[1]
    assert sent(post, 9).slot == 1


@pytest.mark.parametrize("kind", [Kind.ERROR, Kind.ENDED, Kind.SKIPPED])
def test_an_answer_without_a_result_gives_the_slot_back(post, kind):
    header, parcel = post.unpack(answer(sent(post), kind, "error"))
    assert header.kind is kind
    assert parcel.ticket is None
    assert free_slots(post) == [0]


def test_pieces_share_a_slot_which_is_kept_until_the_last_is_answered_and_let_go(post):
    headers = [sent(post, 0, piece, 3) for piece in range(3)]
    assert {header.slot for header in headers} == {0}
    first = made(post, headers[2], large(2))
    assert float(post.open(first).mean()) == 2
    del first
    post.unpack(answer(headers[0], Kind.ERROR, "error"))
    assert free_slots(post) == []
    last = made(post, headers[1], large(1))
    assert post._out == {}
    assert free_slots(post) == []
    tensor = post.open(last)
    del last
    assert free_slots(post) == []
    assert float(tensor.mean()) == 1
    del tensor
    assert free_slots(post) == [0]


def test_batches_of_two_runs_with_the_same_number_are_not_mixed_up(post):
    one, other = sent(post, 5, run=1), sent(post, 5, run=2)
    assert one.slot != other.slot
    parcels = [made(post, other, large(2)), made(post, one, large(1))]
    assert [float(post.open(parcel).mean()) for parcel in parcels] == [2, 1]


def test_a_result_that_nobody_opens_gives_its_slot_back(post):
    parcel = made(post, sent(post), large(1))
    assert free_slots(post) == []
    del parcel
    assert free_slots(post) == [0]


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_task_that_cannot_be_sent_gives_back_the_slot_when_the_pieces_before_it_are_answered(post, piece):
    headers = [sent(post, 0, number, 3) for number in range(piece)]
    with pytest.raises(Exception, match=r"pickle|local"):
        post.pack(task_header(0, piece, 3), Task([lambda: None]))
    for header in headers:
        assert free_slots(post) == []
        post.unpack(answer(header, Kind.SKIPPED))
    assert post._out == {}
    assert free_slots(post) == [0]


def test_a_layout_that_a_worker_told_goes_to_those_that_share_a_batch(post):
    told = Layout(((torch.float32, (64, 100)),)).pack()
    post.unpack(answer(sent(post), Kind.RESULT, 1, layout=told))
    shared = post.pack(task_header(1, 0, 2), Task([1]))
    whole = post.pack(task_header(2), Task([1]))
    assert bytes(shared[1]) == told
    assert bytes(whole[1]) == b""
    later = Layout(((torch.float32, (3,)),)).pack()
    post.unpack(answer(sent(post, 3), Kind.RESULT, 1, layout=later))
    post.unpack(answer(sent(post, 4), Kind.RESULT, 1))
    assert bytes(post.pack(task_header(5, 0, 2), Task([1]))[1]) == later


def test_without_slots_results_come_along():
    post = Post(None)
    header = sent(post)
    assert header.slot == -1
    assert post.file is None
    _, parcel = post.unpack(answer(header, Kind.RESULT, large(3)))
    assert parcel == Parcel(parcel.frame, None)
    assert float(post.open(parcel).mean()) == 3
    post.close()


def test_when_slots_run_out_a_batch_and_all_its_pieces_come_along(post, monkeypatch):
    monkeypatch.setattr("lit_loader.transport.slots.MAX_SLOTS", 1)
    taken = sent(post)
    without = sent(post, 1, 0, 2)
    parcel = made(post, taken, large(1))
    del parcel  # a slot is free again, but a batch has one for all of its pieces or none
    assert [taken.slot, without.slot, sent(post, 1, 1, 2).slot] == [0, -1, -1]


def test_a_closed_post_lets_go_of_all_and_leaves_what_is_held(post):
    tensor = post.open(made(post, sent(post), large(4)))
    sent(post, 1)
    post.close()
    assert post._out == {}
    assert sent(post, 2).slot == -1
    assert (tensor == 4).all()
