"""Guarantee: a store receives the samples of a rank in the order in which the loader delivers them."""

from __future__ import annotations

import gc
import weakref
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import Dataset, Subset

from lit_loader import DataLoader, RandomSampler, WeightedRandomSampler
from lit_loader.datasets import JoinedDataset
from lit_loader.loader import read_ahead
from lit_loader.storage.images import StoredSamples
from tests.support.sampler_families import FAMILIES

NUM_SAMPLES = 23


class ToldStream:
    """A stream that computes all slots at once."""

    def __init__(self, store):
        self.store = store
        self.slots = []
        self.num_delivered = 0
        self.closed = False

    def begin(self, blocks):
        self.store.num_begun += 1
        self.num_delivered = 0
        self.slots = [int(slot) for block in blocks for slot in block]

    def extend(self, blocks):
        self.slots += [int(slot) for block in blocks for slot in block]

    def delivered(self, total):
        self.num_delivered = total

    def close(self):
        self.closed = True


class ToldStore:
    def __init__(self):
        self.streams = []
        self.num_begun = 0

    def open_stream(self, num_prefetched):
        self.num_prefetched = num_prefetched
        stream = ToldStream(self)
        self.streams.append(stream)
        return stream


class Stored(Dataset):
    """Samples are their indices; the slot of sample i is 100 + i, and every fifth has no slot."""

    def __init__(self, num_samples=NUM_SAMPLES, store=None):
        self.num_samples = num_samples
        self.store = ToldStore() if store is None else store

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return index

    def stored_samples(self):
        slots = np.arange(100, 100 + self.num_samples, dtype=np.int32)
        slots[::5] = -1
        return [StoredSamples(0, slots, self.store)]


def slots_of(samples):
    return [-1 if sample % 5 == 0 else 100 + sample for sample in samples]


def delivered(loader):
    return [int(sample) for batch in loader for sample in np.atleast_1d(batch)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_store_is_told_the_order_of_each_rank(name, drop_last):
    for rank, world_size in [(0, 1), (0, 2), (1, 2)]:
        dataset = Stored()
        arguments = {"seed": 3, "rank": rank, "world_size": world_size, "drop_last": drop_last, "batch_size": 4}
        loader = DataLoader(dataset, sampler=FAMILIES[name](NUM_SAMPLES, None), **arguments)
        epochs = [delivered(loader) for _ in range(3)]
        samples = list(chain.from_iterable(epochs))
        stream = dataset.store.streams[-1]
        # The epoch after the last one is in the stream as well.
        assert stream.slots[: len(samples)] == slots_of(samples)
        assert stream.num_delivered == len(samples)
        assert dataset.store.num_begun == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_resumed_epoch_is_told_from_its_position(name):
    def loader_of(dataset):
        return DataLoader(
            dataset, sampler=FAMILIES[name](NUM_SAMPLES, None), seed=3, batch_size=4, world_size=2, rank=1
        )

    loader = loader_of(Stored())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    remaining = delivered(batches)
    dataset = Stored()
    resumed = loader_of(dataset)
    resumed.load_state_dict(state)
    assert delivered(resumed) == remaining
    following = delivered(resumed)
    stream = dataset.store.streams[-1]
    assert stream.slots[: len(remaining + following)] == slots_of(remaining + following)
    assert dataset.store.num_begun == 1


def test_deliveries_are_reported_batch_by_batch():
    dataset = Stored()
    batches = iter(DataLoader(dataset, seed=0, batch_size=5))
    next(batches)
    next(batches)
    assert dataset.store.streams[0].num_delivered == 10


def test_single_samples_are_told_without_batching():
    dataset = Stored()
    samples = delivered(DataLoader(dataset, seed=0, batch_size=None, sampler=RandomSampler(dataset)))
    assert dataset.store.streams[0].slots[:NUM_SAMPLES] == slots_of(samples)
    assert dataset.store.streams[0].num_delivered == NUM_SAMPLES


def test_another_epoch_begins_the_stream_again():
    dataset = Stored()
    loader = DataLoader(dataset, seed=0, batch_size=4, shuffle=True)
    delivered(loader)
    loader.set_epoch(7)
    samples = delivered(loader)
    assert dataset.store.streams[-1].slots[:NUM_SAMPLES] == slots_of(samples)
    assert dataset.store.num_begun == 2


def test_changed_weights_begin_the_stream_again():
    dataset = Stored()
    sampler = WeightedRandomSampler(np.ones(NUM_SAMPLES), NUM_SAMPLES)
    loader = DataLoader(dataset, seed=0, batch_size=4, sampler=sampler)
    delivered(loader)
    sampler.set_weights(np.arange(NUM_SAMPLES))
    samples = delivered(loader)
    assert dataset.store.streams[-1].slots[:NUM_SAMPLES] == slots_of(samples)


def test_two_live_iterators_have_a_stream_each():
    dataset = Stored()
    loader = DataLoader(dataset, seed=0, batch_size=4, shuffle=True)
    first = iter(loader)
    second = iter(loader)
    samples = [delivered([next(first)]), delivered([next(second)])]
    samples = [samples[0] + delivered(first), samples[1] + delivered(second)]
    for stream, epoch in zip(dataset.store.streams, samples, strict=True):
        assert stream.slots[:NUM_SAMPLES] == slots_of(epoch)


def test_broken_off_epoch_ends_its_stream():
    dataset = Stored()
    loader = DataLoader(dataset, seed=0, batch_size=4)
    batches = iter(loader)
    next(batches)
    assert not dataset.store.streams[0].closed
    batches.close()
    assert dataset.store.streams[0].closed


def test_stream_ends_with_its_loader():
    dataset = Stored()
    loader = DataLoader(dataset, seed=0, batch_size=4)
    delivered(loader)
    assert not dataset.store.streams[0].closed
    loader.close()
    assert dataset.store.streams[0].closed


def test_stream_ends_with_its_loader_without_garbage_collection():
    dataset = Stored()
    loader = DataLoader(dataset, seed=0, batch_size=4)
    delivered(loader)
    stream = weakref.ref(dataset.store.streams.pop())
    assert stream() is not None
    gc.disable()
    try:
        del loader
        assert stream() is None
    finally:
        gc.enable()


def test_subset_is_told_by_the_indices_of_its_data_set():
    dataset = Stored()
    subset = Subset(Subset(dataset, range(3, NUM_SAMPLES)), [5, 0, 9, 1, 7, 2])
    samples = delivered(DataLoader(subset, seed=0, batch_size=4, shuffle=True))
    assert dataset.store.streams[0].slots[:6] == slots_of(samples)


def test_joined_data_sets_are_told_to_each_of_their_stores():
    parts = [Stored(5), Stored(7), Stored(4)]
    parts[2].store = parts[0].store
    samples = delivered(DataLoader(JoinedDataset(parts), seed=0, batch_size=4, sampler=RandomSampler(16)))
    assert sorted(samples) == sorted([*range(5), *range(7), *range(4)])
    order = list(RandomSampler(16).order(seed=0, epoch=0)[:])
    places = {index: (0, index) if index < 5 else (1, index - 5) if index < 12 else (0, index - 12) for index in order}
    for number, store in enumerate([parts[0].store, parts[1].store]):
        expected = [slots_of([places[index][1]])[0] if places[index][0] == number else -1 for index in order]
        assert store.streams[0].slots[:16] == expected


@pytest.mark.parametrize("arguments", [{}, {"seed": 0, "sampler": [3, 1, 2]}], ids=["unseeded", "foreign sampler"])
def test_other_loaders_tell_no_order(arguments):
    dataset = Stored()
    delivered(DataLoader(dataset, batch_size=2, **arguments))
    assert dataset.store.streams == []


def test_window_follows_the_samples_that_workers_prefetch():
    dataset = Stored()
    slicing = SimpleNamespace(sampler=RandomSampler(NUM_SAMPLES), batch_size=4, drop_last=False)
    spec = SimpleNamespace(seed=0, rank=0, world_size=1, num_workers=3, prefetch_factor=5)
    read_ahead.ReadAhead(dataset).begin(spec, slicing, 0, 0)
    assert dataset.store.num_prefetched == 60
    delivered(DataLoader(dataset, seed=0, batch_size=4, num_workers=0))
    assert dataset.store.num_prefetched == 0


def test_first_block_is_short_and_later_ones_grow(monkeypatch):
    monkeypatch.setattr(read_ahead, "_FIRST_BLOCK", 64)
    monkeypatch.setattr(read_ahead, "_MAX_BLOCK", 256)
    dataset = Stored(1000)
    loader = DataLoader(dataset, seed=0, batch_size=8, shuffle=True)
    lengths = []
    dataset.store.open_stream = lambda num_prefetched: SimpleNamespace(
        begin=lambda blocks: lengths.extend(map(len, blocks)), delivered=lambda total: None, close=lambda: None
    )
    next(iter(loader))
    assert lengths == [64, 128, 256, 256, 256, 40] * 2


def test_data_set_without_stored_images_has_no_streams():
    loader = DataLoader(Stored(5, store=None), seed=0)
    loader.dataset.stored_samples = list
    assert delivered(loader) == [0, 1, 2, 3, 4]
