"""Prefetching to the trainer's device: asked for by the trainer, found in place by Lightning, in every stage."""

from __future__ import annotations

import time
import weakref

import pytest
import torch

from lit_loader import DetectionDataModule, WorkerSettings
from tests.support.lightning_ranks import trainer
from tests.support.recording_model import RecordingModel, stub_trainer
from tests.support.simulated_device import present


@pytest.fixture
def simulated(monkeypatch):
    return present(monkeypatch)


def taking():
    """Return a model that records where its images are in memory."""
    return RecordingModel(lambda batch: batch[0][0].data_ptr())


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_stage_of_lightning_gets_the_batch_where_the_loader_put_it(simulated, shapes, num_workers):
    placed = set()
    copy_to_device = simulated.copy_to_device

    def noting(tensor):
        block = copy_to_device(tensor)
        placed.add(block.data_ptr())
        return block

    simulated.copy_to_device = noting
    datamodule = DetectionDataModule(
        shapes,
        batch_size=20,
        workers=WorkerSettings(num_workers=num_workers, worker_method="thread", prefetch_to_device=True),
    )
    model = taking()
    runner = trainer(max_epochs=1, num_sanity_val_steps=0, log_every_n_steps=1)
    runner.fit(model, datamodule=datamodule)
    runner.validate(model, datamodule=datamodule, verbose=False)
    runner.test(model, datamodule=datamodule, verbose=False)
    runner.predict(model, datamodule=datamodule)
    assert {stage: len(seen) for stage, seen in model.seen.items()} == {"train": 3, "val": 2, "test": 2, "predict": 2}
    assert {place for seen in model.seen.values() for place in seen} <= placed


CASES = [
    (None, "cuda", True, "cuda:1"),
    (True, "cuda", True, "cuda:1"),
    (False, "cuda", True, None),
    (None, "cuda", False, None),  # torch does not know it as an accelerator
    (None, "cpu", True, None),
    (True, "cpu", False, "cpu"),
]


@pytest.mark.parametrize(("setting", "kind", "accelerated", "expected"), CASES)
def test_the_device_is_the_trainers(shapes, monkeypatch, setting, kind, accelerated, expected):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerated)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    datamodule = DetectionDataModule(shapes, workers=WorkerSettings(prefetch_to_device=setting, pin_memory=False))
    assert datamodule.train_dataloader().device is None  # without a trainer
    datamodule.trainer = stub_trainer("cuda:1" if kind == "cuda" else kind)
    for stage in ("train", "val", "test", "predict"):
        assert str(getattr(datamodule, f"{stage}_dataloader")().device) == str(expected)
    assert datamodule.first_batch("val")[0][0].device.type == "cpu"  # to be looked at
    datamodule.trainer = None


PIN_CASES = [
    (None, "cuda", True),
    (None, "cpu", False),
    (None, "mps", False),
    (None, None, False),
    (True, "cpu", True),
    (True, None, True),
    (False, "cuda", False),
]


@pytest.mark.parametrize(("setting", "kind", "expected"), PIN_CASES)
def test_batches_are_page_locked_where_the_trainers_device_copies_from_such_memory(
    shapes, monkeypatch, setting, kind, expected
):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    calls = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: calls.append(1) or tensor)
    datamodule = DetectionDataModule(shapes, workers=WorkerSettings(prefetch_to_device=False, pin_memory=setting))
    if kind is not None:
        datamodule.trainer = stub_trainer(kind)
    for stage in ("train", "val", "test", "predict"):
        assert getattr(datamodule, f"{stage}_dataloader")().pin_memory is expected
    datamodule.first_batch("val")
    assert calls == []  # to be looked at
    datamodule.trainer = None


@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
def test_no_batch_stays_on_the_device_after_a_validation_that_ends_early(simulated, shapes):
    copies = []
    counts = []
    copy_to_device = simulated.copy_to_device

    class Watching(RecordingModel):
        def validation_step(self, batch, batch_idx):
            time.sleep(0.1)  # so that the next batch is ready when this one is asked for

        def on_train_start(self):
            counts.append(sum(holder() is not None for holder in copies))

    def noting(tensor):
        block = copy_to_device(tensor)
        copies.append(weakref.ref(block))
        return block

    simulated.copy_to_device = noting
    datamodule = DetectionDataModule(
        shapes, batch_size=4, workers=WorkerSettings(num_workers=1, worker_method="thread", prefetch_to_device=True)
    )
    runner = trainer(max_epochs=1, limit_train_batches=1, num_sanity_val_steps=2, log_every_n_steps=1)
    runner.fit(Watching(len), datamodule=datamodule)
    assert copies
    assert counts == [0]
