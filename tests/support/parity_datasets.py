"""Datasets and functions for parity; spawned workers import them by name."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from lit_loader import get_worker_info


class Numbers(Dataset):
    """Returns indices of any type."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return index


class Unsized(Dataset):
    """A map dataset that does not know its length."""

    def __getitem__(self, index: Any) -> Any:
        return index


class Samples(Dataset):
    """Returns the given samples."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]


class Raising(Samples):
    """Returns the given samples, and raises those that are exceptions."""

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index]
        if isinstance(sample, BaseException):
            raise sample
        return sample


class Count(IterableDataset):
    """Counts; worker w counts to ``lengths[w]``."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for number in range(self.lengths[worker % len(self.lengths)]):
            yield 100 * worker + number


class SizedCount(Count):
    """The same, with a reported length that may be wrong."""

    def __init__(self, reported_length: int, *lengths: int) -> None:
        super().__init__(*lengths)
        self.reported_length = reported_length

    def __len__(self) -> int:
        return self.reported_length


class Sharded(IterableDataset):
    """Numbers that workers divide by `get_worker_info`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class WorkerFacts(Dataset):
    """The worker info of a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        if info is None:
            return {"none": True}
        fields = {"id": info.id, "num_workers": info.num_workers, "seed": info.seed}
        return {"none": False, **fields, "dataset": info.dataset is self}


class ProcessFacts(WorkerFacts):
    """The worker info of a worker process, its threads and its random draws."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {
            "initial seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "own process": os.getpid() != os.getppid(),
            "torch": torch.rand(2).tolist(),
            "numpy": np.random.rand(),
            "python": random.random(),
        }


class CountingSampler:
    """Indices in order, with the number of those that were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_read = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.num_read += 1
            yield index

    def __len__(self) -> int:
        return self.length


def as_list(samples: list[Any]) -> list[Any]:
    """Collate to the list of samples itself."""
    return samples


def as_is(sample: Any) -> Any:
    """Convert nothing."""
    return sample
