"""What does the loader itself cost, apart from the dataset? A unit is a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.rounds import compare
from lit_loader import DataLoader


class Stored(Dataset[tuple[torch.Tensor, int]]):
    """Returns what it holds."""

    def __init__(self, length: int, shape: tuple[int, ...]) -> None:
        self.length, self.sample = length, torch.zeros(shape)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.sample, index


def contenders(dataset: Dataset[Any], **arguments: Any) -> dict[str, Any]:
    """Return passes over torch's loader, ours as torch does it, and ours with a key for each sample."""

    def passing(loader: TorchDataLoader[Any]) -> Any:
        def run() -> int:
            return sum(1 for _ in loader)

        return run

    return {
        "torch": passing(TorchDataLoader(dataset, **arguments)),
        "ours, seed=None": passing(DataLoader(dataset, **arguments)),
        "ours, seed=0": passing(DataLoader(dataset, seed=0, **arguments)),
    }


def main() -> None:
    """Compare small and large samples, inline and with two workers."""
    workers = {"num_workers": 2, "persistent_workers": True}
    small, large = Stored(2048, (3,)), Stored(512, (3, 224, 224))
    compare("inline, batch 256 of tiny samples", contenders(Stored(16384, (3,)), batch_size=256))
    compare("two workers, batch 4 of tiny samples", contenders(small, batch_size=4, **workers))
    compare(
        "two workers, batch 256 of tiny samples", contenders(Stored(16384, (3,)), batch_size=256, **workers)
    )
    compare(
        "two workers, batch 64 of float32 3x224x224", contenders(large, batch_size=64, **workers), rounds=5
    )


if __name__ == "__main__":
    main()
