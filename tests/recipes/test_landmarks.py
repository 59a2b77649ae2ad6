"""The landmark task on a small net: training, masked points, scores, and the normaliser of the error."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.drawn_batches import CLASSES, fit, landmark_batch, multi_task_batch, overfit
from tests.support.small_tasks import small_task

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

task = partial(small_task, "landmarks")


def test_points_of_drawn_squares_are_learned_to_a_pixel_and_their_class() -> None:
    model = task(class_names=CLASSES)
    batch = landmark_batch(8)
    overfit(model, batch, steps=60, learning_rate=1e-2)
    with torch.no_grad():
        predictions = model(batch.images)
    distances = (predictions["keypoints"] - batch.keypoints).norm(dim=-1)[batch.mask]
    assert float(distances.mean()) < 1.0
    assert float(predictions["scores"][batch.mask].mean()) > 0.6
    assert predictions["class_logits"].argmax(dim=1).tolist() == batch.labels.tolist()


def test_masked_points_do_not_contribute_to_the_loss() -> None:
    batch = landmark_batch(4)
    moved = batch._replace(keypoints=torch.where(batch.mask[..., None], batch.keypoints, 50.0))
    losses = [overfit(task(), points, steps=2) for points in (batch, moved)]
    assert losses[0] == losses[1]
    assert overfit(task(), batch._replace(mask=~batch.mask), steps=1) != losses[0][:1]
    assert overfit(task(), batch._replace(mask=torch.zeros_like(batch.mask)), steps=2) == [0.0, 0.0]


def test_labels_are_ignored_without_a_class_head() -> None:
    overfit(task(), landmark_batch(1)._replace(labels=torch.tensor([-1])), steps=1)


def test_fit_and_test_report_points_and_classes(tmp_path: Any) -> None:
    model = task(class_names=CLASSES, failure_threshold=0.5)
    logged = fit(model, [landmark_batch(4), landmark_batch(3, seed=1)], tmp_path).callback_metrics
    scores = model.test_scores
    assert (scores.num_faces, scores.num_excluded) == (14, 0)  # two loaders, scored as one
    assert float(logged["test/auc"]) == pytest.approx(scores.auc)
    assert float(logged["test/nme"]) == pytest.approx(scores.nme)
    assert float(logged["test/macro_f1"]) == pytest.approx(scores.classes.macro_f1)
    sections = dict(model.test_report())
    assert sections["test"]["NME over root of box area"] == scores.nme
    assert sections["test"]["failures above 0.5"] == scores.failure_rate
    assert set(sections["recall"]) == set(sections["F1"]) == set(CLASSES)


@pytest.mark.parametrize("size", [64, 80, 100])
@pytest.mark.parametrize("stride", [4, 8])
def test_points_are_pixels_of_the_crop_for_every_size_and_stride(size: int, stride: int) -> None:
    model = task({"stride": stride}).eval()
    # A flat heatmap: each point is in the middle of the map.
    torch.nn.init.zeros_(model.model.heatmaps.weight)
    torch.nn.init.zeros_(model.model.heatmaps.bias)
    with torch.no_grad():
        points = model(torch.rand(2, 3, size, size))["keypoints"]
    middle = math.ceil(size / stride) * stride / 2
    torch.testing.assert_close(points, torch.full((2, 4, 2), middle))


def test_prediction_has_points_scores_logits_and_ids() -> None:
    model = task(class_names=CLASSES).eval()
    with torch.no_grad():
        prediction = model.predict_step(landmark_batch(3), 0)
    shapes = {name: tuple(value.shape) for name, value in prediction.items()}
    assert shapes == {"keypoints": (3, 4, 2), "scores": (3, 4), "class_logits": (3, 2), "image_ids": (3,)}


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({}, "NME over root of box area"),
        ({"normalize_by": "diagonal"}, "NME over box diagonal"),
        ({"normalization_pair": [0, 1]}, "NME over distance of two points"),
        ({"normalization_pair": [0, 1], "normalize_by": "box"}, "NME over root of box area"),
    ],
)
def test_report_names_the_normaliser_of_the_error(settings: dict[str, Any], title: str) -> None:
    model = task(**settings)
    for metric in (model.val_metric, model.test_metric):
        model.collect(landmark_batch(2), metric)
        ((_, figures),) = metric.metric.compute_scores().report()
        assert title in figures


def test_batches_and_images_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="LandmarkDataModule"):
        task().training_step(multi_task_batch(1), 0)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        task()(torch.rand(3, 64, 64))
