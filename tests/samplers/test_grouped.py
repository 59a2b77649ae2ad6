"""`GroupedSampler`: every position once, batches of one group, equal on any number of ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler as TorchRandomSampler

from lit_loader import DataLoader
from lit_loader.samplers import (
    ClassAwareSampler,
    GroupedSampler,
    MixedSourceSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from lit_loader.samplers.grouped import regrouped
from lit_loader.samplers.weighted import AliasTable
from tests.support.chi_square import assert_fits
from tests.support.toys import Drawing

# Each makes a sampler over `n` indices (n >= 1) that is regrouped.
INNER = {
    "sequential": SequentialSampler,
    "random": RandomSampler,
    "weighted without replacement": lambda n: WeightedRandomSampler(np.arange(1, n + 1), replacement=False),
    "class aware": lambda n: ClassAwareSampler(np.arange(n) % 3, num_samples=n + 5),
    "repeat factor": lambda n: RepeatFactorSampler(np.arange(n) % 7 / 3 + 0.6),
    "subset": lambda n: SubsetRandomSampler(np.arange(n)[::-2], num_indices=n),
}
lengths = st.integers(1, 120)
group_counts = st.integers(1, 9)
global_batches = st.integers(1, 17)


def grouped(inner, n, num_groups, *, seed=0):
    return GroupedSampler(INNER[inner](n), np.random.default_rng(seed).integers(0, num_groups, n))


@settings(deadline=None)  # other processes may hold it up
@given(
    inner=st.sampled_from(sorted(INNER)),
    n=lengths,
    num_groups=group_counts,
    global_batch=global_batches,
    seed=st.integers(0, 99),
)
def test_regrouping_permutes_positions_with_fewest_mixed_batches(inner, n, num_groups, global_batch, seed):
    sampler = grouped(inner, n, num_groups, seed=seed)
    plain = sampler.order(seed=seed, epoch=1)[:]
    order = sampler.batch_order(seed=seed, epoch=1, global_batch=global_batch)
    assert len(order) == len(sampler) == len(plain)
    np.testing.assert_array_equal(np.sort(order[:]), np.sort(plain))
    full = len(plain) // global_batch * global_batch
    np.testing.assert_array_equal(order[full:], plain[full:])  # what drop_last leaves out
    groups = sampler.group_ids[order[0:full]].reshape(-1, global_batch)
    mixed = (groups != groups[:, :1]).any(axis=1).sum()
    left_over = np.bincount(sampler.group_ids[plain[:full]]) % global_batch
    assert mixed <= left_over.sum() // global_batch


def test_mixed_batches_combine_neighbouring_groups():
    indices = np.arange(16)
    groups = np.array([5, 1, 2, 4, 1, 2, 3, 6, 6, 3, 4, 5, 1, 1, 1, 1], dtype=np.uint8)
    batches = groups[regrouped(indices, groups, global_batch=4, key=0)].reshape(-1, 4)
    assert sorted(sorted(batch) for batch in batches.tolist()) == [
        [1, 1, 1, 1],
        [1, 1, 2, 2],
        [3, 3, 4, 4],
        [5, 5, 6, 6],
    ]


def test_positions_of_a_group_keep_their_order():
    groups = np.arange(32, dtype=np.uint8) % 2
    batches = regrouped(np.arange(32), groups, global_batch=4, key=1).reshape(-1, 4)
    assert sorted(batches.tolist()) == sorted(
        list(range(first + odd, first + 8 + odd, 2)) for first in range(0, 32, 8) for odd in (0, 1)
    )
    assert not np.array_equal(batches[:, 0], np.sort(batches[:, 0]))


def test_more_than_256_groups_are_supported():
    sampler = GroupedSampler(RandomSampler(1200), np.arange(1200) // 4)
    order = sampler.batch_order(seed=0, epoch=0, global_batch=4)[:].reshape(-1, 4)
    assert (order // 4 == order[:, :1] // 4).all()


def test_drop_last_drops_all_images_equally_often():
    """If drop_last dropped the end of the mixed batches, the last group of three would never come.

    Each epoch drops 3 of 35 images, so a count has 3 / 34 of the variance of independent draws.
    """
    sampler = GroupedSampler(RandomSampler(35), np.repeat([0, 1, 2], [16, 16, 3]))
    orders = [sampler.batch_order(seed=0, epoch=e, global_batch=8)[0:32] for e in range(4000)]
    assert_fits(np.bincount(np.concatenate(orders), minlength=35), np.full(35, 1 / 35), scale=34 / 3)


def test_batches_are_in_random_order():
    """Each of four equal groups is the first batch as often as any other, by chance refused once in 10^6 times."""
    sampler = GroupedSampler(SequentialSampler(16), np.repeat(range(4), 4))
    first = [sampler.batch_order(seed=1, epoch=e, global_batch=4)[0:1][0] // 4 for e in range(4000)]
    assert_fits(np.bincount(first), np.full(4, 0.25))


class Reversed(WeightedRandomSampler):
    """An order of its own, which must not be passed over."""

    def order(self, *, seed, epoch):
        return SequentialSampler(len(self)).order(seed=seed, epoch=epoch)


def test_subclass_with_another_order_is_regrouped():
    order = GroupedSampler(Reversed([1.0] * 8), [0, 1] * 4).batch_order(seed=0, epoch=0, global_batch=4)
    assert sorted(order[:].tolist()) == list(range(8))


# -- as a sampler -----------------------------------------------------------------------------------------------


def test_grouped_sampler_reports_as_its_inner_sampler():
    inner = WeightedRandomSampler([1.0, 3.0, 0.0], 8, seed=5)
    sampler = GroupedSampler(inner, torch.tensor([0, 1, 1]))
    assert (len(sampler), sampler.num_samples, sampler.num_indices, sampler.revision) == (8, 8, 3, 0)
    assert (sampler.seed, GroupedSampler(inner, [0, 1, 1], seed=6).seed) == (5, 6)
    np.testing.assert_allclose(sampler.expected_visits(), [2, 6, 0])
    np.testing.assert_array_equal(sampler.order(seed=1, epoch=2)[:], inner.order(seed=1, epoch=2)[:])
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.num_epochs_set) == (4, 1)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)
    with pytest.raises(ValueError, match="read-only"):
        sampler.group_ids[0] = 1


def test_group_tables_are_cached_until_weights_change(monkeypatch):
    sampler = GroupedSampler(WeightedRandomSampler(np.arange(40)), np.arange(40) % 3)
    tables = []
    size = len(pickle.dumps(sampler))
    monkeypatch.setattr(
        "lit_loader.samplers.grouped.AliasTable", lambda weights: tables.append(weights) or AliasTable(weights)
    )

    def order(epoch):
        return sampler.batch_order(seed=1, epoch=epoch, global_batch=4)

    first = order(0)
    indices = first[:]
    num_made = len(tables)
    assert [order(epoch)[:].size for epoch in range(1, 5)] == [40] * 4
    assert len(tables) == num_made <= 4
    assert len(pickle.dumps(sampler)) == size
    sampler.sampler.set_weights(np.arange(40) % 3 == 1)
    assert set((order(0)[:] % 3).tolist()) == {1}
    np.testing.assert_array_equal(first[:], indices)


class Pairs(RandomSampler):
    """A user's sampler that composes batches."""

    def batch_order(self, *, seed, epoch, global_batch):
        return SequentialSampler(len(self)).order(seed=seed, epoch=epoch)


@pytest.mark.parametrize(
    ("sampler", "group_ids", "error", "message"),
    [
        (GroupedSampler(RandomSampler(3), [0, 1, 1]), [0, 1, 1], TypeError, "GroupedSampler composes every batch"),
        (Pairs(3), [0, 1, 1], TypeError, "Pairs composes every batch itself"),
        (MixedSourceSampler([2, 1], [1, 1]), [0, 1, 1], TypeError, "MixedSourceSampler composes"),
        (TorchRandomSampler(range(3)), [0, 1, 1], TypeError, r"got RandomSampler.*lit_loader\.samplers"),
        (RandomSampler(3), [0, 1], ValueError, r"`group_ids` has 2 entries, and RandomSampler .* num_indices=3"),
        (RandomSampler(3), [0, -1, -2], ValueError, r"got group_ids\[1\]=-1"),
        (RandomSampler(3), [0, 65535, 65536], ValueError, r"got group_ids\[2\]=65536; count the groups from 0"),
        (RandomSampler(3), [0.0, 1.0, 1.0], TypeError, "`group_ids` must be integers"),
    ],
)
def test_incompatible_samplers_and_groups_are_refused(sampler, group_ids, error, message):
    with pytest.raises(error, match=message):
        GroupedSampler(sampler, group_ids)


def test_grown_dataset_is_refused():
    data = [0, 1, 2]
    sampler = GroupedSampler(RandomSampler(data), [0, 1, 1])
    data.append(3)
    with pytest.raises(ValueError, match="num_indices=4"):
        sampler.batch_order(seed=0, epoch=0, global_batch=2)


@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, DataLoader])
def test_grouped_sampler_without_a_seed_is_refused(loader):
    sampler = GroupedSampler(RandomSampler(6), [0, 1] * 3)
    with pytest.raises(RuntimeError, match=r"GroupedSampler cannot be iterated.*seed= and batch_size="):
        next(iter(loader(range(6), 2, sampler=sampler)))


# -- through the loader -----------------------------------------------------------------------------------------


def indices_of(sampler, *, batch_size, **workers):
    """Return the indices of each batch of two epochs."""
    with DataLoader(Drawing(50), batch_size, sampler=sampler, seed=4, **workers) as loader:
        return [[batch["index"].tolist() for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("inner", [RandomSampler(50), WeightedRandomSampler(np.arange(50) + 1, 46)])
def test_loader_batches_are_slices_of_the_grouped_order(inner):
    sampler = GroupedSampler(inner, np.arange(50) % 3)
    alone = indices_of(sampler, batch_size=8)
    for epoch, batches in enumerate(alone):
        order = sampler.batch_order(seed=4, epoch=epoch, global_batch=8)[:].tolist()
        assert batches == [order[n : n + 8] for n in range(0, len(order), 8)]
    assert alone[0] != alone[1]
    assert indices_of(sampler, batch_size=8, num_workers=2, persistent_workers=True) == alone
