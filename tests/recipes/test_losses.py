"""Losses that a config can choose, compared with torch's formulas, and in the tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.nn import functional

from lit_loader.app.composition import compose_config
from lit_loader.recipes import ClassificationLoss, LandmarkLoss, WingLoss
from tests.support.drawn_batches import CLASSES, CORNERS, classification_batch, landmark_batch, overfit
from tests.support.small_tasks import small_task

SMALL_NET = ["dataset=shapes", "model.model.channels=8", "model.model.head_channels=8"]
LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-3.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
LABELS = torch.tensor([0, 2, 1, 0])
MULTI_LABELS = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_and_label_smoothing_are_torchs(smoothing: float) -> None:
    loss = ClassificationLoss(label_smoothing=smoothing)
    expected = functional.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=smoothing)
    assert torch.equal(loss(LOGITS, LABELS), expected)
    answers = MULTI_LABELS * (1 - smoothing) + smoothing / 2
    expected = functional.binary_cross_entropy_with_logits(LOGITS, answers, reduction="none").mean(dim=1)
    assert torch.equal(loss(LOGITS, MULTI_LABELS), expected)


@pytest.mark.parametrize("class_weights", [{"c": 5.0, "a": 2.0}, [2.0, 1.0, 5.0]])
def test_class_weights_are_given_by_name_or_in_order(class_weights: Any) -> None:
    loss = ClassificationLoss(class_weights=class_weights)
    loss.set_class_names(["a", "b", "c"])
    plain = functional.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(loss(LOGITS, LABELS), plain * torch.tensor([2.0, 5.0, 1.0, 2.0]))
    plain = functional.binary_cross_entropy_with_logits(LOGITS, MULTI_LABELS, reduction="none")
    torch.testing.assert_close(loss(LOGITS, MULTI_LABELS), (plain * torch.tensor([2.0, 1.0, 5.0])).mean(dim=1))
    assert not loss.state_dict()  # so that a checkpoint loads with other weights


def test_focal_factor_follows_the_paper() -> None:
    loss = ClassificationLoss(focal_gamma=2.0)
    right = LOGITS.softmax(dim=1)[range(4), LABELS]
    torch.testing.assert_close(loss(LOGITS, LABELS), -((1 - right) ** 2) * right.log())
    right = torch.where(MULTI_LABELS == 1, LOGITS.sigmoid(), 1 - LOGITS.sigmoid())
    torch.testing.assert_close(loss(LOGITS, MULTI_LABELS), (-((1 - right) ** 2) * right.log()).mean(dim=1))


def test_wing_loss_is_continuous_and_linear_for_large_errors() -> None:
    loss = WingLoss(width=0.1, curvature=0.02)
    errors = torch.tensor([0.0, 0.1 - 1e-7, 0.1 + 1e-7, 0.5, 0.6])
    losses = loss(errors, torch.zeros(5))
    assert losses[0] == 0
    torch.testing.assert_close(losses[1], losses[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(losses[4] - losses[3], torch.tensor(0.1))


def test_config_selects_the_loss_of_a_classifier() -> None:
    settings = [
        "model.loss.label_smoothing=0.2",
        "model.loss.focal_gamma=1.5",
        "model.loss.class_weights={bright: 3.0}",
    ]
    cfg = compose_config(overrides=["datamodule=classification", "model=classifier_small", *SMALL_NET, *settings])
    task = instantiate(cfg.model, class_names=list(CLASSES), _convert_="all").eval()  # without dropout
    batch = classification_batch(4)
    expected = ClassificationLoss(label_smoothing=0.2, focal_gamma=1.5, class_weights=[1.0, 3.0])
    expected.set_class_names(CLASSES)
    task.log = lambda *_, **__: None
    with torch.no_grad():
        torch.testing.assert_close(task.training_step(batch, 0), expected(task(batch.images), batch.labels).mean())
    assert "loss" not in task.hparams


def test_config_selects_the_losses_of_points() -> None:
    settings = ["model.loss.point_loss={_target_: lit_loader.recipes.WingLoss}", "model.loss.point_weight=7.0"]
    settings += ["model.loss.heatmap_weight=0.0"]
    cfg = compose_config(overrides=["datamodule=landmarks", "model=heatmaps_small", *SMALL_NET, *settings])
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


@pytest.mark.parametrize(
    ("loss", "multi_label"),
    [
        (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), False),
        (nn.BCEWithLogitsLoss(reduction="none"), True),
    ],
)
def test_torch_losses_are_accepted_without_reduction(loss: nn.Module, multi_label: bool) -> None:
    names = ("a", "b", "c") if multi_label else CLASSES
    task = small_task("classification", class_names=names, multi_label=multi_label, loss=loss)
    assert overfit(task, classification_batch(4, multi_label=multi_label), steps=1)[0] > 0


def test_losses_that_reduce_are_refused() -> None:
    classifier = small_task("classification", loss=nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match=r"expected one loss an image \(4,\).*got \(\); give one with reduction"):
        classifier.training_step(classification_batch(4), 0)
    points = small_task("landmarks", loss=LandmarkLoss(point_loss=nn.SmoothL1Loss()))
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
        (lambda: weighted({"cat": 2.0}), r"class_weights names \['cat'\]; the classes are \['dark', 'bright'\]"),
        (lambda: weighted([1.0]), "class_weights has 1 values for 2 classes"),
        (lambda: weighted([1.0, 0.0]), r"class_weights=\[1.0, 0.0\] must be positive"),
    ],
)
def test_arguments_out_of_range_are_refused(build: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build()


def weighted(class_weights: Any) -> None:
    ClassificationLoss(class_weights=class_weights).set_class_names(list(CLASSES))
