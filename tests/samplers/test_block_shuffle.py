"""`BlockShuffleSampler`: a bounded number of open blocks, exact visits, and a mix as good as the bound allows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import (
    BlockShuffleSampler,
    GroupedSampler,
    MixedSourceSampler,
    RandomSampler,
    num_batches,
    rank_batch,
)
from lit_loader.samplers.block_shuffle import _EpochSteps
from tests.support.chi_square import assert_fits

shard_numbers = st.lists(st.integers(-1, 6), min_size=1, max_size=120)
settings = {
    "open_shards": st.integers(1, 9),
    "block_size": st.none() | st.integers(1, 20),
    "seed": st.integers(),
    "epoch": st.integers(0, 2**40),
}


def blocks_of(shards, block_size):
    """Return the block of each index by the documented rule: equal parts of each shard of at most a size."""
    blocks = np.empty(len(shards), dtype=np.int64)
    num_blocks = 0
    for shard in np.unique(shards):
        members = np.flatnonzero(np.asarray(shards) == shard)
        num_parts = 1 if block_size is None else -(-len(members) // block_size)
        for part in range(num_parts):
            blocks[members[part * len(members) // num_parts : (part + 1) * len(members) // num_parts]] = num_blocks
            num_blocks += 1
    return blocks


def open_blocks(blocks):
    """Return the number of blocks that have begun and not ended at each position of an order of blocks."""
    changes = np.zeros(len(blocks) + 1, dtype=np.int64)
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        changes[places[0]] += 1
        changes[places[-1] + 1] -= 1
    return np.cumsum(changes)[:-1]


@given(shards=shard_numbers, **settings)
def test_every_index_comes_once_from_a_bounded_number_of_open_blocks(shards, open_shards, block_size, seed, epoch):
    sampler = BlockShuffleSampler(shards, open_shards=open_shards, block_size=block_size)
    indices = sampler.order(seed=seed, epoch=epoch)[:]
    assert sorted(indices.tolist()) == list(range(len(shards)))
    blocks = blocks_of(shards, block_size)
    assert sampler.num_blocks == blocks.max() + 1
    assert open_blocks(blocks[indices]).max() <= sampler.num_open_blocks
    assert sampler.num_open_blocks <= max(1, round(open_shards * sampler.num_blocks / sampler.num_shards))


@given(shards=shard_numbers, seeds_of_repeats=st.integers(0, 2**32), **settings)
def test_repeats_are_met_within_one_visit_in_open_blocks(
    shards, seeds_of_repeats, open_shards, block_size, seed, epoch
):
    repeats = np.random.default_rng(seeds_of_repeats).choice([0.0, 0.4, 1.0, 2.7, 3.0], len(shards))
    repeats[0] = 1.5
    sampler = BlockShuffleSampler(shards, open_shards=open_shards, block_size=block_size, repeats=repeats)
    indices = sampler.order(seed=seed, epoch=epoch)[:]
    counts = np.bincount(indices, minlength=len(shards))
    assert len(indices) == len(sampler)
    assert abs(len(sampler) - repeats.sum()) <= 0.5 + 1e-9
    assert (counts >= np.floor(repeats)).all()
    assert (counts <= np.ceil(repeats)).all()
    assert open_blocks(blocks_of(shards, block_size)[indices]).max() <= sampler.num_open_blocks


def test_mean_visits_equal_expected_visits():
    repeats = [0.25, 1.0, 1.5, 2.75, 0.5] * 4
    sampler = BlockShuffleSampler(np.repeat([2, 0, 1, 5], 5), open_shards=2, block_size=3, repeats=repeats)
    np.testing.assert_allclose(sampler.expected_visits(), repeats)
    orders = [sampler.order(seed=3, epoch=epoch)[:] for epoch in range(800)]
    counts = np.bincount(np.concatenate(orders), minlength=20)
    np.testing.assert_allclose(counts / 800, repeats, atol=4 * 0.5 / 800**0.5)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), **settings)
def test_sizes_give_the_order_of_consecutive_shards(sizes, open_shards, block_size, seed, epoch):
    options = {"open_shards": open_shards, "block_size": block_size}
    of_sizes = BlockShuffleSampler(shard_sizes=sizes, **options)
    of_shards = BlockShuffleSampler(np.repeat(np.arange(len(sizes)), sizes), **options)
    assert of_sizes.fingerprint() == of_shards.fingerprint()
    np.testing.assert_array_equal(of_sizes.order(seed=seed, epoch=epoch)[:], of_shards.order(seed=seed, epoch=epoch)[:])


def test_slice_computes_only_the_groups_that_are_open_there(monkeypatch):
    computed = []
    group = vars(_EpochSteps)["_group"]
    monkeypatch.setattr(_EpochSteps, "_group", lambda self, number: computed.append(number) or group(self, number))
    sampler = BlockShuffleSampler(shard_sizes=[100] * 400, open_shards=8, block_size=None)
    order = sampler.order(seed=0, epoch=0)
    order[20_000:20_010]
    assert len(computed) == 8
    for start in range(20_010, 21_000, 10):
        order[start : start + 10]
    # Each step opens one group more: no group is computed twice.
    assert len(set(computed)) == len(computed) <= 8 + 11


def test_half_of_the_open_samples_need_a_cache():
    sampler = BlockShuffleSampler(shard_sizes=[50] * 200, open_shards=16, block_size=None)
    shards = sampler.order(seed=0, epoch=0)[:] // 50
    firsts = np.zeros(len(shards))
    _, first_places = np.unique(shards, return_index=True)
    # A cache that reads a shard at its first visit and drops each image after its own.
    firsts[first_places] = 50
    cached = np.cumsum(firsts - 1)
    assert cached[2000:-2000].mean() / (16 * 50) < 0.53


# -- mixing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 17, 59])
def test_every_index_is_equally_likely_at_every_position(position):
    sampler = BlockShuffleSampler(shard_sizes=[12] * 5, open_shards=2, block_size=6)
    drawn = [int(sampler.order(seed=seed, epoch=1)[position : position + 1][0]) for seed in range(1500)]
    assert_fits(np.bincount(drawn, minlength=60), np.full(60, 1 / 60))


def test_every_position_of_an_index_is_equally_likely():
    sampler = BlockShuffleSampler(shard_sizes=[4] * 6, open_shards=2, block_size=None)
    places = [sampler.order(seed=seed, epoch=0)[:].tolist().index(7) for seed in range(1500)]
    assert_fits(np.bincount(places, minlength=24), np.full(24, 1 / 24))


def test_all_pairs_of_shards_share_batches_over_epochs():
    sampler = BlockShuffleSampler(shard_sizes=[20] * 10, open_shards=3, block_size=None)
    pairs = set()
    for epoch in range(40):
        shards = sampler.order(seed=2, epoch=epoch)[:].reshape(-1, 20) // 20
        for batch in shards:
            pairs |= set(combinations(np.unique(batch).tolist(), 2))
    assert pairs == set(combinations(range(10), 2))


def test_as_many_open_shards_as_shards_are_a_full_shuffle():
    sampler = BlockShuffleSampler(shard_sizes=[2, 2, 1], open_shards=3, block_size=1)
    first_pairs = [tuple(sampler.order(seed=0, epoch=epoch)[:2].tolist()) for epoch in range(4000)]
    numbers = {pair: number for number, pair in enumerate((a, b) for a in range(5) for b in range(5) if a != b)}
    assert_fits(np.bincount([numbers[pair] for pair in first_pairs], minlength=20), np.full(20, 0.05))


def test_mix_of_sources_keeps_the_blocks_of_each():
    sources = [BlockShuffleSampler(shard_sizes=[30] * 8, open_shards=2, block_size=10), RandomSampler(60)]
    indices = MixedSourceSampler(sources).order(seed=5, epoch=0)[:]
    blocks = indices[indices < 240] // 10
    assert sorted(indices[indices < 240].tolist()) == list(range(240))
    assert open_blocks(blocks).max() <= sources[0].num_open_blocks == 6


def test_ranks_take_parts_of_the_same_blocks():
    sampler = BlockShuffleSampler(shard_sizes=[40] * 6, open_shards=2, block_size=8)
    order = sampler.order(seed=0, epoch=3)
    for batch in range(num_batches(len(order), batch_size=5, world_size=3, drop_last=True)):
        cut = {"batch_size": 5, "world_size": 3, "drop_last": True}
        parts = [rank_batch(order, batch, rank=rank, **cut).indices for rank in range(3)]
        np.testing.assert_array_equal(np.concatenate(parts), order[batch * 15 : batch * 15 + 15])


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": []}, "expected at least one shard, got none"),
        ({"open_shards": 0}, "`open_shards` must be at least 1, got open_shards=0"),
        ({"block_size": -1}, "`block_size` must be at least 1, got block_size=-1"),
        ({"repeats": [1.0]}, "`repeats` has 1 entries, and there are 3 indices"),
        ({"repeats": [1.0, -1.0, 1.0]}, r"repeats\[1\]=-1.0"),
    ],
)
def test_invalid_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BlockShuffleSampler(**{"shards": [0, 0, 1], **arguments})


def test_invalid_sizes_of_shards_are_refused():
    with pytest.raises(TypeError, match="either `shards`, the shard of each index, or `shard_sizes`"):
        BlockShuffleSampler([0, 1], shard_sizes=[1, 1])
    with pytest.raises(TypeError, match="either"):
        BlockShuffleSampler()
    with pytest.raises(ValueError, match=r"shard_sizes\[1\]=0; leave out empty shards"):
        BlockShuffleSampler(shard_sizes=[3, 0])
    with pytest.raises(TypeError, match="`shards` must be integers"):
        BlockShuffleSampler([0.5, 1.5])


def test_groups_around_blocks_are_refused():
    with pytest.raises(TypeError, match="one request an image"):
        GroupedSampler(BlockShuffleSampler([0, 0, 1]), [0, 1, 0])
