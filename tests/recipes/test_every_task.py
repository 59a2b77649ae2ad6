"""Guarantees that hold for every task: images and labels it accepts, its checkpoint, its precision, its arguments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lit_loader.collate import ClassificationBatch
from tests.support.drawn_batches import CLASSES, CORNERS, fit
from tests.support.small_tasks import TASKS, small_builder, small_task
from tests.support.toy_task import trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

every_task = pytest.mark.parametrize("kind", TASKS)
NORMALISED = (4.0, -2.0)
BYTES = (255.0, 0.0)


def batch_of(kind: str) -> Any:
    return TASKS[kind][-1](2)


def batch_with(batch: Any, field: str, value: Any) -> Any:
    """Return a batch with another value of a field, for a detection batch ``images`` or the labels of all targets."""
    if isinstance(batch, ClassificationBatch):
        return replace(batch, **{field: value})
    if isinstance(batch[1], Tensor):
        return batch._replace(**{field: value})
    images, targets = batch
    return (value, targets) if field == "images" else (images, [target | {field: value[:1]} for target in targets])


@every_task
def test_uint8_images_give_the_outputs_of_float_images(kind: str) -> None:
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    model = small_task(kind).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(images.float() / 255))


@pytest.mark.parametrize(
    ("stage", "scaling"),
    [("fit", NORMALISED), ("validate", NORMALISED), ("test", NORMALISED), ("predict", NORMALISED), ("fit", BYTES)],
)
@every_task
def test_images_outside_of_the_unit_range_are_refused_in_the_first_batch(
    tmp_path: Any, kind: str, stage: str, scaling: tuple[float, float]
) -> None:
    batch = batch_of(kind)
    images = batch.images if hasattr(batch, "images") else torch.stack(batch[0])
    factor, offset = scaling
    loader = DataLoader([batch_with(batch, "images", images * factor + offset)], batch_size=None)
    with pytest.raises(ValueError, match=r"expects \[0, 1\], or uint8, and normalises them; leave normalisation out"):
        getattr(trainer(tmp_path), stage)(small_task(kind), *[loader] * (2 if stage == "fit" else 1))


@pytest.mark.parametrize(
    ("kind", "first", "settings"),
    [
        ("detection", 1, {}),
        ("classification", 0, {}),
        ("landmarks", 0, {"class_names": CLASSES}),
        ("multi_task", 1, {}),
    ],
)
def test_label_without_a_class_name_is_refused(kind: str, first: int, settings: dict[str, Any]) -> None:
    batch = batch_of(kind)
    labels = getattr(batch, "labels", torch.zeros(2, dtype=torch.int64))
    for label in (first - 1, first + len(CLASSES)):
        wrong = batch_with(batch, "labels", torch.full_like(labels, label))
        with pytest.raises(ValueError, match=rf"must be in {first} to {first + 1}"):
            small_task(kind, **settings).training_step(wrong, 0)


@every_task
def test_fit_and_test_log_the_monitored_metric(tmp_path: Any, kind: str) -> None:
    model = small_task(kind)
    metrics = fit(model, [batch_of(kind)], tmp_path).callback_metrics
    assert model.val_scores is not None
    assert model.monitor_mode == ("min" if kind == "landmarks" else "max")
    assert f"test/{model.monitor.removeprefix('val/')}" in metrics


@pytest.mark.parametrize(
    ("kind", "net", "settings"),
    [
        ("detection", {"strides": (4, 8)}, {}),
        ("classification", {"stride": 16}, {"class_names": ("bright", "dark")}),
        ("landmarks", {"stride": 8}, {"class_names": CLASSES, "normalization_pair": (0, 1)}),
        ("multi_task", {"score_thresh": 0.0}, {"normalization_pair": (0, 1)}),
    ],
)
def test_checkpoint_restores_the_task_from_plain_values_and_a_builder(
    tmp_path: Any, kind: str, net: dict[str, Any], settings: dict[str, Any]
) -> None:
    model = small_task(kind, net, **settings)
    path = tmp_path / "task.ckpt"
    fit(model, [batch_of(kind)], tmp_path).save_checkpoint(path)
    restored = type(model).load_from_checkpoint(path, model=small_builder(kind, net), weights_only=True).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(restored(images), model.eval()(images))
    assert dict(restored.hparams) == dict(model.hparams)
    assert repr(restored.test_metric) == repr(model.test_metric)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("kind", ["classification", "landmarks"])
def test_lower_precision_trains_and_predicts_in_single_precision(tmp_path: Any, kind: str, precision: Any) -> None:
    model = small_task(kind, class_names=CLASSES)
    batch = batch_of(kind)
    running = fit(model, [batch], tmp_path, precision=precision)
    assert math.isfinite(next(iter(model.test_scores.logged.values())))
    (prediction,) = running.predict(model, DataLoader([batch], batch_size=None))  # type: ignore[misc]
    tensors = {"probabilities": prediction} if isinstance(prediction, Tensor) else prediction
    assert {value.dtype for name, value in tensors.items() if name != "image_ids"} == {torch.float32}


@pytest.mark.parametrize(
    ("kind", "net", "settings", "match"),
    [
        *[(kind, {}, {"class_names": names}, "class_names") for kind in TASKS for names in ((), ("a", "a"))],
        ("detection", {"head_channels": 48}, {}, "multiple of 32"),
        ("detection", {"channels": 12}, {}, "multiple of 8"),
        ("detection", {"strides": (8, 32)}, {}, "run of neighbours"),
        ("detection", {"strides": ()}, {}, "run of neighbours"),
        ("classification", {"stride": 6}, {}, "run of neighbours"),
        ("classification", {"channels": 12}, {}, "multiple of 8"),
        ("landmarks", {"stride": 5}, {}, "run of neighbours"),
        ("landmarks", {}, {"keypoint_names": ()}, "keypoint_names"),
        ("landmarks", {}, {"keypoint_names": ("a", "a")}, "keypoint_names"),
        ("landmarks", {}, {"normalize_by": "pair"}, "needs normalization_pair"),
        ("landmarks", {}, {"normalization_pair": (0, 4)}, "among 4"),
        ("landmarks", {}, {"normalization_pair": (2, 2)}, "different points"),
        ("landmarks", {}, {"normalize_by": "pupils"}, "must be 'pair'"),
        ("landmarks", {}, {"failure_threshold": -1.0}, "failure_threshold"),
        ("multi_task", {}, {"keypoint_names": (), "attributes": None}, "DetectionTask"),
        ("multi_task", {}, {"keypoint_names": ("a", "a")}, "keypoint_names"),
        ("multi_task", {}, {"attributes": {"finish": ()}}, "finish"),
        ("multi_task", {}, {"attributes": {"labels": ("a", "b")}}, "other fields"),
        ("multi_task", {}, {"attributes": {"a": ("x",), "a_probabilities": ("x",)}}, "other fields"),
        ("multi_task", {}, {"normalize_by": "pair"}, "needs normalization_pair"),
        ("multi_task", {}, {"keypoint_names": (), "normalization_pair": (0, 1)}, "without keypoint_names"),
    ],
)
def test_arguments_out_of_range_are_refused(
    kind: str, net: dict[str, Any], settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        small_task(kind, net, **settings)


def test_single_string_of_names_is_refused() -> None:
    with pytest.raises(TypeError, match="one string"):
        small_task("classification", class_names="ab")


def test_points_of_another_number_are_refused() -> None:
    for kind in ("landmarks", "multi_task"):
        with pytest.raises(ValueError, match="objects have 4 points"):
            small_task(kind, keypoint_names=CORNERS[:3]).training_step(batch_of(kind), 0)
