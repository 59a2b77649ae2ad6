"""Samplers and datasets of a user's that are hard to please: lengths that are estimates, states that fail."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.errors import NotResumableWarning
from tests.support.resume_sets import (
    SIZE,
    Flaky,
    Numbers,
    Shuffled,
    StatefulSampler,
    Stream,
    assert_same,
    epochs,
    make,
    resumed,
    stopped,
)


class Estimating(Shuffled):
    """Tells less than it gives: 20 of 26."""

    def __len__(self):
        return 20


def test_a_sampler_that_gives_more_than_it_tells_goes_on_where_it_was():
    def loader():
        return DataLoader(Numbers(), batch_size=4, sampler=Estimating(range(SIZE)), seed=3)

    full = epochs(loader(), 1)[0]
    state = stopped(loader(), 0, 6)
    assert (state["epoch"], state["position"]) == (0, 6)
    assert_same(resumed(loader(), state, 1), [full[6:]])


class Broken(StatefulSampler):
    breaks = True

    def state_dict(self):
        if self.breaks:
            raise OSError("no such disk")
        return super().state_dict()


def test_a_sampler_whose_state_cannot_be_had_is_iterated_and_not_resumed():
    sampler = Broken()
    loader = DataLoader(Numbers(), batch_size=4, sampler=sampler, seed=3)
    assert sum(map(len, loader)) == SIZE
    next(iter(loader))
    with pytest.warns(NotResumableWarning, match=r"Broken.state_dict\(\) raised OSError: no such disk"):
        assert loader.state_dict()["resumable"] is False
    sampler.breaks = False  # its present state is ahead of the consumer
    with pytest.warns(NotResumableWarning, match="raised or returned None"):
        assert loader.state_dict()["resumable"] is False


class BrokenNumbers(Numbers):
    def state_dict(self):
        raise OSError("no such disk")

    def load_state_dict(self, state):
        raise AssertionError


def test_a_dataset_whose_state_cannot_be_had_does_not_fail_a_checkpoint():
    loader = DataLoader(BrokenNumbers(), batch_size=4, seed=3)
    with pytest.warns(NotResumableWarning, match=r"BrokenNumbers.state_dict\(\) raised OSError"):
        assert loader.state_dict()["resumable"] is False


class UnevenBatches:
    """Each rank has batches of its own sizes."""

    def __init__(self, rank):
        self.rank = rank
        self.num_replicas = 2

    def __iter__(self):
        first = 0
        for number in range(6):
            size = 1 + (number + self.rank) % 3
            yield list(range(first, first + size))
            first += size


def test_ranks_whose_batches_have_other_sizes_go_on_by_the_state_of_one():
    def loaders():
        return [DataLoader(Numbers(), batch_sampler=UnevenBatches(r), seed=3, rank=r, world_size=2) for r in range(2)]

    full = [epochs(loader, 1)[0] for loader in loaders()]
    states = [stopped(loader, 0, 2) for loader in loaders()]
    assert states[0] == states[1]
    for loader, expected in zip(loaders(), full, strict=True):
        assert_same(resumed(loader, states[0], 1), [expected[2:]])


def test_state_shares_no_objects_with_the_sampler():
    loader = make("custom with state")
    state = stopped(loader, 0, 2)
    state["sampler_state"]["taken"] = 99
    assert loader.state_dict()["sampler_state"]["taken"] == 8


class LongerThanTold(IterableDataset):
    def __len__(self):
        return 3

    def __iter__(self):
        return iter(torch.arange(3.0).reshape(3, 1))


def test_a_batch_that_failed_is_none_of_those_that_a_length_was_told_for():
    loader = DataLoader(LongerThanTold(), batch_size=1, collate_fn=Flaky())
    assert len(loader) == 3
    Flaky.fails_at = 0.0
    iterator = iter(loader)
    with pytest.raises(OSError, match="no such disk"):
        next(iterator)
    assert len(list(iterator)) == 2


def test_an_epoch_named_twice_after_loading_is_the_one_named_last():
    loader = make("plain")
    loader.set_epoch(2)
    state = stopped(loader, 0, 3)
    other = make("plain")
    other.load_state_dict(state)
    other.set_epoch(3)
    other.set_epoch(2)
    assert other.state_dict()["epoch"] == 2


def test_only_what_is_made_again_is_said_to_be():
    loader = DataLoader(Stream(6), batch_size=4, seed=3)
    state = stopped(loader, 0, 2)  # with the second batch it is known to be at its end
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(Stream(6), batch_size=4, seed=3).load_state_dict(state)


class Lately(Shuffled):
    """Has a state only while it is iterated."""

    position = None

    def __iter__(self):
        start = self.position or 0
        for self.position in range(start + 1, SIZE + 1):
            yield self.position - 1
        self.position = None

    def state_dict(self):
        return None if self.position is None else {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize("seed", [None, 0])
def test_a_sampler_without_a_state_before_its_epoch_is_resumed_at_the_beginning(seed):
    def loader():
        return DataLoader(Numbers(), batch_size=4, sampler=Lately(range(SIZE)), seed=seed)

    state = loader().state_dict()
    assert state["resumable"]
    resumed_loader = loader()
    resumed_loader.load_state_dict(state)
    assert sum(map(len, resumed_loader)) == SIZE


def test_a_state_in_mid_epoch_without_that_of_the_sampler_is_refused():
    loader = DataLoader(Numbers(), batch_size=4, sampler=Lately(range(SIZE)), seed=0)
    with pytest.raises(ValueError, match="sampler_state=None in the state, which Lately needs"):
        loader.load_state_dict({**loader.state_dict(), "position": 2})
