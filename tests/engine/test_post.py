"""Every task is answered, so every slot comes back: results, errors, ends, tasks that cannot be sent."""

from __future__ import annotations

import pytest

from lit_loader.engine.messages import Header, Kind, pack_header, unpack_header
from lit_loader.engine.post import Parcel, Post
from lit_loader.engine.task import BatchKey, Task
from lit_loader.transport import Place, SlotWriter, encode, open_slots
from tests.transport.link import carried, large


@pytest.fixture
def post():
    post = Post(open_slots())
    yield post
    post.close()


def task_header(number=0, run=1):
    return Header(Kind.TASK, run, number)


def sent(post, number=0, run=1):
    """Return the header that a worker gets."""
    frame = post.pack(task_header(number, run), Task([1, 2], BatchKey(1, 2)))
    return unpack_header(frame[0])


def answer(header, kind, data=None, *, writer=None):
    """Return a worker's answer to a task."""
    header = pack_header(kind, *header[1:])
    if kind in (Kind.ENDED, Kind.SKIPPED):
        return carried([header])
    return carried([header, *encode(data, writer.name if writer else None)])


def made(post, header, data):
    """Return the parcel of a result that is in its slot."""
    writer = SlotWriter(post.file, joins=True)
    writer.open(Place(header.slot, 1), None)
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


def test_a_slot_is_kept_until_its_batch_is_answered_opened_and_let_go(post):
    header = sent(post)
    assert free_slots(post) == []
    parcel = made(post, header, large(2))
    assert post._tickets == {}
    assert free_slots(post) == []
    tensor = post.open(parcel)
    del parcel
    assert free_slots(post) == []
    assert float(tensor.mean()) == 2
    del tensor
    assert free_slots(post) == [0]


def test_a_task_that_will_not_be_answered_gives_its_slot_back(post):
    sent(post)
    post.drop(task_header())
    assert post._tickets == {}
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


def test_a_task_that_cannot_be_sent_gives_its_slot_back(post):
    with pytest.raises(Exception, match=r"pickle|local") as kept:  # with its frames, as a pass keeps it
        post.pack(task_header(), Task([lambda: None]))
    assert post._tickets == {}
    assert free_slots(post) == [0]
    del kept


def test_without_slots_results_come_along():
    post = Post(None)
    header = sent(post)
    assert header.slot == -1
    assert post.file is None
    _, parcel = post.unpack(answer(header, Kind.RESULT, large(3)))
    assert parcel == Parcel(parcel.frame, None)
    assert float(post.open(parcel).mean()) == 3
    post.close()


def test_when_slots_run_out_a_batch_comes_along(post, monkeypatch):
    monkeypatch.setattr("lit_loader.transport.slots.MAX_SLOTS", 1)
    taken, without = sent(post), sent(post, 1)
    assert [taken.slot, without.slot] == [0, -1]
    _, parcel = post.unpack(answer(without, Kind.RESULT, large(3)))
    assert parcel.ticket is None
    assert float(post.open(parcel).mean()) == 3
    del parcel
    made(post, taken, large(1))
    assert sent(post, 2).slot == 0


def test_a_closed_post_lets_go_of_all_and_leaves_what_is_held(post):
    tensor = post.open(made(post, sent(post), large(4)))
    sent(post, 1)
    post.close()
    assert post._tickets == {}
    assert sent(post, 2).slot == -1
    assert (tensor == 4).all()
