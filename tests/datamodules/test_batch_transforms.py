"""Batch transforms under Lightning: the right stage, draws by (seed, stage, rank, epoch, batch), any module serves."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

from lit_loader import DetectionDataModule
from lit_loader.datamodules.batch_transforms import apply_to_batch
from lit_loader.transforms import NormalizeBatch
from tests.support.lightning_ranks import trainer as lightning_trainer
from tests.support.recording_model import RecordingModel, stub_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]
STAGES = ("train", "val", "test", "predict")


def seeing(*, drawing=True):
    """Return a model that records transformed images, and draws from the global generators like one with dropout."""

    def record(batch):
        if drawing:
            torch.rand(1), np.random.rand(), random.random()
        return next(iter(batch))

    return RecordingModel(record)


trainer = partial(lightning_trainer, num_sanity_val_steps=0, max_epochs=2, log_every_n_steps=1)


def draw(batch):
    """Replace the images by a draw from every generator."""
    return ((torch.rand(1).item(), np.random.rand(), random.random()), *batch[1:])


def draw_again(batch):
    return draw(batch)


def fitted(shapes, *, model=None, seed=5, **arguments):
    datamodule = DetectionDataModule(
        shapes, batch_size=20, seed=seed, batch_transforms=draw, eval_batch_transforms=draw_again
    )
    model = model or seeing()
    trainer(**arguments).fit(model, datamodule=datamodule)
    return model.seen


def test_draws_depend_on_the_batch_and_not_on_other_draws(shapes):
    expected = fitted(shapes)
    torch.manual_seed(12)
    assert fitted(shapes, model=seeing(drawing=False)) == expected
    assert fitted(shapes, num_sanity_val_steps=2)["train"] == expected["train"]
    assert fitted(shapes, accumulate_grad_batches=2)["train"] == expected["train"]
    every = [*expected["train"], *expected["val"]]
    assert len(every) == len(set(every)) == 2 * 3 + 2 * 1  # epochs, batches and stages differ
    assert set(fitted(shapes, seed=6)["train"]).isdisjoint(expected["train"])


def test_a_resumed_run_draws_what_the_whole_one_drew(shapes, tmp_path):
    uninterrupted = fitted(shapes, max_epochs=3)["train"]
    datamodule = DetectionDataModule(shapes, batch_size=20, seed=5, batch_transforms=draw)
    runner = trainer(max_epochs=2, limit_val_batches=0)
    runner.fit(seeing(), datamodule=datamodule)
    runner.save_checkpoint(tmp_path / "at_two.ckpt")
    model = seeing()
    trainer(max_epochs=3, limit_val_batches=0).fit(model, datamodule=datamodule, ckpt_path=tmp_path / "at_two.ckpt")
    assert model.seen["train"] == uninterrupted[6:]


def test_each_stage_has_its_own_transforms(shapes):
    seen = {}
    for name in ("batch_transforms", "eval_batch_transforms"):
        model = seeing()
        settings = {name: lambda batch: ("transformed", *batch[1:])}
        datamodule = DetectionDataModule(shapes, batch_size=30, **settings)
        runner = trainer(max_epochs=1)
        runner.fit(model, datamodule=datamodule)
        runner.validate(model, datamodule=datamodule, verbose=False)
        runner.test(model, datamodule=datamodule, verbose=False)
        runner.predict(model, datamodule=datamodule)
        seen[name] = {stage for stage in STAGES if all(images == "transformed" for images in model.seen[stage])}
    assert seen == {"batch_transforms": {"train"}, "eval_batch_transforms": {"val", "test", "predict"}}


@pytest.mark.parametrize("other", [{"rank": 1}, {"epoch": 1}, {"batch": 1}])
def test_ranks_epochs_and_batches_draw_apart(other):
    def drawn(**place):
        return apply_to_batch(draw, ([],), stub_trainer(**place), seed=1, dataloader_idx=0)[0]

    assert drawn() == drawn()
    assert drawn() != drawn(**other)


def test_a_module_is_moved_to_the_device_once():
    module = nn.BatchNorm2d(3, device="meta")
    moves = []
    module.to = lambda device: moves.append(device) or nn.Module.to(module.to_empty(device="cpu"), device)
    for _ in range(2):
        apply_to_batch(module, torch.ones(2, 3, 4, 4), stub_trainer(), seed=1, dataloader_idx=0)
    assert moves == [torch.device("cpu")]


def test_a_module_that_validation_moves_to_the_device_can_be_changed_in_training():
    module = nn.BatchNorm2d(3, device="meta")
    module.to = lambda device: module.to_empty(device=device)
    with torch.inference_mode():
        apply_to_batch(module, torch.ones(2, 3, 4, 4), stub_trainer(), seed=1, dataloader_idx=0)
    count = int(module.num_batches_tracked)
    apply_to_batch(module, torch.ones(2, 3, 4, 4), stub_trainer(), seed=1, dataloader_idx=0)
    assert int(module.num_batches_tracked) == count + 1


def test_without_a_trainer_a_batch_stays_as_it_is(shapes):
    datamodule = DetectionDataModule(shapes, batch_transforms=draw, eval_batch_transforms=draw)
    assert datamodule.on_after_batch_transfer("batch", 0) == "batch"


def test_a_whole_batch_is_flipped_boxes_and_all_by_torchvision(shapes):
    datamodule = DetectionDataModule(
        shapes, batch_size=4, images="stack", batch_transforms=v2.RandomHorizontalFlip(1.0)
    )
    batch = datamodule.first_batch("train")
    datamodule.trainer = stub_trainer()
    transformed = datamodule.on_after_batch_transfer(batch, 0)
    assert torch.equal(transformed[0], batch[0].flip(-1))
    for target, flipped in zip(batch[1], transformed[1], strict=True):
        assert torch.equal(flipped["boxes"][:, 0], 48 - target["boxes"][:, 2])


@pytest.mark.parametrize("images", ["list", "stack", "pad"])
def test_uint8_goes_to_the_step_normalised_in_every_stage(shapes, images):
    normalize = NormalizeBatch(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    datamodule = DetectionDataModule(
        shapes,
        batch_size=30,
        images=images,
        train_transforms={"to_float": False},
        batch_transforms=normalize,
        eval_batch_transforms=normalize,
    )
    model = seeing()
    runner = trainer(max_epochs=1)
    runner.fit(model, datamodule=datamodule)
    runner.test(model, datamodule=datamodule, verbose=False)
    runner.predict(model, datamodule=datamodule)
    for stage in STAGES:
        for batch in model.seen[stage]:
            pixels = batch if isinstance(batch, torch.Tensor) else torch.stack(batch)
            assert pixels.dtype == torch.float32
            assert pixels.min() < -0.5
            assert -2 <= pixels.min() <= pixels.max() <= 2
