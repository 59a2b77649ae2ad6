"""A task from outside of the package: how many objects an image has, with a data module over the public hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.datamodules import TableDataModule
from lit_loader.datasets import SampleTable
from lit_loader.images import decode_image


def resized(train: bool, *, size: int = 16) -> v2.Transform:
    """Return the task's transforms."""
    return v2.Compose([v2.Resize((size, size)), v2.ToDtype(torch.float32, scale=True)])


class ObjectCounts(Dataset[Any]):
    """Images and their number of objects."""

    def __init__(self, table, transforms):
        self.table = table
        self.transforms = transforms

    def __len__(self):
        return self.table.num_images

    def __getitem__(self, index):
        image = tv_tensors.Image(decode_image(self.table.image_path(index)))
        rows = self.table.objects(index)
        return self.transforms(image), torch.tensor(float(rows.stop - rows.start))


class CountingDataModule(TableDataModule):
    """Batches of images and numbers, without images of more objects than ``most``."""

    def __init__(self, source, *, most: int = 100, **settings: Any) -> None:
        super().__init__(source, preset=resized, **settings)
        self.save_hyperparameters("most")
        self.most = most

    def select_samples(self, table):
        counts = table.offsets[1:] - table.offsets[:-1]
        few = (counts <= self.most).nonzero()[0]
        return SampleTable(table.select(few), table.num_images - len(few))

    def make_dataset(self, table, transforms):
        return ObjectCounts(table, transforms)
