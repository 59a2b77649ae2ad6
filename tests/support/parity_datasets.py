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
    """The indices themselves, whatever they are."""

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
    """The samples that it is given."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]


class Raising(Dataset):
    """Samples of which some are exceptions, which are raised."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        sample = self.samples[index]
        if isinstance(sample, BaseException):
            raise sample
        return sample


class Count(IterableDataset):
    """Counts; worker w counts to ``lengths[w]``, and returns ``told`` as its length."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for number in range(self.lengths[worker % len(self.lengths)]):
            yield 100 * worker + number


class SizedCount(Count):
    """The same, with a length that it tells and may not keep."""

    def __init__(self, told: int, *lengths: int) -> None:
        super().__init__(*lengths)
        self.told = told

    def __len__(self) -> int:
        return self.told


class Sharded(IterableDataset):
    """Numbers that the workers share out by `get_worker_info`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


class WorkerFacts(Dataset):
    """What a worker knows of itself."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        facts = {"none": info is None}
        if info is not None:
            facts |= {
                "id": info.id,
                "num_workers": info.num_workers,
                "seed": info.seed,
                "dataset": info.dataset is self,
            }
        return facts


class ProcessFacts(WorkerFacts):
    """What a worker process knows of itself, beyond that."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {
            "initial seed": torch.initial_seed(),
            "threads": torch.get_num_threads(),
            "own process": os.getpid() != os.getppid(),
            "torch": torch.rand(2).tolist(),
            "numpy": np.random.rand(),
            "python": random.random(),
        }


def as_list(samples: list[Any]) -> list[Any]:
    """Collate to the list of samples itself."""
    return samples


def as_is(sample: Any) -> Any:
    """Convert nothing."""
    return sample
