"""Guarantee: a sample and a collate function know their epoch and the number of their global batch."""

from __future__ import annotations

import pytest
from torch.utils.data import Dataset, IterableDataset

import lit_loader
from lit_loader import DataLoader
from lit_loader.collate import default_collate

NUM_SAMPLES = 12


class Numbers(Dataset):
    """Samples of the epoch and the batch that `lit_loader` reports; odd indices below ``num_bad`` raise."""

    def __init__(self, num_bad=0):
        self.num_bad = num_bad

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        if index < self.num_bad and index % 2:
            raise ValueError("a bad sample")
        return lit_loader.current_epoch(), lit_loader.current_batch()


class NumbersTogether(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(4):
            with pytest.raises(RuntimeError, match=r"current_batch\(\) needs a sample"):
                lit_loader.current_batch()
            yield lit_loader.current_epoch()


class StreamInSamples(Numbers):
    """Iterates a stream in each sample."""

    def __getitem__(self, index):
        assert len(list(DataLoader(Stream(), seed=3, batch_size=2))) == 2
        return super().__getitem__(index)


def collate_with_numbers(samples):
    return default_collate(samples), (lit_loader.current_epoch(), lit_loader.current_batch())


def numbers(dataset, **arguments):
    """Return the numbers that the samples and the collate function of each batch of epoch 1 saw."""
    arguments = {"batch_size": 4, "seed": 5, "collate_fn": collate_with_numbers, **arguments}
    with DataLoader(dataset, **arguments) as loader:
        loader.set_epoch(1)
        return [([epochs.tolist(), batches.tolist()], collated) for (epochs, batches), collated in loader]


WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("dataset", [Numbers(), NumbersTogether(), StreamInSamples()], ids=lambda d: type(d).__name__)
def test_samples_and_collate_functions_know_their_batch(dataset, workers):
    expected = [([[1] * 4, [n] * 4], (1, n)) for n in range(3)]
    assert numbers(dataset, **workers) == expected


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "threads"])
def test_batches_with_bad_samples_know_their_number(workers):
    arguments = {"on_bad_sample": "skip", **workers}
    with pytest.warns(lit_loader.errors.BadSamplesWarning):
        assert numbers(Numbers(num_bad=8), **arguments) == [
            ([[1] * count, [n] * count], (1, n)) for n, count in enumerate((2, 2, 4))
        ]


@pytest.mark.parametrize("sampler", [None, list(range(NUM_SAMPLES))], ids=["order", "custom sampler"])
def test_batches_have_one_number_on_all_ranks(sampler):
    by_rank = [
        numbers(Numbers(), batch_size=3, sampler=sampler, rank=rank, world_size=2, num_workers=1) for rank in range(2)
    ]
    assert by_rank[0] == by_rank[1] == [([[1] * 3, [n] * 3], (1, n)) for n in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_batches_keep_their_numbers(num_workers):
    def loader():
        return DataLoader(Numbers(), batch_size=4, seed=5, collate_fn=collate_with_numbers, num_workers=num_workers)

    first = loader()
    next(iter(first))
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [collated for _, collated in resumed] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "threads"])
def test_streams_have_epochs_and_no_batch_numbers(workers):
    with DataLoader(Stream(), batch_size=2, seed=5, **workers) as loader:
        assert {epoch for batch in loader for epoch in batch.tolist()} == {0}
        assert {epoch for batch in loader for epoch in batch.tolist()} == {1}


@pytest.mark.parametrize("ask", [lit_loader.current_epoch, lit_loader.current_batch])
@pytest.mark.parametrize("seed", [None, 5])
def test_numbers_outside_of_seeded_loaders_raise_with_the_remedy(seed, ask):
    if seed is not None:
        # The consumer's own code is outside of the loader.
        next(iter(DataLoader(Numbers(), seed=seed)))
        with pytest.raises(RuntimeError, match="pass a seed to the loader, or call dataset"):
            ask()
        return
    with pytest.raises(RuntimeError, match="pass a seed to the loader, or call dataset"):
        next(iter(DataLoader(Numbers())))


def test_sample_key_gives_direct_calls_their_numbers():
    with lit_loader.sample_key(epoch=7, batch=2):
        assert Numbers()[0] == (7, 2)
    with pytest.raises(RuntimeError, match="pass a seed"):
        lit_loader.current_epoch()
