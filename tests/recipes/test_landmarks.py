"""The landmark task: what it accepts, that it learns, and what it reports."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from lit_loader.recipes import LandmarkTask, heatmaps_small
from tests.support.drawn_batches import CLASSES, CORNERS, fit, landmark_batch, multi_task_batch, overfit
from tests.support.toy_task import trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def task(*, stride: int = 4, **changes: Any) -> LandmarkTask:
    torch.manual_seed(0)
    model = partial(heatmaps_small, channels=16, head_channels=16, stride=stride)
    return LandmarkTask(model, **{"keypoint_names": CORNERS} | changes)


def test_it_learns_drawn_squares_to_a_pixel_and_their_class() -> None:
    model = task(class_names=CLASSES)
    batch = landmark_batch(8)
    overfit(model, batch, steps=60, learning_rate=1e-2)
    with torch.no_grad():
        found = model(batch.images)
    distances = (found["keypoints"] - batch.keypoints).norm(dim=-1)[batch.mask]
    assert float(distances.mean()) < 1.0
    assert float(found["scores"][batch.mask].mean()) > 0.6
    assert found["class_logits"].argmax(dim=1).tolist() == batch.labels.tolist()


def test_masked_points_teach_nothing() -> None:
    batch = landmark_batch(4)
    other = batch._replace(keypoints=torch.where(batch.mask[..., None], batch.keypoints, 50.0))
    losses = [overfit(task(), one, steps=2) for one in (batch, other)]
    assert losses[0] == losses[1]
    assert overfit(task(), batch._replace(mask=~batch.mask), steps=1) != losses[0][:1]


def test_a_batch_without_points_can_be_stepped_on() -> None:
    batch = landmark_batch(2)
    assert overfit(task(), batch._replace(mask=torch.zeros_like(batch.mask)), steps=2) == [0.0, 0.0]


def test_fit_and_test_report_points_and_classes(tmp_path: Any) -> None:
    model = task(class_names=CLASSES, failure_threshold=0.5)
    trainer = fit(model, [landmark_batch(4), landmark_batch(3, seed=1)], tmp_path)
    assert model.test_scores is not None
    assert (model.test_scores.num_faces, model.test_scores.num_excluded) == (14, 0)  # two loaders, as one
    assert model.test_scores.classes is not None
    logged = trainer.callback_metrics
    assert float(logged["test/auc"]) == pytest.approx(model.test_scores.auc)
    assert float(logged["test/nme"]) == pytest.approx(model.test_scores.nme)
    assert float(logged["test/macro_f1"]) == pytest.approx(model.test_scores.classes.macro_f1)
    sections = dict(model.test_report())
    assert sections["test"]["NME over root of box area"] == model.test_scores.nme
    assert sections["test"]["failures above 0.5"] == model.test_scores.failure_rate
    assert set(sections["recall"]) == set(sections["F1"]) == set(CLASSES)


def test_the_checkpoint_is_chosen_by_a_metric_that_validation_logs(tmp_path: Any) -> None:
    model = task()
    trainer = fit(model, [landmark_batch(2)], tmp_path, num_sanity_val_steps=0)
    assert model.val_scores is not None
    assert model.monitor_mode == "min"
    assert model.monitor.split("/")[1] in {name.split("/")[1] for name in trainer.callback_metrics}
    assert model.test_scores is not None
    assert model.test_scores.classes is None
    assert [title for title, _ in model.test_report()] == ["test"]


def test_a_checkpoint_restores_the_task_from_plain_values_and_a_builder(tmp_path: Any) -> None:
    model = task(class_names=CLASSES, normalization_pair=(0, 1), stride=8)
    fit(model, [landmark_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    torch.load(tmp_path / "m.ckpt", weights_only=True)
    builder = partial(heatmaps_small, channels=16, head_channels=16, stride=8)
    again = LandmarkTask.load_from_checkpoint(tmp_path / "m.ckpt", model=builder, weights_only=True).eval()
    images = landmark_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(again(images), model.eval()(images))
    assert again.test_metric.metric.points.normalization_pair == (0, 1)


@pytest.mark.parametrize("size", [64, 80, 100])
@pytest.mark.parametrize("stride", [4, 8])
def test_points_are_pixels_of_the_crop_whatever_its_size(size: int, stride: int) -> None:
    model = task(stride=stride).eval()
    torch.nn.init.zeros_(model.model.heatmaps.weight)
    torch.nn.init.zeros_(model.model.heatmaps.bias)
    with torch.no_grad():
        points = model(torch.rand(2, 3, size, size))["keypoints"]
    middle = math.ceil(size / stride) * stride / 2
    torch.testing.assert_close(points, torch.full((2, 4, 2), middle))


def test_uint8_images_are_scaled_to_the_unit_range() -> None:
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    model = task().eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(images.float() / 255))


def test_prediction_gives_points_scores_and_logits() -> None:
    model = task(class_names=CLASSES).eval()
    with torch.no_grad():
        found = model.predict_step(landmark_batch(3), 0)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "keypoints": (3, 4, 2),
        "scores": (3, 4),
        "class_logits": (3, 2),
        "image_ids": (3,),
    }


@pytest.mark.parametrize(
    ("changes", "normalize_by"),
    [
        ({}, "box"),
        ({"normalization_pair": [0, 1]}, "pair"),
        ({"normalize_by": "diagonal"}, "diagonal"),
        ({"normalization_pair": [0, 1], "normalize_by": "box"}, "box"),
    ],
)
def test_the_error_is_normalised_as_asked_or_by_what_is_known(changes: dict[str, Any], normalize_by: str) -> None:
    model = task(**changes)
    metrics = (model.val_metric.metric.points, model.test_metric.metric.points)
    assert [metric.normalize_by for metric in metrics] == [normalize_by] * 2


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_the_class_names_is_refused(label: int) -> None:
    batch = landmark_batch(1)._replace(labels=torch.tensor([label]))
    with pytest.raises(ValueError, match="must be in 0 to 1"):
        task(class_names=CLASSES).training_step(batch, 0)
    overfit(task(), batch, steps=1)  # without a class head nobody asks


def test_a_batch_of_something_else_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match="LandmarkDataModule"):
        task().training_step(multi_task_batch(1), 0)
    with pytest.raises(ValueError, match="objects have 4 points"):
        task(keypoint_names=CORNERS[:3]).training_step(landmark_batch(1), 0)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        task()(torch.rand(3, 64, 64))


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_images_that_were_normalised_already_are_refused(tmp_path: Any, stage: str) -> None:
    batch = landmark_batch(2)
    loader = torch.utils.data.DataLoader([batch._replace(images=batch.images * 4 - 2)], batch_size=None)
    with pytest.raises(ValueError, match="leave normalisation out"):
        getattr(trainer(tmp_path), stage)(task(), *[loader] * (2 if stage == "fit" else 1))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lower_precision_trains_and_predicts_in_single_precision(tmp_path: Any, precision: Any) -> None:
    model, batch = task(class_names=CLASSES), landmark_batch(2)
    running = fit(model, [batch], tmp_path, precision=precision)
    assert model.test_scores is not None
    assert math.isfinite(model.test_scores.nme)
    (found,) = running.predict(model, torch.utils.data.DataLoader([batch], batch_size=None))  # type: ignore[misc]
    assert {found[name].dtype for name in ("keypoints", "scores", "class_logits")} == {torch.float32}


def test_a_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        task().test_report()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"keypoint_names": ()}, "keypoint_names"),
        ({"keypoint_names": ("a", "a")}, "keypoint_names"),
        ({"class_names": ()}, "class_names"),
        ({"normalize_by": "pair"}, "needs normalization_pair"),
        ({"normalization_pair": (0, 4)}, "among 4"),
        ({"normalization_pair": (2, 2), "normalize_by": "box"}, "different points"),
        ({"normalize_by": "pupils"}, "must be 'pair'"),
        ({"failure_threshold": -1.0}, "failure_threshold"),
        ({"stride": 5}, "run of neighbours"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        task(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "NME over root of box area"),
        ({"normalize_by": "diagonal"}, "NME over box diagonal"),
        ({"normalization_pair": (0, 1)}, "NME over distance of two points"),
    ],
)
def test_the_printed_error_names_what_normalises_it(changes: dict[str, Any], name: str) -> None:
    model = task(**changes)
    model.collect(landmark_batch(2), model.test_metric)
    assert name in dict(model.test_metric.metric.compute_scores().report())["test"]
