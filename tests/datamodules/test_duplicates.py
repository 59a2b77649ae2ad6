"""Every kind of batch marks duplicates, with any collate function and any workers."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Subset

from lit_loader import DataLoader
from lit_loader.collate import batch_duplicates
from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)

TASKS = {
    "detection": (DetectionDataModule, {}),
    "padded": (DetectionDataModule, {"images": "pad"}),
    "whole images with points": (LandmarkDataModule, {"sample_unit": "image"}),
    "landmarks": (LandmarkDataModule, {}),
    "classification": (ClassificationDataModule, {"multi_label": True}),
    "several tasks": (MultiTaskDataModule, {}),
}
BACKENDS = {"inline": {}, "processes": {"num_workers": 2}, "threads": {"num_workers": 2, "worker_method": "thread"}}


def ids_of(batch):
    if hasattr(batch, "image_ids"):
        return batch.image_ids.tolist()
    return batch[1]["image_id"] if isinstance(batch[1], dict) else [target["image_id"] for target in batch[1]]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("workers", BACKENDS.values(), ids=BACKENDS)
def test_unmarked_samples_are_the_whole_set(shapes, task, workers):
    kind, settings = TASKS[task]
    datamodule = kind(shapes, batch_size=2, num_workers=0, seed=0, **settings)
    datamodule.prepare_data()
    datamodule.setup("test")
    of_one = datamodule.test_dataloader()
    dataset = Subset(of_one.dataset, range(7))
    collate_fn = of_one.collate_fn
    real = []
    num_marked = 0
    for rank in range(2):
        arguments = {"batch_size": 2, "seed": 0, "rank": rank, "world_size": 2, "collate_fn": collate_fn}
        with DataLoader(dataset, **arguments, **workers) as loader:
            for batch in loader:
                marks = batch_duplicates(batch)
                assert (marks.dtype, marks.shape) == (torch.bool, (2,))
                real += [image_id for image_id, mark in zip(ids_of(batch), marks, strict=True) if not mark]
                num_marked += int(marks.sum())
    assert sorted(real) == list(range(7))
    assert num_marked == 1


def test_targets_without_the_mark_are_refused_with_the_remedy():
    batch = ([torch.zeros(3, 2, 2)], [{"boxes": torch.zeros(0, 4)}])
    with pytest.raises(ValueError, match=r"only \['boxes'\]; .*lit_loader\.is_duplicate\(\)"):
        batch_duplicates(batch)
    with pytest.raises(TypeError, match="got a Tensor"):
        batch_duplicates((batch[0], [torch.zeros(0, 5)]))
