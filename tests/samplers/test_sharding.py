"""Ranks share an order: together all of it, each as much as any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lit_loader.samplers import RandomSampler, SliceableOrder, array_order, num_batches, rank_batch

world_sizes = st.integers(1, 8)
batch_sizes = st.integers(1, 9)


def _all_batches(order, *, batch_size, world_size, drop_last):
    """Return batches[batch][rank]."""
    shape = {"batch_size": batch_size, "world_size": world_size, "drop_last": drop_last}
    count = num_batches(len(order), **shape)
    return [[rank_batch(order, b, rank=r, **shape) for r in range(world_size)] for b in range(count)]


@given(n=st.integers(1, 120), world_size=world_sizes, batch_size=batch_sizes, drop_last=st.booleans())
@example(n=1, world_size=8, batch_size=4, drop_last=False)
@example(n=3, world_size=8, batch_size=1, drop_last=False)
def test_ranks_together_give_the_global_order_in_equal_parts(n, world_size, batch_size, drop_last):
    order = RandomSampler(n).order(seed=3, epoch=2)
    global_indices = order[:]
    batches = _all_batches(order, batch_size=batch_size, world_size=world_size, drop_last=drop_last)
    positions = [p for ranks in batches for part in ranks for p in part.positions]
    assert positions == list(range(len(positions)))  # in order, no overlap, no gap
    num_unique = len(global_indices)
    if drop_last:
        num_unique -= num_unique % (batch_size * world_size)
    assert len(positions) - num_unique in (range(1) if drop_last else range(world_size))  # minimal filling
    indices = np.concatenate([part.indices for ranks in batches for part in ranks] or [global_indices[:0]])
    np.testing.assert_array_equal(indices, global_indices[np.array(positions, dtype=np.int64) % len(global_indices)])
    for number, ranks in enumerate(batches):
        sizes = {len(part.indices) for part in ranks}
        assert len(sizes) == 1
        assert sizes == {batch_size} or (number == len(batches) - 1 and max(sizes) <= batch_size)
    assert all(part.indices.dtype == np.int64 for ranks in batches for part in ranks)


@given(n=st.integers(1, 200), world_size=world_sizes, batch_size=batch_sizes)
def test_another_world_size_cuts_the_same_global_batches(n, world_size, batch_size):
    order = RandomSampler(n).order(seed=0, epoch=0)
    split = _all_batches(order, batch_size=batch_size, world_size=world_size, drop_last=True)
    single = _all_batches(order, batch_size=batch_size * world_size, world_size=1, drop_last=True)
    for ranks, (global_batch,) in zip(split, single, strict=True):
        np.testing.assert_array_equal(np.concatenate([part.indices for part in ranks]), global_batch.indices)


def test_order_is_repeated_for_more_ranks_than_positions():
    order = array_order(np.array([5, 6, 7]))
    (ranks,) = _all_batches(order, batch_size=4, world_size=8, drop_last=False)
    assert [part.indices.tolist() for part in ranks] == [[5], [6], [7], [5], [6], [7], [5], [6]]
    assert [part.positions for part in ranks] == [range(p, p + 1) for p in range(8)]
    assert _all_batches(order, batch_size=4, world_size=8, drop_last=True) == []


def test_an_empty_order_has_no_batches():
    for drop_last in (True, False):
        assert num_batches(0, batch_size=2, world_size=3, drop_last=drop_last) == 0


def test_a_rank_reads_its_own_positions_only():
    slices = []

    def recording(start, stop):
        slices.append((start, stop))
        return np.arange(start, stop)

    rank_batch(SliceableOrder(10**12, recording), 10**6, batch_size=8, rank=2, world_size=4, drop_last=False)
    assert slices == [(32 * 10**6 + 16, 32 * 10**6 + 24)]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"batch_size": 2.0}, TypeError, "`batch_size` must be an int"),
        ({"world_size": 0}, ValueError, "world_size=0"),
        ({"rank": 2}, ValueError, "rank=2 does not exist with world_size=2"),
        ({"rank": -1}, ValueError, "rank=-1"),
        ({"batch": 3}, IndexError, "batch=3 does not exist, this order gives each rank 3 batches"),
        ({"batch": -1}, IndexError, "batch=-1"),
    ],
)
def test_arguments_out_of_range_are_refused(changed, error, message):
    arguments = {"batch": 0, "batch_size": 2, "rank": 0, "world_size": 2, "drop_last": False, **changed}
    with pytest.raises(error, match=message):
        rank_batch(np.arange(10), arguments.pop("batch"), **arguments)
