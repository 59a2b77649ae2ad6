"""Batch transforms under Lightning: the right stage, draws by (seed, stage, rank, epoch, batch), any module serves."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torchvision.transforms import v2

from lit_loader import ClassificationDataModule, DetectionDataModule
from lit_loader.datamodules.batch_transforms import apply_to_batch
from lit_loader.transforms import NormalizeBatch
from tests.support.extras import needs

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]
STAGES = ("train", "val", "test", "predict")


class Seeing(LightningModule):
    """Records transformed batches; draws from the global generators like a model with dropout."""

    def __init__(self, *, drawing=True):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.drawing = drawing
        self.seen = {}

    def _see(self, stage, batch):
        self.seen.setdefault(stage, []).append(next(iter(batch)))
        if self.drawing:
            torch.rand(1), np.random.rand(), random.random()

    def training_step(self, batch, batch_idx):
        self._see("train", batch)
        return self.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self._see("val", batch)

    def test_step(self, batch, batch_idx):
        self._see("test", batch)

    def predict_step(self, batch, batch_idx):
        self._see("predict", batch)
        return 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**arguments):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{"num_sanity_val_steps": 0, "max_epochs": 2, **arguments},
    )


def draw(batch):
    """Replace the images by a draw from every generator."""
    return ((torch.rand(1).item(), np.random.rand(), random.random()), *batch[1:])


def draw_again(batch):
    return draw(batch)


def fitted(shapes, *, model=None, seed=5, **arguments):
    datamodule = DetectionDataModule(
        shapes, batch_size=20, seed=seed, batch_transforms=draw, eval_batch_transforms=draw_again
    )
    model = model or Seeing()
    trainer(**arguments).fit(model, datamodule=datamodule)
    return model.seen


def test_draws_depend_on_the_batch_and_not_on_what_else_draws(shapes):
    expected = fitted(shapes)
    torch.manual_seed(12)
    assert fitted(shapes, model=Seeing(drawing=False)) == expected
    assert fitted(shapes, num_sanity_val_steps=2)["train"] == expected["train"]
    assert fitted(shapes, accumulate_grad_batches=2)["train"] == expected["train"]
    every = [*expected["train"], *expected["val"]]
    assert len(every) == len(set(every)) == 2 * 3 + 2 * 1  # epochs, batches and stages differ
    assert set(fitted(shapes, seed=6)["train"]).isdisjoint(expected["train"])


def test_a_resumed_run_draws_what_the_whole_one_drew(shapes, tmp_path):
    uninterrupted = fitted(shapes, max_epochs=3)["train"]
    datamodule = DetectionDataModule(shapes, batch_size=20, seed=5, batch_transforms=draw)
    runner = trainer(max_epochs=2, limit_val_batches=0)
    runner.fit(Seeing(), datamodule=datamodule)
    runner.save_checkpoint(tmp_path / "at_two.ckpt")
    model = Seeing()
    trainer(max_epochs=3, limit_val_batches=0).fit(model, datamodule=datamodule, ckpt_path=tmp_path / "at_two.ckpt")
    assert model.seen["train"] == uninterrupted[6:]


def test_each_stage_has_its_own_transforms(shapes):
    seen = {}
    for name in ("batch_transforms", "eval_batch_transforms"):
        model = Seeing()
        settings = {name: lambda batch: ("transformed", *batch[1:])}
        datamodule = DetectionDataModule(shapes, batch_size=30, **settings)
        runner = trainer(max_epochs=1)
        runner.fit(model, datamodule=datamodule)
        runner.validate(model, datamodule=datamodule, verbose=False)
        runner.test(model, datamodule=datamodule, verbose=False)
        runner.predict(model, datamodule=datamodule)
        seen[name] = {stage for stage in STAGES if all(images == "transformed" for images in model.seen[stage])}
    assert seen == {"batch_transforms": {"train"}, "eval_batch_transforms": {"val", "test", "predict"}}


def fake_trainer(*, rank=0, epoch=0, batch=0, device="cpu"):
    progress = SimpleNamespace(current=SimpleNamespace(ready=batch))
    return SimpleNamespace(
        training=True,
        strategy=SimpleNamespace(root_device=torch.device(device)),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
        global_rank=rank,
        current_epoch=epoch,
    )


@pytest.mark.parametrize("other", [{"rank": 1}, {"epoch": 1}, {"batch": 1}])
def test_ranks_epochs_and_batches_draw_apart(other):
    def drawn(**place):
        return apply_to_batch(draw, ([],), fake_trainer(**place), seed=1, dataloader_idx=0)[0]

    assert drawn() == drawn()
    assert drawn() != drawn(**other)


def test_a_module_is_moved_to_the_device_once():
    module = nn.BatchNorm2d(3, device="meta")
    moves = []
    module.to = lambda device: moves.append(device) or nn.Module.to(module.to_empty(device="cpu"), device)
    for _ in range(2):
        apply_to_batch(module, torch.ones(2, 3, 4, 4), fake_trainer(), seed=1, dataloader_idx=0)
    assert moves == [torch.device("cpu")]


def test_a_module_that_validation_moves_to_the_device_can_be_changed_in_training():
    module = nn.BatchNorm2d(3, device="meta")
    module.to = lambda device: module.to_empty(device=device)
    with torch.inference_mode():
        apply_to_batch(module, torch.ones(2, 3, 4, 4), fake_trainer(), seed=1, dataloader_idx=0)
    count = int(module.num_batches_tracked)
    apply_to_batch(module, torch.ones(2, 3, 4, 4), fake_trainer(), seed=1, dataloader_idx=0)
    assert int(module.num_batches_tracked) == count + 1


def test_without_a_trainer_a_batch_stays_as_it_is(shapes):
    datamodule = DetectionDataModule(shapes, batch_transforms=draw, eval_batch_transforms=draw)
    assert datamodule.on_after_batch_transfer("batch", 0) == "batch"


def test_torchvision_transforms_serve_and_draw_by_batch(shapes):
    flip = v2.Compose([v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float32, scale=True)])

    def run(**settings):
        datamodule = ClassificationDataModule(
            shapes,
            batch_size=20,
            seed=3,
            multi_label=True,
            train_transforms={"size": 16, "to_float": False},
            batch_transforms=flip,
            **settings,
        )
        model = Seeing()
        trainer(limit_val_batches=0, max_epochs=3).fit(model, datamodule=datamodule)
        return model.seen["train"]

    first = run()
    second = run()
    assert all(images.dtype == torch.float32 for images in first)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_whole_batch_is_flipped_boxes_and_all_by_torchvision(shapes):
    datamodule = DetectionDataModule(
        shapes, batch_size=4, images="stack", batch_transforms=v2.RandomHorizontalFlip(1.0)
    )
    batch = datamodule.first_batch("train")
    datamodule.trainer = fake_trainer()
    transformed = datamodule.on_after_batch_transfer(batch, 0)
    assert torch.equal(transformed[0], batch[0].flip(-1))
    for target, flipped in zip(batch[1], transformed[1], strict=True):
        assert torch.equal(flipped["boxes"][:, 0], 48 - target["boxes"][:, 2])


@needs("hydra")
def test_a_node_of_a_config_makes_the_transform():
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    arguments = {"mean": [0.5, 0.4, 0.3], "std": [0.25, 0.5, 1.0]}
    node = OmegaConf.create({"_target_": "lit_loader.transforms.NormalizeBatch", **arguments})
    pixels = torch.arange(24, dtype=torch.uint8).reshape(1, 3, 2, 4)
    assert torch.equal(instantiate(node)(pixels), NormalizeBatch(**arguments)(pixels))


@pytest.mark.parametrize(("images", "settings"), [("list", {}), ("stack", {}), ("pad", {"size_divisor": 64})])
def test_uint8_goes_to_the_step_normalised_in_every_stage(shapes, images, settings):
    normalize = NormalizeBatch(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    datamodule = DetectionDataModule(
        shapes,
        batch_size=30,
        images=images,
        train_transforms={"to_float": False},
        batch_transforms=normalize,
        eval_batch_transforms=normalize,
        **settings,
    )
    model = Seeing()
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
