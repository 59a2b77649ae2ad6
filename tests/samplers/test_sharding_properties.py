"""Every sampler on any number of ranks: the ranks' batches together are the batch order, and equally many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader import DataLoader
from lit_loader.samplers import SequentialSampler
from tests.support.sampler_families import FAMILIES, WITHOUT_REPEATS


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


@given(
    name=st.sampled_from(sorted(FAMILIES)),
    n=st.integers(2, 60),
    world_size=st.integers(1, 8),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**62),
    epoch=st.integers(0, 1000),
)
def test_ranks_together_give_the_batch_order(name, n, world_size, batch_size, drop_last, seed, epoch):
    sampler = FAMILIES[name](n, None)
    global_batch = batch_size * world_size
    global_indices = sampler.batch_order(seed=seed, epoch=epoch, global_batch=global_batch)[:].tolist()
    ranks = rank_batches(
        sampler, world_size=world_size, batch_size=batch_size, drop_last=drop_last, seed=seed, epoch=epoch
    )
    assert len({len(batches) for batches in ranks}) == 1  # equally many batches on every rank
    dealt = []
    for parts in zip(*ranks, strict=True):
        assert len({len(part) for part in parts}) == 1  # of one length
        dealt += [index for part in parts for index in part]
    num_unique = len(global_indices) // global_batch * global_batch if drop_last else len(global_indices)
    assert dealt[:num_unique] == global_indices[:num_unique]
    duplicates = dealt[num_unique:]
    assert len(duplicates) < (1 if drop_last else world_size)
    assert duplicates == [global_indices[number % len(global_indices)] for number in range(len(duplicates))]
    if name in WITHOUT_REPEATS:
        assert max(Counter(dealt[:num_unique]).values(), default=1) == 1  # no index is on two ranks, or twice on one


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
