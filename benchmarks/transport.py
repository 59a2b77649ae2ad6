"""Cost of transferring batches from two persistent worker processes. A unit is a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.overhead import WORKERS, Stored
from benchmarks.rounds import Pass, compare, judge, passes, run
from lit_loader import DataLoader


class Fresh(Dataset[tuple[torch.Tensor, int]]):
    """Returns an image in new memory, like a decoder."""

    def __init__(self, length: int, *shape: int) -> None:
        self.length = length
        self.image = torch.zeros(shape)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.image.clone(), index


def contenders(dataset: Dataset[Any], batch_size: int) -> dict[str, Pass]:
    """Return epochs of torch's loader and of lit_loader's."""
    ours: Any = DataLoader
    return passes(
        {
            "torch": TorchDataLoader(dataset, batch_size, **WORKERS),
            "ours": ours(dataset, batch_size, **WORKERS),
            "ours, seed=0": ours(dataset, batch_size, seed=0, **WORKERS),
        }
    )


def main(rounds: int) -> None:
    """Compare batches of small samples by time, and of large ones by bytes per second."""
    figures = compare("batch 4 of small samples", contenders(Stored(8192), 4), rounds=rounds, unit="batch")
    judge("a batch, of torch's", figures.ratio("ours", "torch"), at_most=0.10)
    judge("the same with a seed", figures.ratio("ours, seed=0", "torch"), at_most=0.10)
    figures = compare("batch 256 of small samples", contenders(Stored(65536), 256), rounds=rounds, unit="batch")
    judge("a sample, of torch's", figures.ratio("ours", "torch"), at_most=0.22)
    judge("the same with a seed", figures.ratio("ours, seed=0", "torch"), at_most=0.22)
    for shape, batch_size, length, bar in (((3, 224, 224), 64, 1024, 2.2), ((3, 800, 1333), 4, 64, 2.5)):
        question = f"float32 {'x'.join(map(str, shape))}, batch {batch_size}"
        figures = compare(question, contenders(Fresh(length, *shape), batch_size), rounds=rounds, unit="batch")
        for ours in ("ours", "ours, seed=0"):
            judge(f"{ours}, bytes a second, of torch's", figures.rate_ratio(ours, "torch"), at_least=bar)


if __name__ == "__main__":
    run(main)
