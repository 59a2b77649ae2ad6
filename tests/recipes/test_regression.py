"""Regressed points: their models, the head of the landmark task, and attributes of both heads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lit_loader.errors import SettingError
from lit_loader.recipes import (
    HeatmapModel,
    LandmarkLoss,
    LandmarkTask,
    RegressionModel,
    WingLoss,
    heatmaps_small,
    regression_model,
    regression_small,
)
from lit_loader.recipes.regression_model import average_cells
from tests.support.batch_fields import with_fields
from tests.support.drawn_batches import CLASSES, CORNERS, FINISH, fit, landmark_batch, overfit
from tests.support.small_tasks import constant_builder

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

BUILDERS = {
    "heatmap": partial(heatmaps_small, channels=8, head_channels=16),
    "regression": partial(regression_small, channels=8, head_channels=16),
}
both_heads = pytest.mark.parametrize("head", BUILDERS)


def task(kind: str = "regression", **settings: Any) -> LandmarkTask:
    torch.manual_seed(0)
    return LandmarkTask(BUILDERS[kind], **{"keypoint_names": CORNERS, **settings})


def task_returning(output: Any, **settings: Any) -> LandmarkTask:
    return LandmarkTask(constant_builder(output), **{"keypoint_names": CORNERS, **settings})


@pytest.mark.parametrize("point_loss", [None, WingLoss(), nn.SmoothL1Loss(reduction="none", beta=0.02)], ids=str)
def test_points_of_drawn_squares_are_regressed_to_two_pixels(point_loss: Any) -> None:
    model = task(loss=LandmarkLoss(point_loss=point_loss))
    batch = landmark_batch(4)
    overfit(model, batch, steps=80, learning_rate=1e-2)
    with torch.no_grad():
        predictions = model(batch.images)
    distances = (predictions["keypoints"] - batch.keypoints).norm(dim=-1)[batch.mask]
    assert float(distances.mean()) < 2.0
    # A regressed point has no confidence.
    assert set(predictions) == {"keypoints"}


def test_masked_points_do_not_contribute_to_the_regression_loss() -> None:
    batch = landmark_batch(4)
    moved = with_fields(batch, keypoints=torch.where(batch.mask[..., None], batch.keypoints, math.nan))
    assert overfit(task(), batch, steps=2) == overfit(task(), moved, steps=2)
    assert overfit(task(), with_fields(batch, mask=torch.zeros_like(batch.mask)), steps=1) == [0.0]


def test_loss_is_that_of_shares_of_the_crop() -> None:
    points = torch.tensor([[0.5, 0.25], [0.5, 0.5], [-0.25, 1.5], [0.0, 0.0]]).expand(2, 4, 2)
    model = task_returning({"points": points}, loss=LandmarkLoss(point_loss=WingLoss(), point_weight=7.0))
    batch = landmark_batch(2)
    losses: dict[str, Any] = {}
    model.log_sum = lambda values, **_: losses.update(values)  # type: ignore[method-assign,assignment,return-value]
    model.training_step(batch, 0)
    expected = 7.0 * WingLoss()(points, batch.keypoints / 64)[batch.mask].mean()
    torch.testing.assert_close(losses, {"points": expected})
    # Outside of the crop as well.
    assert model(torch.rand(2, 3, 40, 80))["keypoints"][0, 2].tolist() == [-20.0, 60.0]


@pytest.mark.parametrize(("height", "width"), [(50, 70), (64, 64), (20, 33)])
def test_regressor_takes_crops_of_any_size(height: int, width: int) -> None:
    model = regression_model(num_keypoints=5, num_classes=2, num_values={"a.b": 3}, backbone="timm/test_resnet").eval()
    with torch.no_grad():
        outputs: Any = model(torch.rand(2, 3, height, width))
    assert outputs["points"].shape == (2, 5, 2)
    assert outputs["class_logits"].shape == (2, 2)
    assert outputs["attribute_logits"]["a.b"].shape == (2, 3)
    assert set(model.pretrained_cfg) == {"mean", "std"}


def test_cells_are_means_of_equal_parts() -> None:
    features = torch.rand(2, 3, 8, 12)
    expected = torch.nn.functional.adaptive_avg_pool2d(features, 4)
    torch.testing.assert_close(average_cells(features, 4), expected)
    # Parts that are not whole cells: 1.5 of 3.
    row = torch.tensor([[[[2.0, 4.0, 9.0]]]])
    torch.testing.assert_close(average_cells(row, 2)[0, 0, 0], torch.tensor([(2 + 4 / 2) / 1.5, (4 / 2 + 9) / 1.5]))
    with pytest.raises(ValueError, match="cells=0 must be at least 1"):
        regression_small(num_keypoints=1, cells=0)


@pytest.mark.parametrize(
    ("model", "head", "kind"),
    [
        ("timm/test_resnet", None, HeatmapModel),
        ("timm/test_resnet", "heatmap", HeatmapModel),
        ("timm/test_resnet", "regression", RegressionModel),
        ("regression_small", None, RegressionModel),
    ],
)
def test_head_selects_the_model_on_a_classifier(model: str, head: Any, kind: type) -> None:
    assert isinstance(LandmarkTask(model, keypoint_names=CORNERS, head=head).model, kind)


@both_heads
def test_model_of_another_head_is_refused(head: str) -> None:
    other = "regression" if head == "heatmap" else "heatmap"
    assert task(head, head=head)(torch.rand(1, 3, 64, 64))
    with pytest.raises(SettingError, match=rf"head='{other}' is not the head of the model.*; .*pass head='{head}'"):
        task(head, head=other)(torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match="head='points' is unknown"):
        task(head, head="points")


@pytest.mark.parametrize(
    ("output", "match"),
    [
        (torch.zeros(2, 4, 2), "got Tensor"),
        ({}, "got dict"),
        ({"points": torch.zeros(2, 3, 2)}, r"points \(2, 4, 2\), got points \(2, 3, 2\)"),
        ({"points": torch.zeros(2, 4, 3)}, r"got points \(2, 4, 3\)"),
        ({"points": torch.zeros(2, 4, 2), "heatmaps": torch.zeros(2, 4, 8, 8)}, r"got heatmaps .* and points"),
    ],
)
def test_outputs_that_are_not_the_points_are_refused(output: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        task_returning(output)(torch.rand(2, 3, 64, 64))


@both_heads
def test_attributes_are_learned_and_scored(tmp_path: Any, head: str) -> None:
    model = task(head, class_names=CLASSES, attributes={"finish": FINISH})
    batch = landmark_batch(8)
    unknown = with_fields(
        batch, attributes={"finish": torch.where(torch.arange(8) < 2, -1, batch.attributes["finish"])}
    )
    overfit(model, unknown, steps=60, learning_rate=1e-2)
    with torch.no_grad():
        predictions = model.predict_step(batch, 0)
    assert predictions["attribute_logits"]["finish"].argmax(dim=1)[2:].equal(batch.attributes["finish"][2:])
    model = task(head, attributes={"finish": FINISH})
    model.record_curves()
    logged = fit(model, [unknown], tmp_path).callback_metrics
    scores = model.test_scores.attributes["finish"]
    assert sum(scores.support.values()) == 12  # two loaders, without unknown values
    for name, value in (("accuracy", scores.accuracy), ("macro_f1", scores.macro_f1)):
        assert float(logged[f"test/finish/{name}"]) == pytest.approx(value)
    assert model.val_scores.attributes["finish"] == scores
    sections = dict(model.test_report())
    assert sections["test"]["finish macro-F1"] == scores.macro_f1
    assert set(sections["finish: recall"]) == set(sections["finish: F1"]) == set(FINISH)
    assert [curves.label for curves in model.test_curves] == ["points", "finish"]


def test_attribute_loss_is_weighted_and_skips_unknown_values() -> None:
    loss = LandmarkLoss(attribute_weight=3.0)
    logits = torch.randn(4, 2)
    ids = torch.tensor([-1, 0, 1, -1])
    expected = 3.0 * torch.nn.functional.cross_entropy(logits[1:3], ids[1:3])
    torch.testing.assert_close(loss.attribute(logits, ids), expected)
    assert float(loss.attribute(logits, torch.full((4,), -1))) == 0


def test_attributes_without_values_are_refused() -> None:
    with pytest.raises(SettingError, match=r"attributes=\['finish'\] is not a dict .*; give one such as"):
        task("regression", attributes=["finish"])


def test_attributes_have_a_loss_and_must_fit_the_batch() -> None:
    batch = landmark_batch(2)
    losses: dict[str, Any] = {}
    model = task("heatmap", class_names=CLASSES, attributes={"finish": FINISH})
    model.log_sum = lambda values, **_: losses.update(values)  # type: ignore[method-assign,assignment,return-value]
    model.training_step(batch, 0)
    assert set(losses) == {"points", "heatmaps", "classes", "attributes/finish"}
    with pytest.raises(ValueError, match=r"no attributes \['colour'\], only \['finish'\]"):
        task(attributes={"colour": ["red"]}).training_step(batch, 0)
    with pytest.raises(ValueError, match=r"attribute_logits of \['finish'\] by name"):
        task_returning({"points": torch.zeros(2, 4, 2)}, attributes={"finish": FINISH}).training_step(batch, 0)
    wrong = with_fields(batch, attributes={"finish": torch.tensor([0, 2])})
    with pytest.raises(ValueError, match=r"must be in 0 to 1 for 'finish'"):
        task(attributes={"finish": FINISH}).training_step(wrong, 0)
    with pytest.raises(ValueError, match="finish"):
        task(attributes={"finish": ()})


def test_checkpoint_restores_head_and_attributes(tmp_path: Any) -> None:
    settings = {"head": "regression", "attributes": {"finish": FINISH}, "class_names": CLASSES, "flip_pairs": [[0, 1]]}
    model = task(**settings)
    fit(model, [landmark_batch(2)], tmp_path).save_checkpoint(tmp_path / "task.ckpt")
    builder = BUILDERS["regression"]
    path = tmp_path / "task.ckpt"
    restored = LandmarkTask.load_from_checkpoint(path, model=builder, weights_only=True).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(restored(images), model.eval()(images))
    assert dict(restored.hparams) == dict(model.hparams)
