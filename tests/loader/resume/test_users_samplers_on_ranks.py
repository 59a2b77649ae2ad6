"""Guarantee: a user's sampler that is split over ranks resumes exactly in mid-epoch, by one state for all ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler

from lit_loader import DataLoader
from lit_loader.errors import NotResumableWarning
from tests.support.resume_sets import (
    BATCH,
    SIZE,
    Numbers,
    Shuffled,
    StatefulSampler,
    assert_same,
    epochs,
    resumed,
    stopped,
)


class Chunks(StatefulSampler):
    """A batch sampler with a state: seven batches of up to four."""

    def __init__(self):
        super().__init__(7)

    def __iter__(self):
        for number in super().__iter__():
            yield list(range(SIZE))[number * BATCH : (number + 1) * BATCH]


FORMS = {
    "replayed": lambda: {"sampler": Shuffled(range(SIZE)), "batch_size": BATCH},
    "replayed batches": lambda: {"batch_sampler": [[n, n + 1] for n in range(0, 22, 2)]},
    "replayed torch's batches": lambda: {"batch_sampler": BatchSampler(Shuffled(range(SIZE)), BATCH, False)},
    "replayed, one by one": lambda: {"sampler": Shuffled(range(7)), "batch_size": None},
    "stateful": lambda: {"sampler": StatefulSampler(), "batch_size": BATCH},
    "stateful, drop_last": lambda: {"sampler": StatefulSampler(), "batch_size": BATCH, "drop_last": True},
    "stateful batches": lambda: {"batch_sampler": Chunks()},
    "stateful, one by one": lambda: {"sampler": StatefulSampler(7), "batch_size": None},
}


def ranks_of(form, world_size):
    return [
        DataLoader(Numbers(), seed=3, rank=rank, world_size=world_size, **FORMS[form]()) for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_rank_goes_on_with_its_part_from_one_state(form, world_size):
    full = [epochs(loader, 3) for loader in ranks_of(form, world_size)]
    for epoch in (0, 1):
        for batch in range(len(full[0][0]) + 1):
            states = [stopped(loader, epoch, batch) for loader in ranks_of(form, world_size)]
            assert all(state == states[0] for state in states)
            saved = json.dumps(states[0])
            assert len(saved) < 1000
            for loader, expected in zip(ranks_of(form, world_size), full, strict=True):
                remaining = [part for part in (expected[epoch][batch:], *expected[epoch + 1 :]) if part]
                assert_same(resumed(loader, json.loads(saved), len(remaining)), remaining)


@pytest.mark.parametrize("form", ["replayed", "stateful", "stateful batches"])
@pytest.mark.parametrize("kind", ["fork", "thread"])
def test_so_it_does_while_workers_are_ahead(form, kind):
    workers = {"num_workers": 2, "persistent_workers": True}
    workers |= {"worker_method": "thread"} if kind == "thread" else {"multiprocessing_context": kind}

    def ranks():
        return [DataLoader(Numbers(), seed=3, rank=rank, world_size=2, **FORMS[form](), **workers) for rank in range(2)]

    full = [epochs(loader, 2) for loader in ranks_of(form, 2)]
    states = [stopped(loader, 0, 2) for loader in ranks()]
    assert states[0] == states[1]
    for loader, expected in zip(ranks(), full, strict=True):
        assert_same(resumed(loader, states[0], 2), [expected[0][2:], expected[1]])


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_replayed_sampler_goes_on_with_other_ranks_and_the_same_global_batch(stop):
    def ranks(world_size):
        return [
            DataLoader(
                Numbers(24),
                batch_size=6 // world_size,
                sampler=Shuffled(range(24)),
                seed=3,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]

    unbroken = epochs(ranks(1)[0], 1)[0]
    for saving in (1, 2, 3):
        (state, *other_states) = [stopped(loader, 0, stop) for loader in ranks(saving)]
        assert all(other == state for other in other_states)
        for going_on in (1, 2, 3):
            parts = [resumed(loader, state, 1)[0] for loader in ranks(going_on)]
            assert_same([[torch.cat(part) for part in zip(*parts, strict=True)]], [unbroken[stop:]])


def test_another_global_batch_is_refused_and_so_are_other_ranks_of_a_sampler_with_a_state():
    def loader(world_size, batch_size, sampler):
        return DataLoader(Numbers(), batch_size=batch_size, sampler=sampler, seed=3, rank=0, world_size=world_size)

    state = stopped(loader(2, 4, Shuffled(range(SIZE))), 0, 1)
    with pytest.raises(ValueError, match="global_batch=8 in the state, 12 here"):
        loader(3, 4, Shuffled(range(SIZE))).load_state_dict(state)
    state = stopped(loader(2, 4, StatefulSampler()), 0, 1)
    with pytest.raises(ValueError, match="world_size=2 in the state, 1 here"):
        loader(1, 8, StatefulSampler()).load_state_dict(state)


def test_a_replay_that_gives_something_else_is_found_out_on_several_ranks():
    def loader(seed):
        sampler = Shuffled(range(SIZE), generator=torch.Generator().manual_seed(seed))
        return DataLoader(Numbers(), batch_size=4, sampler=sampler, seed=3, rank=1, world_size=2)

    with pytest.raises(ValueError, match="Shuffled gave other indices in the first 2 batches of epoch 0"):
        resumed(loader(6), stopped(loader(5), 0, 2), 1)


class Numpys(StatefulSampler):
    """One whose indices are numpy's."""

    def __iter__(self):
        return map(np.int64, super().__iter__())


class Odd(StatefulSampler):
    """One whose indices have no value that a state could hold."""

    def __iter__(self):
        return map(Index, super().__iter__())


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __add__(self, other):
        return self.value + other

    def __float__(self):
        return float(self.value)


def test_the_first_indices_are_saved_as_plain_values_or_the_state_says_that_it_cannot_be_resumed():
    def loader(sampler):
        return DataLoader(Numbers(), batch_size=4, sampler=sampler, seed=3, rank=1, world_size=2)

    full = epochs(loader(Numpys()), 1)[0]
    state = stopped(loader(Numpys()), 0, 2)
    assert [type(index) for index in state["start"]] == [int]
    assert_same(resumed(loader(Numpys()), json.loads(json.dumps(state)), 1), [full[2:]])
    with pytest.warns(NotResumableWarning, match="first indices of the epoch cannot be saved: Index has no value"):
        assert stopped(loader(Odd()), 0, 2)["resumable"] is False


class Pairs(StatefulSampler):
    """Gives an index and a size, in a tuple."""

    def __iter__(self):
        for number in super().__iter__():
            yield number, 640


class Received(Numbers):
    """Returns the index as it came."""

    def __getitem__(self, index):
        return index


def test_indices_that_are_tuples_are_tuples_after_a_resume_too():
    def loader():
        return DataLoader(Received(), sampler=Pairs(7), batch_size=2, seed=0, rank=1, world_size=2, collate_fn=list)

    first = loader()
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    remaining = list(iterator)
    second = loader()
    second.load_state_dict(state)
    assert list(second) == remaining
    assert [type(index) for index in remaining[0]] == [tuple, tuple], "the second one fills the batch up"


def test_indices_that_nothing_is_filled_up_with_need_not_be_plain():
    loader = DataLoader(Numbers(), sampler=Odd(), batch_size=4, seed=0, rank=0, world_size=2, drop_last=True)
    next(iter(loader))
    assert loader.state_dict()["resumable"]
