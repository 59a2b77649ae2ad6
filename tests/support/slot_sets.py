"""Datasets of large samples, which are sent through slots of shared memory, and the size of the slots."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.memory import Slots

SHAPE = (64, 100)  # 25 kB


class Large(Dataset):
    """A tensor, and an array, full of the index."""

    def __init__(self, length: int = 64, shape: tuple[int, ...] = SHAPE) -> None:
        self.length = length
        self.shape = shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any, int]:
        return torch.full(self.shape, float(index)), np.full(self.shape, index), index


class LargeDraws(Large):
    """Large draws of every process-wide generator."""

    def __getitem__(self, index: int) -> Any:
        return {
            "torch": torch.rand(self.shape),
            "numpy": np.random.rand(*self.shape).astype(np.float32),
            "python": torch.full((5000,), random.random()),
            "index": index,
        }


def loader_of(dataset: Any, batch_size: int | None = 4, num_workers: int = 2, **arguments: Any) -> DataLoader:
    """Return a loader whose workers stay."""
    arguments = {"persistent_workers": num_workers > 0, **arguments}
    return DataLoader(dataset, batch_size=batch_size, num_workers=num_workers, **arguments)


def slots_of(loader: DataLoader) -> Slots:
    """Return the slots of a loader whose workers have been started and stay."""
    actual = loader._worker_manager.backend._slots
    assert isinstance(actual, Slots)
    return actual


def num_slots(loader: DataLoader) -> int:
    """Return how many slots the workers of a loader have."""
    return slots_of(loader).num_slots


def has_slots(loader: DataLoader) -> bool:
    """Return True if the workers of a loader, which stay, write to slots."""
    return loader._worker_manager.backend._slots is not None


def used_bytes(slots: Slots) -> int:
    """Return the memory that the slots take."""
    return os.fstat(slots.file.fd).st_blocks * 512


def is_right(batch: Any) -> bool:
    """Return True if a batch of `Large` has its original values."""
    tensor, array, index = batch
    return bool((tensor == index.view(-1, 1, 1)).all() and (array == index.view(-1, 1, 1)).all())


def num_mappings() -> int:
    """Return how many mappings of slots this process has."""
    with open("/proc/self/maps") as lines:
        return sum("/memfd:lit_loader" in line for line in lines)


def memfds_of(pid: int | str) -> int:
    """Return how many files of slots a process has open."""
    folder = f"/proc/{pid}/fd"
    count = 0
    for name in os.listdir(folder):
        try:
            count += "/memfd:lit_loader" in os.readlink(f"{folder}/{name}")
        except OSError:
            continue
    return count
