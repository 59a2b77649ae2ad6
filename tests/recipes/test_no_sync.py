"""Training steps do not wait for the device: labels are checked before they are moved to it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.loader.device import moved
from lit_loader.recipes import ClassificationTask, LandmarkTask, classifier_small, heatmaps_small, regression_small
from tests.support.drawn_batches import CLASSES, CORNERS, FINISH, classification_batch, landmark_batch
from tests.support.no_sync import META, NoSync
from tests.support.simulated_device import present
from tests.support.toy_task import trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_dataloader`")


def task_and_batch(kind: str) -> tuple[Any, Any]:
    if kind == "classification":
        model = partial(classifier_small, channels=8, head_channels=8)
        return ClassificationTask(model, class_names=CLASSES), classification_batch(2)
    builder = regression_small if kind == "regression" else heatmaps_small
    names = {"keypoint_names": CORNERS, "class_names": CLASSES, "attributes": {"finish": FINISH}}
    return LandmarkTask(partial(builder, channels=8, head_channels=8), **names), landmark_batch(2)


@pytest.mark.parametrize("kind", ["classification", "landmarks", "regression"])
def test_training_step_reads_no_value_from_the_device(tmp_path: Any, kind: str) -> None:
    task, batch = task_and_batch(kind)
    loader: Any = DataLoader([batch], batch_size=None, seed=0)
    trainer(tmp_path, max_epochs=1).fit(task, loader)
    task.log = task.log_dict = lambda *_, **__: None
    task.to(META)
    batch = moved(batch, META)
    with NoSync():
        task.training_step(batch, 1)


def test_labels_are_refused_before_they_are_moved(monkeypatch: Any, tmp_path: Any) -> None:
    device = present(monkeypatch)
    task, batch = task_and_batch("classification")
    wrong = replace(batch, labels=torch.full_like(batch.labels, len(CLASSES)))
    loader: Any = DataLoader([batch, wrong], batch_size=None, seed=0, device="cuda")
    with pytest.raises(ValueError, match="labels 2 to 2 must"):
        trainer(tmp_path, max_epochs=1).fit(task, loader)
    assert device.copies == len(vars(batch))  # only tensors of the first batch
    assert len(list(loader)) == 2  # a loader without the trainer checks nothing
