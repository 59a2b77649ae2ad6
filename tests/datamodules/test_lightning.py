"""The data module under Lightning: every stage runs, workers end, its tuner may scale the batch."""

from __future__ import annotations

import psutil
import pytest

from lit_loader import DataLoader, DetectionDataModule
from lit_loader.datamodules import ClassBalancedSamplerConfig, WeightedSamplerConfig
from tests.support.drawn_set import DrawnSource, draw_set
from tests.support.lightning_ranks import trainer
from tests.support.recording_model import RecordingModel, stub_trainer

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


def counting():
    """Return a model that records the ids of its images, and the largest value of the first image."""
    return RecordingModel(lambda batch: ([int(target["image_id"]) for target in batch[1]], float(batch[0][0].max())))


def image_ids(model, stage):
    return [image_id for ids, _ in model.seen[stage] for image_id in ids]


def processes():
    """Return this process's children but for those that multiprocessing keeps for good."""
    permanent = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
    pids = set()
    for child in psutil.Process().children():
        try:
            if not any(name in " ".join(child.cmdline()) for name in permanent):
                pids.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return pids


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning_fits_validates_tests_and_predicts(shapes, num_workers):
    datamodule = DetectionDataModule(
        shapes,
        batch_size=8,
        num_workers=num_workers,
        batch_transforms=lambda batch: ([image * 10 for image in batch[0]], *batch[1:]),
    )
    model = counting()
    runner = trainer(max_epochs=2, num_sanity_val_steps=0, log_every_n_steps=1)
    processes_before = processes()
    runner.fit(model, datamodule=datamodule)
    assert processes() == processes_before
    assert sorted(image_ids(model, "train")) == sorted(2 * list(range(60)))
    assert image_ids(model, "train")[:60] != image_ids(model, "train")[60:]
    assert image_ids(model, "val") == 2 * list(range(20))
    assert max(largest for _, largest in model.seen["train"]) > 2  # batch_transforms ran on training batches
    runner.test(model, datamodule=datamodule, verbose=False)
    assert processes() == processes_before
    runner.predict(model, datamodule=datamodule)
    assert processes() == processes_before  # while the trainer, and the loader that it made itself, live
    assert image_ids(model, "test") == image_ids(model, "predict") == list(range(24))
    assert datamodule._loaders == []


def test_lightnings_batch_size_finder_scales_it(shapes):
    from lightning.pytorch.callbacks import BatchSizeFinder

    datamodule = DetectionDataModule(shapes, batch_size=2)
    finder = BatchSizeFinder(mode="power", steps_per_trial=1, init_val=2, max_trials=2)
    trainer(callbacks=[finder], max_epochs=1, limit_val_batches=0).fit(counting(), datamodule=datamodule)
    assert datamodule.batch_size == finder.optimal_batch_size > 2


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_users_own_module_may_return_our_loader(shapes):
    class Own(RecordingModel):
        def train_dataloader(self):
            dataset = DetectionDataModule(shapes).train_dataloader().dataset
            return DataLoader(
                dataset, batch_size=8, shuffle=True, seed=1, collate_fn=lambda s: tuple(zip(*s, strict=True))
            )

    model = Own(counting().record)
    trainer(max_epochs=2, log_every_n_steps=1, limit_val_batches=0).fit(model)
    assert sorted(image_ids(model, "train")) == sorted(2 * list(range(60)))
    assert image_ids(model, "train")[:60] != image_ids(model, "train")[60:]


@pytest.mark.parametrize("sampling", [None, WeightedSamplerConfig(replacement=False), ClassBalancedSamplerConfig()])
def test_images_without_boxes_go_through_fit_and_test(tmp_path, sampling):
    empty = draw_set(tmp_path, num_images=12, objects=0)
    datamodule = DetectionDataModule(
        DrawnSource(train=empty, val=empty, test=empty), batch_size=8, train_sampler=sampling
    )
    model = counting()
    runner = trainer(num_sanity_val_steps=0, log_every_n_steps=1, max_epochs=1)
    runner.fit(model, datamodule=datamodule)
    runner.test(model, datamodule=datamodule, verbose=False)
    assert sorted(image_ids(model, "train")) == image_ids(model, "test") == list(range(12))


def test_training_without_a_batch_is_refused(shapes):
    datamodule = DetectionDataModule(shapes, batch_size=64, drop_last=True)
    message = r"no batch: 60 samples with batch_size=64, world_size=1 and drop_last=True; lower batch_size"
    with pytest.raises(ValueError, match=message):
        datamodule.train_dataloader()  # not through fit: Lightning leaves its patches on after a hook that raises
    ranks = DetectionDataModule(shapes, batch_size=8, drop_last=True)
    ranks.trainer = stub_trainer(rank=3, world_size=8)
    with pytest.raises(ValueError, match="60 samples with batch_size=8, world_size=8"):
        ranks.train_dataloader()
    assert len(DetectionDataModule(shapes, batch_size=64).train_dataloader()) == 1
    assert len(DetectionDataModule(shapes, batch_size=60, drop_last=True).train_dataloader()) == 1
