"""Datasets with samples that cannot be made, and the ways to load them; spawned workers import them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.errors import BadSamplesWarning
from lit_loader.seeding import sample_rng
from tests.support.outcomes import outcomes_of
from tests.support.toys import plain


class Faulty(Dataset):
    """Draws, from torch and from the sample's own generators; some samples fail after they have drawn."""

    def __init__(self, bad: dict[int, Exception], length: int = 24, shape: tuple[int, ...] = (2,)) -> None:
        self.bad = bad
        self.length = length
        self.shape = shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = torch.rand(self.shape)
        if index in self.bad:
            raise self.bad[index]
        return {"index": index, "torch": drawn, "own": sample_rng().python.random()}


class FaultyFiles(Faulty):
    """The same from files."""

    def sample_path(self, index: int) -> Path:
        return Path(f"/pictures/{index}.jpg")


def loader_of(dataset: Any, batch_size: int | None = 4, **arguments: Any) -> DataLoader:
    """Return a seeded, shuffled loader that skips what is bad."""
    arguments = {"seed": 3, "shuffle": True, "on_bad_sample": "skip", **arguments}
    return DataLoader(dataset, batch_size=batch_size, **arguments)


def outcomes(loader: DataLoader) -> list[Any]:
    """Return an epoch's batches, with the type of the error instead of each batch that failed."""
    results = outcomes_of(loader)
    # Warnings are errors in tests, and this one comes at the end.
    results = [result for result in results if not isinstance(result, BadSamplesWarning)]
    return [type(result) if isinstance(result, Exception) else plain(result) for result in results]


def indices(batches: list[Any]) -> list[Any]:
    """Return the indices in each batch of `outcomes`."""
    return [batch["index"][2] if isinstance(batch, dict) else batch for batch in batches]


def order_of(loader: DataLoader, epoch: int = 0) -> list[list[int]]:
    """Return the indices of each batch as they were planned."""
    order = loader.sampler.order(seed=loader.seed, epoch=epoch)[:].tolist() if loader.seed is not None else None
    size = loader.batch_size or 1
    order = list(loader.sampler) if order is None else order
    return [order[n : n + size] for n in range(0, len(order), size)]
