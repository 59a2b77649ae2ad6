"""Guarantee: ranks that get other things from a user's sampler are refused by name, on all of them, once for a loader.

Ranks are threads here; `tests/loader/lightning/test_ddp.py` has the same on processes.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from lit_loader import DataLoader
from lit_loader.loader import data_loader as loader_module
from lit_loader.samplers.custom_ranks import check_equal_lengths, checked_alike
from tests.support.resume_sets import BATCH, SIZE, Numbers, Shuffled, StatefulSampler, assert_same, epochs


class Group:
    """The process group of ranks that are threads."""

    def __init__(self, world_size):
        self._barrier = threading.Barrier(world_size, timeout=20)
        self._values = [None] * world_size

    def gather(self, rank):
        def gathered(value):
            self._values[rank] = value
            self._barrier.wait()
            actual = list(self._values)
            self._barrier.wait()
            return actual

        return gathered


def on_ranks(work, world_size=2):
    """Return what ``work(rank, gather)`` returned or raised on each rank."""
    group = Group(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        ranks = [pool.submit(work, rank, group.gather(rank)) for rank in range(world_size)]
        return [rank.exception() or rank.result() for rank in ranks]


def compared(sequences, *, num_batches, by_epoch=True):
    def work(rank, gather):
        batches = iter(sequences[rank])
        length = num_batches[rank]
        return list(checked_alike(batches, name="Mine", num_batches=length, whole=by_epoch, gather=gather))

    return on_ranks(work, len(sequences))


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize("length", [0, 2, 3, 9, None])
def test_equal_indices_are_returned_unchanged(by_epoch, length):
    same = [[3, 1], [2], [0, 4]]
    assert compared([same] * 3, num_batches=[length] * 3, by_epoch=by_epoch) == [same] * 3


def test_different_indices_raise_on_every_rank_with_all_values():
    for error in compared([[[0, 2]], [[1, 3]]], num_batches=[1, 1]):
        text = str(error)
        assert isinstance(error, ValueError)
        assert text.startswith("Mine gives different indices on different ranks (rank 0: num_batches=1, digest=")
        assert "first=[[0, 2]]; rank 1: num_batches=1" in text
        assert "first=[[1, 3]])" in text
        assert "`rank` and `num_replicas`" in text
        assert "a sampler of lit_loader.samplers" in text
    for error in compared([[[0]], [[0]]], num_batches=[1, 2]):
        assert "rank 0: num_batches=1, digest=" in str(error)
        assert "rank 1: num_batches=2, digest=" in str(error)


def test_all_of_the_epoch_is_compared_if_its_length_is_known_and_else_its_first_batch():
    late = [[[0], [1], [2]], [[0], [1], [3]]]
    for error in compared(late, num_batches=[3, 3]):
        assert isinstance(error, ValueError)
    assert compared(late, num_batches=[None, None]) == late
    assert compared(late, num_batches=[3, 3], by_epoch=False) == late


def test_indices_without_a_value_are_compared_by_number_alone():
    sets = [[{0}, {1}], [{2}, {1}]]
    assert compared(sets, num_batches=[2, 2]) == sets
    assert all(isinstance(error, ValueError) for error in compared(sets, num_batches=[2, 1]))


def test_a_sampler_that_raises_on_one_rank_leaves_no_other_waiting():
    def broken():
        yield [0]
        raise OSError("no such disk")

    def work(rank, gather):
        batches = broken() if rank else iter([[0], [1]])
        return checked_alike(batches, name="Mine", num_batches=2, whole=True, gather=gather)

    other_error, own_error = on_ranks(work)
    assert isinstance(own_error, OSError)
    assert isinstance(other_error, ValueError)
    assert "rank 1: OSError: no such disk" in str(other_error)


def test_parts_of_their_own_need_equal_lengths_alone():
    assert on_ranks(lambda rank, gather: check_equal_lengths("Mine", 3, gather)) == [None, None]
    for error in on_ranks(lambda rank, gather: check_equal_lengths("Mine", 3 + rank, gather)):
        assert "Mine gives different numbers of batches on different ranks (rank 0: 3; rank 1: 4)" in str(error)


# -- in a loader ------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Be rank 0 of 2, whose other rank says the same, and return how often it was asked."""
    values = []

    def gathered(value):
        values.append(value)
        return [value, value]

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(loader_module, "_gather", gathered)
    return values


SAMPLERS = {
    "cut": lambda: Shuffled(range(SIZE)),
    "with a state": StatefulSampler,
    "its own part": lambda: DistributedSampler(range(SIZE), 2, 0),
}


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_loader_compares_in_its_first_epoch_and_gets_the_same_batches(name, workers, alone, monkeypatch):
    def make(**place):
        return DataLoader(Numbers(), sampler=SAMPLERS[name](), batch_size=BATCH, seed=3, **workers, **place)

    loader = make()
    iterator = iter(loader)
    assert len(loader) > 0
    assert alone == []  # neither iter() nor len() meets other ranks
    first = next(iterator)
    assert len(alone) == 1
    actual = [[first, *iterator], *epochs(loader, 1)]
    assert len(alone) == 1
    next(iter(copy.deepcopy(loader)))
    assert len(alone) == 2  # a copy is a loader of its own
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    assert_same(actual, epochs(make(rank=0, world_size=2), 2))
    assert len(alone) == 2


def test_who_is_not_of_the_group_or_draws_from_an_order_compares_nothing(alone):
    for arguments in (
        {"sampler": Shuffled(range(SIZE)), "rank": 1, "world_size": 2},
        {"sampler": Shuffled(range(SIZE)), "rank": 0, "world_size": 4},
        {"shuffle": True},
    ):
        assert list(DataLoader(Numbers(), batch_size=BATCH, seed=3, **arguments))
    assert alone == []


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}])
def test_a_refused_loader_is_refused_again_and_its_epoch_is_not_counted(workers, alone, monkeypatch):
    loader = DataLoader(Numbers(), sampler=Shuffled(range(SIZE)), batch_size=BATCH, seed=3, **workers)
    state = loader.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(loader_module, "_gather", lambda value: [value, ("other", "other")])
        iterator = iter(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match="Shuffled gives different indices on different ranks"):
                next(iterator)
            assert loader.state_dict() == state
    assert len(list(iterator)) == len(loader)
