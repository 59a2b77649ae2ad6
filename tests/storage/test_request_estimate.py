"""Requests an image before training: the rules of the fetch process on orders whose requests can be counted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lit_loader.samplers import BlockShuffleSampler, RandomSampler, SequentialSampler
from lit_loader.storage.catalog import Catalog
from lit_loader.storage.fetching import REQUEST_BYTES, Neighbours, request_distances
from lit_loader.storage.images import StoredSamples
from lit_loader.storage.request_estimate import requests_per_image
from lit_loader.storage.settings import StorageSettings

NUM_SHARDS = 20
SHARD_SIZE = 256
LENGTH = 65_536 - 1024
PER_REQUEST = REQUEST_BYTES // 65_536


def stored_samples(num_shards=NUM_SHARDS, size=SHARD_SIZE, length=LENGTH, *, first=0, **settings):
    """Return samples in shards of images of one length, each after a header of 1024 bytes."""
    count = num_shards * size
    catalog = Catalog(
        root="s3://bucket/set",
        objects=[f"{shard}.tar" for shard in range(num_shards)],
        versions=[""] * num_shards,
        object_of=np.repeat(np.arange(num_shards, dtype=np.int32), size),
        starts=np.tile(np.arange(size) * (length + 1024), num_shards).astype(np.int64),
        lengths=np.full(count, length, dtype=np.int64),
        path_hashes=np.arange(count, dtype=np.uint64),
    )
    store = SimpleNamespace(catalog=catalog, settings=StorageSettings(url=catalog.root, **settings))
    return StoredSamples(first, np.arange(count, dtype=np.int32), store)


def order_of(sampler):
    return sampler.order(seed=0, epoch=0)


def test_sequential_order_needs_one_request_for_each_range():
    assert requests_per_image(stored_samples(), order_of(SequentialSampler(NUM_SHARDS * SHARD_SIZE))) == 1 / PER_REQUEST


def test_raw_images_need_one_request_each():
    samples = stored_samples(num_shards=40, size=1)
    assert requests_per_image(samples, order_of(RandomSampler(40))) == 1


def test_random_order_needs_about_one_request_and_blocks_need_few():
    # Neighbours within half of the budget share a request: 512 of 5,120 images.
    budget = 2 * 512 * 65_536
    samples = stored_samples(cache_budget=budget, window=64)
    random = requests_per_image(samples, order_of(RandomSampler(NUM_SHARDS * SHARD_SIZE)))
    assert 0.85 < random < 1
    # Blocks of whole ranges, with a mix of half as many images.
    blocks = BlockShuffleSampler(shard_sizes=[SHARD_SIZE] * NUM_SHARDS, open_shards=1, block_size=PER_REQUEST)
    assert requests_per_image(samples, order_of(blocks)) == pytest.approx(1 / PER_REQUEST, rel=0.05)
    # With a larger mix, neighbours are needed too late to share a request.
    wide = BlockShuffleSampler(shard_sizes=[SHARD_SIZE] * NUM_SHARDS, open_shards=10, block_size=PER_REQUEST)
    assert requests_per_image(samples, order_of(wide)) > 0.3


def test_whole_set_in_the_reach_is_read_by_ranges():
    samples = stored_samples(length=1024)
    per_request = SHARD_SIZE  # a shard has half a mebibyte
    estimate = requests_per_image(samples, order_of(RandomSampler(NUM_SHARDS * SHARD_SIZE)))
    assert estimate == pytest.approx(1 / per_request)


def test_images_elsewhere_do_not_count():
    count = NUM_SHARDS * SHARD_SIZE
    samples = stored_samples(first=100)
    assert requests_per_image(samples, order_of(SequentialSampler(100 + count))) == 1 / PER_REQUEST
    assert requests_per_image(samples, order_of(SequentialSampler(100))) is None
    absent = StoredSamples(samples.first, np.full(count, -1, dtype=np.int32), samples.store)
    assert requests_per_image(absent, order_of(SequentialSampler(count))) is None


def test_images_on_this_host_have_no_requests():
    samples = stored_samples()
    local = StoredSamples(samples.first, samples.slots, SimpleNamespace(catalog=samples.store.catalog, settings=None))
    assert requests_per_image(local, order_of(RandomSampler(10))) is None


def test_distances_follow_the_budget():
    neighbours = Neighbours(stored_samples().store.catalog)
    sizes = np.full(1 << 20, 1 << 16)
    assert request_distances(neighbours, sizes, 1 << 36, 512) == (1 << 13, 1 << 15)
    assert request_distances(neighbours, sizes, 1 << 30, 512) == (1 << 11, 1 << 13)
    assert request_distances(neighbours, sizes, 1 << 26, 512) == (512, 512)
    raw = Neighbours(stored_samples(size=1).store.catalog)
    assert request_distances(raw, sizes, 1 << 36, 512) == (512, 512)
