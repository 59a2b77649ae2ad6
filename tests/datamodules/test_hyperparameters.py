"""Arguments in checkpoints: plain ones are kept and restored, functions and data are left out."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from lit_loader import DetectionDataModule
from lit_loader.collate import DetectionCollate
from lit_loader.datamodules import ClassBalancedSamplerConfig, WorkerSettings
from lit_loader.images import ImageReading
from tests.support.lightning_ranks import trainer
from tests.support.lightning_resuming import Learner

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


class Model(Learner):
    def training_step(self, batch, batch_idx):
        return sum(weight.sum() for weight in self.parameters())


class Own(DetectionDataModule):
    """A user's class with arguments of its own, which decides some of the inherited ones."""

    def __init__(self, source, *, folds: int = 3, stem: str = "a", **settings):
        super().__init__(source, images="stack", batch_size=2 * folds, **settings)
        self.save_hyperparameters("folds", "stem", ignore=["images", "batch_size"])
        self.folds = folds
        self.stem = stem


def test_hparams_leave_out_functions_and_data_and_hold_settings_as_mappings(shapes):
    datamodule = DetectionDataModule(
        shapes,
        workers=WorkerSettings(num_workers=2, timeout=5.0),
        reading=ImageReading(max_pixels=10_000),
        cache=True,
        cache_size=32,
        train_sampler=ClassBalancedSamplerConfig(),
        collate_fn=DetectionCollate(),
        batch_transforms=lambda batch: batch,
        train_transforms={"hflip": 0.0, "per_object": ()},
        val_transforms=lambda *sample: sample,
        extra_fields=["difficult"],
    )
    hparams = dict(datamodule.hparams)
    assert hparams["workers"] | {"num_workers": 2, "timeout": 5.0} == hparams["workers"]
    assert hparams["reading"] | {"max_pixels": 10_000, "decode": "exact"} == hparams["reading"]
    assert hparams | {"cache": True, "cache_size": 32, "extra_fields": ["difficult"]} == hparams
    assert hparams["train_transforms"] == {"hflip": 0.0, "per_object": []}
    assert not {"source", "train_sampler", "collate_fn", "batch_transforms", "val_transforms"} & set(hparams)


def test_hparams_hold_the_keywords_of_a_preset_without_its_extra_transforms(shapes):
    keywords = {"size": [24, 32], "extra_before": [v2.ColorJitter(0.2)], "extra_after": []}
    datamodule = DetectionDataModule(shapes, train_transforms=keywords)
    assert datamodule.hparams["train_transforms"] == {"size": [24, 32]}
    restored = DetectionDataModule(shapes, **datamodule.hparams)
    assert [tuple(image.shape[1:]) for image in restored.first_batch("val")[0]] == [(24, 32)] * 8


def test_a_data_module_is_restored_from_a_checkpoint_and_a_run_resumes_from_it(shapes, tmp_path):
    def make():
        return Own(
            shapes, folds=4, seed=7, reading=ImageReading(max_pixels=10_000), batch_transforms=lambda batch: batch
        )

    path = tmp_path / "run.ckpt"
    runner = trainer(max_epochs=1, limit_val_batches=0)
    runner.fit(Model(), datamodule=make())
    runner.save_checkpoint(path)
    torch.load(path, weights_only=True)
    resumed = trainer(max_epochs=2, limit_val_batches=0)
    resumed.fit(Model(), datamodule=make(), ckpt_path=path, weights_only=True)
    assert resumed.global_step == 2 * runner.global_step
    loaded = Own.load_from_checkpoint(path, source=shapes, stem="b", weights_only=True)
    assert (loaded.folds, loaded.stem, loaded.batch_size, loaded.seed) == (4, "b", 8, 7)
    assert loaded.reading == ImageReading(max_pixels=10_000)
    assert loaded.first_batch("val")[0].shape == (8, 3, 48, 48)
