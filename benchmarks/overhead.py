"""Cost of the loader itself, without the dataset. A unit is a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DataLoader

WORKERS: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


class Stored(Dataset[tuple[torch.Tensor, int]]):
    """Returns a stored sample."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample = torch.zeros(3)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.sample, index


def inline(batch_size: int, num_batches: int) -> dict[str, Pass]:
    """Return passes without workers."""
    dataset = Stored(batch_size * num_batches)
    return passes(
        {
            "torch": TorchDataLoader(dataset, batch_size),
            "ours": DataLoader(dataset, batch_size),
            "ours, seed=0": DataLoader(dataset, batch_size, seed=0),
        }
    )


def workers(dataset: Stored, batch_size: int) -> dict[str, Pass]:
    """Return passes with two persistent workers."""
    ours: Any = DataLoader
    return passes(
        {
            "torch": TorchDataLoader(dataset, batch_size, **WORKERS),
            "ours, threads": ours(dataset, batch_size, worker_method="thread", **WORKERS),
            "ours, threads, seed=0": ours(dataset, batch_size, worker_method="thread", seed=0, **WORKERS),
            "ours, processes": ours(dataset, batch_size, **WORKERS),
            "ours, processes, seed=0": ours(dataset, batch_size, seed=0, **WORKERS),
        }
    )


def main(rounds: int) -> None:
    """Compare inline, and with two workers, for small and large batches; `benchmarks.transport` has large samples."""
    figures = compare("inline, batch 256", inline(256, 256), rounds=rounds, unit="batch")
    judge("inline, a sample, of torch's", figures.ratio("ours", "torch"), at_most=0.95)
    judge("a key", figures.microseconds_more("ours, seed=0", "ours", per=256), at_most=12, unit=" us")
    figures = compare("inline, batch 4", inline(4, 2048), rounds=rounds, unit="batch")
    judge("a key, batch 4", figures.microseconds_more("ours, seed=0", "ours", per=4), at_most=12, unit=" us")
    figures = compare("two workers, batch 4", workers(Stored(2048), 4), rounds=rounds, unit="batch")
    judge("threads, a batch, of torch's", figures.ratio("ours, threads", "torch"), at_most=0.05)
    judge("threads with a seed, the same", figures.ratio("ours, threads, seed=0", "torch"), at_most=0.05)
    figures = compare("two workers, batch 256", workers(Stored(16384), 256), rounds=rounds, unit="batch")
    judge("threads, a sample, of torch's", figures.ratio("ours, threads", "torch"), at_most=0.18)
    judge("threads with a seed, the same", figures.ratio("ours, threads, seed=0", "torch"), at_most=0.18)


if __name__ == "__main__":
    run(main)
