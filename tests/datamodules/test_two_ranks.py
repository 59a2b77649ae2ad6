"""Two real ranks over gloo: equal counts, no overlap, whatever Lightning's use_distributed_sampler says."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader import DetectionDataModule
from lit_loader.collate import batch_images
from lit_loader.datamodules import (
    ClassBalancedSampling,
    ClassificationDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    WeightedSampling,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


def ids_of(batch):
    return batch.image_ids.tolist() if hasattr(batch, "image_ids") else [t["image_id"] for t in batch[1]]


class Recording(LightningModule):
    """Writes down which images each rank saw, and in training the sum of their pixels."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.weight = folder, torch.nn.Parameter(torch.zeros(1))
        self.seen = {"train": [], "test": [], "predict": []}
        self.sums = []

    def training_step(self, batch, batch_idx):
        self.seen["train"].append(ids_of(batch))
        self.sums.append([float(image.double().sum()) for image in batch_images(batch)])
        return self.weight.sum()

    def test_step(self, batch, batch_idx):
        self.seen["test"].append(ids_of(batch))

    def predict_step(self, batch, batch_idx):
        self.seen["predict"].append(ids_of(batch))

    def on_predict_end(self):
        self._write("predict")

    def validation_step(self, batch, batch_idx):
        pass

    def on_train_end(self):
        self._write("train")
        (self.folder / f"sums-{self.global_rank}.json").write_text(json.dumps(self.sums))

    def on_test_end(self):
        self._write("test")

    def _write(self, stage):
        (self.folder / f"{stage}-{self.global_rank}.json").write_text(json.dumps(self.seen[stage]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(
    shapes,
    folder,
    stage,
    *,
    use_distributed_sampler,
    sampling=None,
    devices=2,
    kind=DetectionDataModule,
    **settings,
):
    folder.mkdir()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp_fork" if devices > 1 else "auto",
        devices=devices,
        use_distributed_sampler=use_distributed_sampler,
        max_epochs=2,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    datamodule = kind(
        shapes, batch_size=8 // devices, train_sampler=sampling, drop_last=True, seed=5, **settings
    )
    model = Recording(folder)
    if stage == "train":
        trainer.fit(model, datamodule=datamodule)
    elif stage == "predict":
        trainer.predict(model, datamodule=datamodule, return_predictions=False)
    else:
        trainer.test(model, datamodule=datamodule, verbose=False)
    return [json.loads((folder / f"{stage}-{rank}.json").read_text()) for rank in range(devices)]


@pytest.mark.parametrize(
    "sampling", [None, ClassBalancedSampling(num_samples=48)], ids=["random", "class balanced"]
)
def test_ranks_share_one_training_order(shapes, tmp_path, sampling):
    (alone,) = run(
        shapes, tmp_path / "1", "train", use_distributed_sampler=True, sampling=sampling, devices=1
    )
    for use in (True, False):
        first, second = run(
            shapes, tmp_path / f"{use}", "train", use_distributed_sampler=use, sampling=sampling
        )
        assert [a + b for a, b in zip(first, second, strict=True)] == alone


@pytest.mark.filterwarnings("ignore:predict returned None")
@pytest.mark.parametrize("stage", ["test", "predict"])
@pytest.mark.parametrize("use", [True, False])
def test_every_image_is_seen_in_evaluation(shapes, tmp_path, stage, use):
    first, second = run(shapes, tmp_path / stage, stage, use_distributed_sampler=use)
    assert sorted(i for batch in first + second for i in batch) == list(range(24))
    assert len(first) == len(second)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (LandmarkDataModule, {"train_transforms": {"size": 32, "rotation": 20, "photometric": 0.5}}),
        (ClassificationDataModule, {"objects": "crop", "train_transforms": {"size": 32, "rotation": 20}}),
        (MultiTaskDataModule, {"train_transforms": {"size": 48, "iou_crop": 0.5, "photometric": 0.5}}),
    ],
    ids=["landmarks", "classification", "multi-task"],
)
def test_every_task_gives_the_same_pixels_on_two_ranks_as_on_one(shapes, tmp_path, kind, settings):
    given = {"sampling": WeightedSampling(by="finish", num_samples=48), "kind": kind, **settings}
    (alone,) = run(shapes, tmp_path / "1", "train", use_distributed_sampler=True, devices=1, **given)
    first, second = run(shapes, tmp_path / "2", "train", use_distributed_sampler=True, **given)
    assert [a + b for a, b in zip(first, second, strict=True)] == alone
    sums, left, right = (
        json.loads((tmp_path / name).read_text())
        for name in ("1/sums-0.json", "2/sums-0.json", "2/sums-1.json")
    )
    assert [a + b for a, b in zip(left, right, strict=True)] == sums
