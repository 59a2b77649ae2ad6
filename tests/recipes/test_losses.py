"""Losses that a config can choose, beside formulas of torch's, and in the tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.nn import functional

from lit_loader.app.composition import compose_config
from lit_loader.recipes import ClassificationLoss, ClassificationTask, LandmarkLoss, LandmarkTask, WingLoss
from lit_loader.recipes.heatmap_model import heatmaps_small
from lit_loader.recipes.network import classifier_small
from tests.support.drawn_batches import CLASSES, CORNERS, classification_batch, landmark_batch

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-3.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
LABELS = torch.tensor([0, 2, 1, 0])
SEVERAL = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]])


def test_without_settings_it_is_torchs_cross_entropy() -> None:
    expected = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.equal(ClassificationLoss()(LOGITS, LABELS), expected)
    several = functional.binary_cross_entropy_with_logits(LOGITS, SEVERAL, reduction="none").mean(dim=1)
    assert torch.equal(ClassificationLoss()(LOGITS, SEVERAL), several)


def test_label_smoothing_is_torchs() -> None:
    expected = functional.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(ClassificationLoss(label_smoothing=0.1)(LOGITS, LABELS), expected)
    smoothed = functional.binary_cross_entropy_with_logits(LOGITS, SEVERAL * 0.9 + 0.05, reduction="none")
    torch.testing.assert_close(ClassificationLoss(label_smoothing=0.1)(LOGITS, SEVERAL), smoothed.mean(dim=1))


@pytest.mark.parametrize("class_weights", [{"c": 5.0, "a": 2.0}, [2.0, 1.0, 5.0]])
def test_class_weights_are_of_the_classes_by_name_or_by_order(class_weights: Any) -> None:
    loss = ClassificationLoss(class_weights=class_weights)
    loss.set_class_names(["a", "b", "c"])
    plain = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(loss(LOGITS, LABELS), plain * torch.tensor([2.0, 5.0, 1.0, 2.0]))
    plain = functional.binary_cross_entropy_with_logits(LOGITS, SEVERAL, reduction="none")
    torch.testing.assert_close(loss(LOGITS, SEVERAL), (plain * torch.tensor([2.0, 1.0, 5.0])).mean(dim=1))
    assert not loss.state_dict()


def test_the_focal_factor_is_that_of_the_paper() -> None:
    loss = ClassificationLoss(focal_gamma=2.0)
    right = LOGITS.softmax(dim=1)[range(4), LABELS]
    torch.testing.assert_close(loss(LOGITS, LABELS), -((1 - right) ** 2) * right.log())
    right = torch.where(SEVERAL == 1, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    torch.testing.assert_close(loss(LOGITS, SEVERAL), (-((1 - right) ** 2) * right.log()).mean(dim=1))


def test_the_wing_loss_is_continuous_and_linear_for_large_errors() -> None:
    loss = WingLoss(width=0.1, curvature=0.02)
    errors = torch.tensor([0.0, 0.1 - 1e-7, 0.1 + 1e-7, 0.5, 0.6])
    losses = loss(errors, torch.zeros(5))
    assert losses[0] == 0
    torch.testing.assert_close(losses[1], losses[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(losses[4] - losses[3], torch.tensor(0.1))


def test_a_config_chooses_the_loss_of_a_classifier() -> None:
    words = ["model.loss.label_smoothing=0.2", "model.loss.focal_gamma=1.5"]
    words += ["model.loss.class_weights={bright: 3.0}", "model.model.channels=8", "model.model.head_channels=8"]
    cfg = compose_config(overrides=["dataset=shapes", "datamodule=classification", "model=classifier_small", *words])
    task = instantiate(cfg.model, class_names=list(CLASSES), _convert_="all").eval()  # it has dropout
    batch = classification_batch(4)
    expected = ClassificationLoss(label_smoothing=0.2, focal_gamma=1.5, class_weights=[1.0, 3.0])
    expected.set_class_names(CLASSES)
    task.log = lambda *_, **__: None
    with torch.no_grad():
        torch.testing.assert_close(task.training_step(batch, 0), expected(task(batch.images), batch.labels).mean())
    assert "loss" not in task.hparams


def test_a_config_chooses_the_losses_of_points() -> None:
    words = ["model.loss.point_loss={_target_: lit_loader.recipes.WingLoss}", "model.loss.point_weight=7.0"]
    words += ["model.loss.heatmap_weight=0.0", "model.model.channels=8", "model.model.head_channels=8"]
    cfg = compose_config(overrides=["dataset=shapes", "datamodule=landmarks", "model=heatmaps_small", *words])
    task = instantiate(cfg.model, keypoint_names=list(CORNERS), _convert_="all").eval()
    batch = landmark_batch(2)
    losses: dict[str, Any] = {}
    task.log_sum = lambda values, **_: losses.update(values)
    with torch.no_grad():
        task.training_step(batch, 0)
        points = task(batch.images)["keypoints"] / 64
    expected = 7.0 * WingLoss()(points, batch.keypoints / 64)[batch.mask].mean()
    torch.testing.assert_close(losses["points"], expected)
    assert losses["heatmaps"] == 0


def test_losses_of_torch_are_taken_and_those_that_reduce_are_refused() -> None:
    builder = partial(classifier_small, channels=8, head_channels=8)
    batch = classification_batch(4)
    several = classification_batch(4, multi_label=True)

    def train(loss: Any, batch: Any, names: Any = CLASSES, **changes: Any) -> float:
        task = ClassificationTask(builder, class_names=names, loss=loss, **changes)
        task.log = lambda *_, **__: None
        return float(task.training_step(batch, 0).detach())

    assert train(nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), batch) > 0
    assert train(nn.BCEWithLogitsLoss(reduction="none"), several, ("a", "b", "c"), multi_label=True) > 0
    with pytest.raises(ValueError, match=r"expected one loss an image \(4,\).*got \(\); give one with reduction"):
        train(nn.CrossEntropyLoss(), batch)
    points = LandmarkTask(
        partial(heatmaps_small, channels=8, head_channels=8),
        keypoint_names=CORNERS,
        loss=LandmarkLoss(point_loss=nn.SmoothL1Loss()),
    )
    with pytest.raises(ValueError, match=r"expected one loss a coordinate.*reduction='none'"):
        points.training_step(landmark_batch(2), 0)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: ClassificationLoss(label_smoothing=1.0), r"label_smoothing=1.0 must be in \[0, 1\)"),
        (lambda: ClassificationLoss(focal_gamma=-1.0), "focal_gamma=-1.0 must be 0 or more"),
        (lambda: WingLoss(width=0.0), "width=0.0 and curvature=.* must be positive"),
        (lambda: LandmarkLoss(point_weight=-1.0), "point_weight=-1.0 must be 0 or more"),
        (lambda: LandmarkLoss(heatmap_sigma=0.0), "heatmap_sigma=0.0 must be positive"),
        (lambda: with_weights({"cat": 2.0}), r"class_weights names \['cat'\]; the classes are \['dark', 'bright'\]"),
        (lambda: with_weights([1.0]), "class_weights has 1 values for 2 classes"),
        (lambda: with_weights([1.0, 0.0]), r"class_weights=\[1.0, 0.0\] must be positive"),
    ],
)
def test_arguments_out_of_range_are_refused(build: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build()


def with_weights(class_weights: Any) -> None:
    ClassificationLoss(class_weights=class_weights).set_class_names(list(CLASSES))
