"""Two real ranks over gloo: equal counts, no overlap, whatever Lightning's use_distributed_sampler says."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lit_loader import DetectionDataModule
from lit_loader.datamodules import ClassBalancedSampling

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


class Recording(LightningModule):
    """Writes down which images each rank saw."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.weight = folder, torch.nn.Parameter(torch.zeros(1))
        self.seen = {"train": [], "test": [], "predict": []}

    def training_step(self, batch, batch_idx):
        self.seen["train"].append([int(target["image_id"]) for target in batch[1]])
        return self.weight.sum()

    def test_step(self, batch, batch_idx):
        self.seen["test"].append([int(target["image_id"]) for target in batch[1]])

    def predict_step(self, batch, batch_idx):
        self.seen["predict"].append([int(target["image_id"]) for target in batch[1]])

    def on_predict_end(self):
        self._write("predict")

    def validation_step(self, batch, batch_idx):
        pass

    def on_train_end(self):
        self._write("train")

    def on_test_end(self):
        self._write("test")

    def _write(self, stage):
        (self.folder / f"{stage}-{self.global_rank}.json").write_text(json.dumps(self.seen[stage]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(shapes, folder, stage, *, use_distributed_sampler, sampling=None, devices=2):
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
    datamodule = DetectionDataModule(
        shapes, batch_size=8 // devices, train_sampler=sampling, drop_last=True, seed=5
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
