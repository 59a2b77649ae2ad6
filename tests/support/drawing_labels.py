"""A set of labelled images whose pixels are drawn from the sample's key, and the digests of batches of them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.collate import BatchMixing, ClassificationCollate

NUM_CLASSES = 3
# Large enough that images use the memory of batches.
SIZE = 80


class DrawnLabels(Dataset):
    def __init__(self, count: int = 22, *, multi_label: bool = False) -> None:
        self.count = count
        self.multi_label = multi_label

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        label: Any = index % NUM_CLASSES
        if self.multi_label:
            label = torch.tensor([1.0, float(index % 2), -1.0 if index % 5 == 0 else 0.0])
        return torch.rand(3, SIZE, SIZE), label, index, False


def mixing_loader(mixing: BatchMixing, *, multi_label: bool = False, **arguments: Any) -> DataLoader[Any]:
    collate = ClassificationCollate(
        multi_label=multi_label, mixing=mixing, num_classes=None if multi_label else NUM_CLASSES
    )
    settings = {"batch_size": 4, "shuffle": True, "seed": 5, "collate_fn": collate, **arguments}
    return DataLoader(DrawnLabels(multi_label=multi_label), **settings)


def bits(batch: Any) -> tuple[Any, ...]:
    """Return a batch's values, with a digest of its pixels."""
    return sha256(batch.images.numpy()).hexdigest(), batch.labels.tolist(), batch.image_ids.tolist()


def epochs_of(loader: DataLoader[Any], count: int = 2) -> list[list[tuple[Any, ...]]]:
    epochs = [[bits(batch) for batch in loader] for _ in range(count)]
    loader.close()
    return epochs
