"""Long runs of keypoint detection: real people, drawn figures, and a run that is stopped in mid-epoch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lit_loader import FormatSource, KeypointDataModule
from lit_loader.app.building import build_run
from lit_loader.recipes import KeypointTask, keypointrcnn_small, model_kwargs_from_datamodule
from tests.recipes.test_keypoints import NET
from tests.support.drawn_batches import overfit
from tests.support.drawn_set import DrawnSource, draw_set
from tests.support.shipped_configs import composed
from tests.support.tiny_trainer import trainer_of

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:.*does not have many workers")]


def test_loss_falls_on_real_people(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "mmpose_samples" / "coco"
    options = {"image_dir": "."}
    source = FormatSource(
        "coco", folder, train="test_coco.json", options=options, cache_dir=str(tmp_path), progress=False
    )
    datamodule = KeypointDataModule(source, batch_size=4, num_workers=0, seed=0)
    batch = datamodule.first_batch("train")
    assert sum(int((target["visibility"] > 0).sum()) for target in batch[1]) > 20
    torch.manual_seed(0)
    net = {"strides": (8, 16), "anchor_sizes": (64, 128), "min_size": 256, "max_size": 320}
    model = KeypointTask(partial(keypointrcnn_small, **net), **model_kwargs_from_datamodule(datamodule))
    losses = overfit(model, batch, steps=25, learning_rate=3e-3)
    assert sum(losses[-3:]) / 3 < 0.7 * losses[0]


def test_points_of_drawn_figures_are_found(tmp_path: Path) -> None:
    folders = [f"paths.output_dir={tmp_path}", f"dataset.cache_dir={tmp_path / 'cache'}", "dataset.progress=false"]
    quiet = ["trainer=cpu", "workers=inline", "~callbacks.rich_progress", "trainer.enable_progress_bar=false"]
    run = build_run(composed("experiment=figures", *folders, *quiet))
    run.trainer.fit(run.model, datamodule=run.datamodule)
    run.trainer.test(run.model, datamodule=run.datamodule, verbose=False)
    assert run.model.test_scores.map > 0.5


class SeedSteps(Callback):
    """Seeds the draws of each step, and saves a checkpoint after one.

    Keypoint R-CNN draws its training proposals from torch's generator, whose state Lightning does not save.
    """

    def __init__(self, path: Path | None = None, *, step: int = 3) -> None:
        self.path = path
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        torch.manual_seed(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.path is not None and trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def test_run_resumed_in_mid_epoch_ends_with_the_same_weights(tmp_path: Path) -> None:
    table = draw_set(tmp_path / "set", num_images=8, objects=2)

    def fitted(callback: Callback, ckpt_path: Path | None = None) -> KeypointTask:
        datamodule = KeypointDataModule(DrawnSource(train=table), batch_size=2, num_workers=0, seed=0)
        torch.manual_seed(0 if ckpt_path is None else 5)
        model = KeypointTask(partial(keypointrcnn_small, **NET), **model_kwargs_from_datamodule(datamodule))
        trainer = trainer_of(tmp_path, callback, max_epochs=2, limit_val_batches=0)
        trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
        return model

    expected = fitted(SeedSteps(tmp_path / "step.ckpt")).state_dict()
    # Five steps of eight remain: the first epoch has four.
    resumed = fitted(SeedSteps(), tmp_path / "step.ckpt").state_dict()
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(resumed[name], values) for name, values in expected.items())
