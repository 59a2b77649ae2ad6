"""Guarantee: with a seed the ranks together get each global batch of a user's sampler, equally many, each a part."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from lit_loader import DataLoader, is_duplicate
from lit_loader.samplers import RandomSampler, num_batches, rank_batch
from lit_loader.samplers.custom_ranks import GlobalBatches, find_global_batches, rank_part, shards_itself
from tests.support.resume_sets import Numbers, Shuffled

WORLDS = range(1, 6)
sizes = st.integers(1, 5)
lengths = st.integers(0, 40)
seeds = st.integers(0, 1000)


def parts(units, rank, world_size, **arguments):
    """Return a rank's parts, each with the position of its first sample and the number of positions, or None."""
    batches = GlobalBatches(units, world_size=world_size, **arguments)
    position = 0
    actual = []
    for group in batches:
        part = rank_part(batches, group, rank=rank)
        length_or_none = None if part.num_samples is None else position + part.num_samples
        actual.append((part.index, position + part.samples_before, length_or_none))
        position += batches.num_samples(group)
    assert len(actual) == len(batches)
    return actual


@given(length=lengths, batch_size=sizes, drop_last=st.booleans(), seed=seeds)
def test_a_sequence_of_indices_is_cut_as_an_order_is(length, batch_size, drop_last, seed):
    order = np.random.default_rng(seed).permutation(length)
    cut = {"batch_size": batch_size, "drop_last": drop_last}
    for world_size in WORLDS:
        for rank in range(world_size):
            actual = parts(
                order.tolist(), rank, world_size, size=batch_size * world_size, drop_last=drop_last, of_batches=False
            )
            assert len(actual) == num_batches(length, world_size=world_size, **cut)
            for number, (index, first, length_or_none) in enumerate(actual):
                expected = rank_batch(order, number, rank=rank, world_size=world_size, **cut)
                assert index == expected.indices.tolist()
                assert first == expected.positions.start
                assert length_or_none in (None, length)
    alone = parts(order.tolist(), 0, 1, size=batch_size, drop_last=drop_last, of_batches=False)
    assert [index for index, _, _ in alone] == list(BatchSampler(order.tolist(), batch_size, drop_last))


@given(length=lengths, seed=seeds)
def test_so_are_single_samples(length, seed):
    order = np.random.default_rng(seed).permutation(length).tolist()
    for world_size in WORLDS:
        ranks = [
            parts(order, rank, world_size, size=world_size, drop_last=False, of_batches=False, batched=False)
            for rank in range(world_size)
        ]
        flat = [part for together in zip(*ranks, strict=True) for part in together]
        assert [index for index, _, _ in flat[:length]] == order
        assert [first for _, first, _ in flat] == list(range(len(flat)))
        assert [index for index, _, _ in flat[length:]] == [order[n % length] for n in range(len(flat) - length)]
        assert all(length_or_none == length for _, _, length_or_none in flat[length:])


@given(batch_sizes=st.lists(st.integers(0, 4), max_size=12))
def test_batches_of_any_sizes_are_dealt_to_the_ranks_in_turns(batch_sizes):
    numbers = count()
    units = [[next(numbers) for _ in range(size)] for size in batch_sizes]
    total = sum(batch_sizes)
    for world_size in WORLDS:
        ranks = [
            parts(units, rank, world_size, size=world_size, drop_last=False, of_batches=True)
            for rank in range(world_size)
        ]
        assert len({len(rank) for rank in ranks}) == 1
        flat = [part for together in zip(*ranks, strict=True) for part in together]
        assert [index for index, _, _ in flat[: len(units)]] == units
        position = 0
        for number, (index, first, length_or_none) in enumerate(flat):
            assert first == position  # no position is another's
            position += len(index)
            if number >= len(units):
                assert length_or_none == total
                assert index == units[(number - len(units)) % len(units)]
            assert length_or_none in (None, total)


def test_a_batch_that_can_be_read_once_is_read_once():
    batches = GlobalBatches([iter([1, 2]), iter([3])], 2, drop_last=False, world_size=2, of_batches=True)
    assert list(batches) == [[[1, 2], [3]]]


def test_a_batch_sampler_may_fill_one_list_anew():
    def refilled():
        batch = []
        for index in range(4):
            batch[:] = [index, -index]
            yield batch

    batches = GlobalBatches(refilled(), 2, drop_last=False, world_size=2, of_batches=True)
    assert list(batches) == [[[0, 0], [1, -1]], [[2, -2], [3, -3]]]


class Marked:
    def __init__(self, **names):
        self.__dict__.update(names)

    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("sampler", "itself"),
    [
        (Marked(), False),
        (Marked(rank=0), False),
        (Marked(num_replicas=2), False),
        (Marked(rank=None, num_replicas=None), False),
        (Marked(rank=0, num_replicas=2), True),
        (Marked(_rank=1, _world_size=2), True),
        (Marked(shard_id=1, num_shards=2), True),
        (Marked(process_index=1, num_processes=2), True),
        (DistributedSampler(range(4), 2, 1), True),
        (RandomSampler(4), False),
    ],
)
def test_a_sampler_that_shards_by_itself_is_told_by_what_it_shows(sampler, itself):
    assert shards_itself(sampler, None) is itself
    assert shards_itself(None, BatchSampler(sampler, 2, False).sampler) is itself
    assert (find_global_batches(sampler, None, 2) is None) is itself
    assert (find_global_batches(None, BatchSampler(sampler, 2, False), 2) is None) is itself
    assert find_global_batches(sampler, None, 1) is None


# -- in a loader ------------------------------------------------------------------------------------------


class Uneven:
    """A batch sampler of a user's: five batches of one to three draws."""

    def __iter__(self):
        for number in range(5):
            yield torch.randint(26, (1 + number % 3,)).tolist()

    def __len__(self):
        return 5


class Told(Numbers):
    def __getitem__(self, index):
        return torch.cat([super().__getitem__(index), torch.tensor([float(is_duplicate())])])


FORMS = {
    "sampler": lambda: {"sampler": Shuffled(range(26)), "batch_size": 4},
    "sampler, drop_last": lambda: {"sampler": Shuffled(range(26)), "batch_size": 4, "drop_last": True},
    "torch's batch sampler": lambda: {"batch_sampler": BatchSampler(Shuffled(range(26)), 4, False)},
    "batch sampler": lambda: {"batch_sampler": Uneven()},
    "one by one": lambda: {"sampler": Shuffled(range(26)), "batch_size": None},
}


def rows(form, world_size, **arguments):
    """Return the samples of all ranks in the order of the global batches, for two epochs."""
    loaders = [
        DataLoader(Told(), seed=3, rank=rank, world_size=world_size, **FORMS[form](), **arguments)
        for rank in range(world_size)
    ]
    actual = []
    for _ in range(2):
        ranks = [[torch.atleast_2d(batch) for batch in loader] for loader in loaders]
        assert {len(rank) for rank in ranks} == {len(loader) for loader in loaders}
        actual.append(torch.cat([part for together in zip(*ranks, strict=True) for part in together]))
    return actual


@pytest.mark.parametrize("form", FORMS)
def test_ranks_have_the_bits_of_one_rank_and_duplicates_are_marked(form):
    alone = rows(form, 1)
    assert not torch.equal(*alone)
    for world_size in WORLDS[1:]:
        for epoch, actual in enumerate(rows(form, world_size)):
            originals = actual[actual[:, -1] == 0]
            unbroken = len(originals) if form == "sampler, drop_last" else len(alone[epoch])
            assert torch.equal(originals, alone[epoch][:unbroken])
            duplicates = actual[actual[:, -1] == 1]
            assert torch.equal(duplicates, actual[len(actual) - len(duplicates) :])
            assert torch.equal(duplicates[:, 0], originals[: len(duplicates), 0])
            # A duplicate has draws of its own.
            assert not len(duplicates) or not torch.equal(duplicates[:, 1], originals[: len(duplicates), 1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "backend",
    [{"multiprocessing_context": "fork", "persistent_workers": True}, {"worker_method": "thread"}],
    ids=["processes", "threads"],
)
def test_workers_make_the_same(form, backend):
    for mine, other in zip(rows(form, 2), rows(form, 2, num_workers=2, **backend), strict=True):
        assert torch.equal(mine, other)


def test_a_length_that_is_not_told_is_not_made_up():
    loader = DataLoader(Told(), seed=3, rank=0, world_size=2, batch_size=2, sampler=Marked())
    with pytest.raises(TypeError, match="Marked"):
        len(loader)
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1]]
