"""Every sampler on any number of ranks: the ranks' batches together are the batch order, and equally many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader import DataLoader, samplers
from lit_loader.samplers import (
    ClassAwareSampler,
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    OrderSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

ONCE = {  # every index at most once an epoch
    "sequential": SequentialSampler,
    "random": RandomSampler,
    "weighted without replacement": lambda n: WeightedRandomSampler(np.arange(n + 1), n, replacement=False),
    "subset": lambda n: SubsetRandomSampler(np.arange(n) * 2),
    "subset in order": lambda n: SubsetRandomSampler(np.arange(n) * 2, shuffle=False),
    "grouped": lambda n: GroupedSampler(RandomSampler(n), np.arange(n) % 3),
    "grouped, without replacement": lambda n: GroupedSampler(
        WeightedRandomSampler(np.arange(1, n + 1), n, replacement=False), np.arange(n) % 2
    ),
}
AGAIN = {
    "weighted": lambda n: WeightedRandomSampler(np.arange(1, n + 1), n + 2),
    "class balanced": lambda n: ClassBalancedSampler(np.arange(n) % 2 - 1, num_samples=n + 1),
    "class aware": lambda n: ClassAwareSampler(np.arange(n) % 5, num_samples=n + 4),
    "repeat factor": lambda n: RepeatFactorSampler(np.arange(1, n + 1) / 4 + 0.3),
    "mixed source": lambda n: MixedSourceSampler([n, 3], [2, 1]),
    "grouped, weighted": lambda n: GroupedSampler(WeightedRandomSampler(np.arange(1, n + 1)), np.arange(n) % 3),
    "grouped, class balanced": lambda n: GroupedSampler(
        ClassBalancedSampler(np.arange(n) % 2 - 1, num_samples=n + 1), np.arange(n) % 4
    ),
}
FAMILIES = {**ONCE, **AGAIN}
FIXED = ("sequential", "subset in order")
names = st.sampled_from(sorted(FAMILIES))
lengths = st.integers(1, 60)
seeds = st.integers(0, 2**62)
epochs = st.integers(0, 1000)


def rank_batches(sampler, *, world_size, batch_size, drop_last, seed, epoch):
    """Return what each rank's loader gives in an epoch: batches[rank][batch], lists of indices."""
    batches_by_rank = []
    for rank in range(world_size):
        loader = DataLoader(
            range(sampler.num_indices),
            batch_size=batch_size,
            sampler=sampler,
            drop_last=drop_last,
            collate_fn=list,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        loader.set_epoch(epoch)
        batches_by_rank.append(list(loader))
        assert len(batches_by_rank[-1]) == len(loader)
    return batches_by_rank


def test_no_sampler_is_left_out():
    classes = [getattr(samplers, name) for name in samplers.__all__]
    ours = {member for member in classes if isinstance(member, type) and issubclass(member, OrderSampler)}
    assert ours - {OrderSampler} == {type(make(9)) for make in FAMILIES.values()}


@given(
    name=names,
    n=lengths,
    world_size=st.integers(1, 8),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    seed=seeds,
    epoch=epochs,
)
def test_ranks_together_give_the_batch_order(name, n, world_size, batch_size, drop_last, seed, epoch):
    sampler = FAMILIES[name](n)
    global_batch = batch_size * world_size
    global_indices = sampler.batch_order(seed=seed, epoch=epoch, global_batch=global_batch)[:].tolist()
    ranks = rank_batches(
        sampler, world_size=world_size, batch_size=batch_size, drop_last=drop_last, seed=seed, epoch=epoch
    )
    assert len({len(batches) for batches in ranks}) == 1  # as many batches on every rank
    dealt = []
    for parts in zip(*ranks, strict=True):
        assert len({len(part) for part in parts}) == 1  # and of one length
        dealt += [index for part in parts for index in part]
    num_unique = len(global_indices) // global_batch * global_batch if drop_last else len(global_indices)
    assert dealt[:num_unique] == global_indices[:num_unique]
    duplicates = dealt[num_unique:]
    assert len(duplicates) < (1 if drop_last else world_size)
    assert duplicates == [global_indices[number % len(global_indices)] for number in range(len(duplicates))]
    if name in ONCE:
        assert max(Counter(dealt[:num_unique]).values(), default=1) == 1  # no two ranks, nor one twice, have an index


@given(name=names, n=lengths, global_batch=st.integers(1, 40), seed=seeds, epoch=epochs, data=st.data())
def test_a_slice_of_a_batch_order_equals_the_slice_of_the_whole(name, n, global_batch, seed, epoch, data):
    place = {"seed": seed, "epoch": epoch, "global_batch": global_batch}
    indices = FAMILIES[name](n).batch_order(**place)[:]
    a = data.draw(st.integers(-80, 80))
    b = data.draw(st.integers(-80, 80))
    order = FAMILIES[name](n).batch_order(**place)  # the same seed, made again, and never read as a whole
    np.testing.assert_array_equal(order[a:b], indices[a:b])
    np.testing.assert_array_equal(order[:], indices)


@given(name=names, global_batch=st.integers(1, 16), seed=seeds, epoch=epochs)
def test_epochs_and_seeds_differ_where_the_order_is_random(name, global_batch, seed, epoch):
    def order(seed, epoch):
        return FAMILIES[name](200).batch_order(seed=seed, epoch=epoch, global_batch=global_batch)[:].tolist()

    first = order(seed, epoch)
    assert (order(seed, epoch + 1) == first) == (name in FIXED)
    assert (order(seed + 1, epoch) == first) == (name in FIXED)


class Backwards(SequentialSampler):
    """Its batch order is another than its order."""

    def batch_order(self, *, seed, epoch, global_batch):
        self.asked = (seed, epoch, global_batch)
        return np.arange(len(self))[::-1].copy()


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "worker_method": "thread"}], ids=["inline", "thread"])
def test_batches_are_sliced_from_the_batch_order(workers):
    sampler = Backwards(10)
    samples = Backwards(10)
    place = {"rank": 1, "world_size": 2, "seed": 4}
    loader = DataLoader(range(10), batch_size=2, sampler=sampler, collate_fn=list, **place, **workers)
    loader.set_epoch(3)
    assert list(loader) == [[7, 6], [3, 2], [0]]
    assert sampler.asked == (4, 3, 4)
    single = DataLoader(range(10), batch_size=None, sampler=samples, **place, **workers)
    assert list(single) == [8, 6, 4, 2, 0]
    assert samples.asked == (4, 0, 2)
