"""Data modules on two real ranks over gloo: together they give what one process gives, to the pixel, in every stage.

One process group runs all cases. ``tests/loader/lightning/test_ddp.py`` tests the loader alone, with every sampler.
"""

from __future__ import annotations

import json

import pytest
import torch

from lit_loader import DetectionDataModule
from lit_loader.collate import batch_images
from lit_loader.datamodules import (
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    RandomSamplerConfig,
    WeightedSamplerConfig,
)
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.recording_model import RecordingModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:predict returned None"),
]

WEIGHTED = {"train_sampler": WeightedSamplerConfig(balance_by="finish", num_samples=48)}
SETTINGS = {
    "random": (DetectionDataModule, {}),
    "class balanced": (DetectionDataModule, {"train_sampler": ClassBalancedSamplerConfig(num_samples=48)}),
    "tiles": (
        DetectionDataModule,
        {"tiling": {"size": 24, "stages": ["train"]}, "train_sampler": RandomSamplerConfig(empty_share=0.25)},
    ),
    "landmarks": (
        LandmarkDataModule,
        {**WEIGHTED, "train_transforms": {"size": 32, "rotation": 20, "photometric": 0.5}},
    ),
    "classification": (
        ClassificationDataModule,
        {**WEIGHTED, "sample_unit": "object", "train_transforms": {"size": 32, "rotation": 20}},
    ),
    "multi-task": (
        MultiTaskDataModule,
        {**WEIGHTED, "train_transforms": {"size": 48, "iou_crop": 0.5, "photometric": 0.5}},
    ),
}
CASES = [(name, True) for name in SETTINGS] + [("random", False), ("class balanced", False)]


def ids_of(batch):
    return batch.image_ids.tolist() if hasattr(batch, "image_ids") else [t["image_id"] for t in batch[1]]


class Recording(RecordingModel):
    """Records the ids of the images that each rank saw, and in training the sums of their pixels."""

    automatic_optimization = False

    def __init__(self):
        super().__init__(ids_of)
        self.seen["sums"] = []

    def training_step(self, batch, batch_idx):
        self.seen["train"].append(ids_of(batch))
        self.seen["sums"].append([float(image.double().sum()) for image in batch_images(batch)])


def recorded(shapes, name, world_size, *, use_distributed_sampler):
    """Return what this rank saw, in two epochs of training and, with detection, a test and a prediction."""
    kind, settings = SETTINGS[name]
    datamodule = kind(shapes, batch_size=8 // world_size, drop_last=True, seed=5, **settings)
    model = Recording()
    runner = trainer(use_distributed_sampler=use_distributed_sampler, max_epochs=2, limit_val_batches=0)
    runner.fit(model, datamodule=datamodule)
    if kind is DetectionDataModule:
        runner.test(model, datamodule=datamodule, verbose=False)
        runner.predict(model, datamodule=datamodule, return_predictions=False)
    return model.seen


def record_all(shapes, folder):
    records = [recorded(shapes, name, 2, use_distributed_sampler=use) for name, use in CASES]
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(records))


@pytest.fixture(scope="module")
def ranks(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(2, folder, record_all, shapes, folder)
    return list(zip(*(json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_two_ranks_train_on_the_same_pixels_as_one_process(shapes, ranks, name):
    alone = recorded(shapes, name, 1, use_distributed_sampler=True)
    assert alone["train"]
    for case, (first, second) in zip(CASES, ranks, strict=True):
        if case[0] == name:
            for key in ("train", "sums"):
                assert [a + b for a, b in zip(first[key], second[key], strict=True)] == alone[key], case


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_every_image_is_seen_in_evaluation(ranks, stage):
    for case, (first, second) in zip(CASES, ranks, strict=True):
        assert len(first[stage]) == len(second[stage])
        if SETTINGS[case[0]][0] is DetectionDataModule:
            assert sorted(i for batch in first[stage] + second[stage] for i in batch) == list(range(24))
