"""Loaders with worker threads, and datasets for them."""

from __future__ import annotations

from torch.utils.data import Dataset

from lit_loader import DataLoader


class Calls(Dataset):
    """A dataset whose samples are the results of a function, in any worker."""

    def __init__(self, call, length=8):
        self.call = call
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.call(index)


def as_list(samples):
    return samples


def threads(dataset, **arguments):
    """Return a loader with two worker threads that gives lists of one sample."""
    defaults = {"batch_size": 1, "num_workers": 2, "worker_method": "thread", "collate_fn": as_list}
    return DataLoader(dataset, **{**defaults, **arguments})


def batched_threads(dataset, **arguments):
    """Return a seeded loader with two worker threads that gives batches of two samples."""
    defaults = {"batch_size": 2, "num_workers": 2, "worker_method": "thread", "seed": 1}
    return DataLoader(dataset, **{**defaults, **arguments})
