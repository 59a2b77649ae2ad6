"""The detection task on a small FCOS: training, scores, crowds, and detections in pixels of the input."""

from __future__ import annotations

import math
import re
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW
from torchvision import tv_tensors

from lit_loader import BatchChoice, DetectionDataModule, LinearSchedule, ShapesSource
from lit_loader.collate import DetectionCollate
from lit_loader.recipes import PyramidBackbone, WarmupCosineLR, fcos_small
from tests.support.drawn_batches import CLASSES, detection_batch, fit, overfit
from tests.support.small_tasks import small_task
from tests.support.tiny_trainer import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

task = partial(small_task, "detection")
EVERY_SCORE = {"score_thresh": 0.0}


def empty_target() -> dict[str, Any]:
    return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "is_duplicate": False}


def test_steps_on_one_batch_reduce_the_loss() -> None:
    losses = overfit(task(), detection_batch(2), steps=12, learning_rate=5e-3)
    assert losses[-1] < 0.7 * losses[0]


def test_fit_and_test_report_every_class_by_name(tmp_path: Any) -> None:
    model = task(optimizer=partial(AdamW, lr=1e-2), scheduler=partial(WarmupCosineLR, warmup_steps=2))
    fit(model, [detection_batch(2)] * 4, tmp_path)
    assert set(model.test_scores.ap_50) == set(CLASSES)
    assert 0 <= model.test_scores.map <= model.test_scores.map_50 <= 1
    sections = dict(model.test_report())
    assert sections["test"] == {"mAP@50": model.test_scores.map_50, "mAP": model.test_scores.map}
    assert set(sections["AP@50"]) == set(CLASSES)


def test_images_without_boxes_train_and_score(tmp_path: Any) -> None:
    images, (target, _) = detection_batch(2)
    dark = target | {"labels": torch.tensor([1])}
    model = task()
    fit(model, [(images, [dark, empty_target()]), (images, [empty_target()] * 2)], tmp_path)
    assert math.isfinite(model.test_scores.map)
    assert math.isnan(model.test_scores.ap_50["bright"])


def test_tv_tensors_and_a_stacked_batch_give_the_same_detections() -> None:
    images, _ = detection_batch(2)
    model = task(EVERY_SCORE).eval()
    with torch.no_grad():
        expected = model(images)
        outputs = [model([tv_tensors.Image(image) for image in images]), model(torch.stack(images))]
    for detections in outputs:
        assert {type(detection["boxes"]) for detection in detections} == {Tensor}
        torch.testing.assert_close(detections, expected)


def test_labels_of_detections_start_at_one() -> None:
    model = task(EVERY_SCORE).eval()
    with torch.no_grad():
        raw = model.model(detection_batch(2)[0])
        detections = model(detection_batch(2)[0])
    assert any(0 in detection["labels"] for detection in raw)
    assert {label for detection in detections for label in detection["labels"].tolist()} == {1, 2}


@pytest.mark.parametrize(
    ("name", "schedule", "model", "message"),
    [
        ("size", BatchChoice([32, 64]), {}, r"train_transforms.size follows .* FCOS resizes all images to min_size=64"),
        ("size", [BatchChoice([32, 64]), 48], {}, "train_transforms.size.* follows"),
        (
            "shorter_sides",
            [32, LinearSchedule({0: 32, 4: 64}, step=32)],
            {},
            "train_transforms.shorter_sides.* follows",
        ),
        ("size", BatchChoice([32, 64]), {"min_size": [48, 64]}, None),
        ("hflip", LinearSchedule({0: 0.5, 4: 0.0}), {}, None),
    ],
)
def test_fit_warns_once_of_scheduled_sizes_that_the_model_undoes(
    tmp_path: Any, name: str, schedule: Any, model: dict[str, Any], message: str | None
) -> None:
    transforms = {name: schedule} if name != "shorter_sides" else {name: schedule, "max_size": 96}
    source = ShapesSource(num_images={"train": 4, "val": 2}, image_size=48)
    datamodule = DetectionDataModule(source, batch_size=2, train_transforms=transforms)
    model_task = task(model, class_names=["disc", "square", "star"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of(tmp_path, limit_val_batches=0).fit(model_task, datamodule=datamodule)
    texts = [str(warning.message) for warning in caught if "follows a schedule" in str(warning.message)]
    assert len(texts) == (message is not None)
    if message is not None:
        assert re.search(message, texts[0])


def test_small_detector_draws_one_of_several_sizes_for_each_training_image() -> None:
    detector = fcos_small(num_classes=3, min_size=[32, 64], max_size=64)
    images = [torch.zeros(3, 48, 48)]
    sizes = {tuple(detector.transform(images)[0].tensors.shape[-2:]) for _ in range(20)}
    assert sizes == {(32, 32), (64, 64)}
    assert detector.eval().transform(images)[0].tensors.shape[-2:] == (64, 64)


def test_boxes_of_the_small_detector_have_a_size_and_a_gradient_at_the_start() -> None:
    torch.manual_seed(0)
    head = fcos_small(num_classes=3, channels=16, head_channels=32).head.regression_head
    sides, _ = head([torch.rand(2, 32, 12, 12)])
    assert (sides > 0).all()  # behind a ReLU, which passes a gradient above 0 alone
    sides.sum().backward()
    assert head.bbox_reg.bias.grad.tolist() == [2.0 * 12 * 12] * 4


def test_arguments_of_the_small_detector_reach_torchvisions() -> None:
    arguments = {"score_thresh": 0.3, "nms_thresh": 0.4, "detections_per_img": 7}
    detector = fcos_small(num_classes=3, min_size=32, max_size=64, **arguments)
    assert {name: getattr(detector, name) for name in arguments} == arguments
    assert (detector.transform.min_size, detector.transform.max_size) == ((32,), 64)


def test_crowd_regions_change_neither_the_loss_nor_the_scores() -> None:
    images, (target,) = detection_batch(1)
    target["labels"] = torch.tensor([1])
    crowd = {
        "boxes": torch.cat([target["boxes"], torch.tensor([[0.0, 0.0, 60.0, 60.0]])]),
        "labels": torch.tensor([1, 2]),
        "iscrowd": torch.tensor([0, 1]),
        "is_duplicate": False,
    }
    batches = [(images, [crowd]), (images, [target])]
    losses = [overfit(task(), batch, steps=1) for batch in batches]
    assert losses[0] == losses[1]
    model = task(EVERY_SCORE).eval()
    with torch.no_grad():
        model.validation_step(batches[0], 0)
    assert math.isnan(model.val_metric.metric.compute_scores().ap_50["bright"])


@pytest.mark.parametrize("strides", [(4,), (8,), (8, 16), (8, 16, 32)])
def test_pyramid_returns_a_map_for_each_stride(strides: tuple[int, ...]) -> None:
    maps = PyramidBackbone(channels=16, out_channels=32, strides=strides)(torch.rand(1, 3, 64, 96))
    assert {name: tuple(m.shape) for name, m in maps.items()} == {str(s): (1, 32, 64 // s, 96 // s) for s in strides}


@pytest.mark.parametrize("mode", ["list", "stack", "pad"])
def test_every_mode_of_collation_gives_the_same_loss_detections_and_scores(mode: Any) -> None:
    images, targets = detection_batch(2)
    collate = DetectionCollate(images=mode, **({"size_divisor": 96, "pad_value": 0.7} if mode == "pad" else {}))
    collated: Any = collate(list(zip(images, targets, strict=True)))
    losses = [overfit(task(), batch, steps=1) for batch in (collated, (images, targets))]
    assert losses[0] == pytest.approx(losses[1])
    model = task(EVERY_SCORE).eval()
    outputs = []
    for batch in (collated, (images, targets)):
        with torch.no_grad():
            prediction = model.predict_step(batch, 0)
            model.test_step(batch, 0)
        scores = model.test_metric.metric.compute_scores()
        model.test_metric.reset()
        outputs.append((prediction, repr(scores)))  # as text, because NaN is not equal to NaN
    torch.testing.assert_close(outputs[0][0], outputs[1][0])
    assert outputs[0][1] == outputs[1][1]


def test_targets_in_columns_are_refused() -> None:
    images, _ = detection_batch(2)
    with pytest.raises(TypeError, match="one dict per image"):
        task().training_step((images, {"boxes": torch.zeros(2, 1, 4), "labels": torch.ones(2, 1)}), 0)


def test_labels_without_a_name_are_refused_before_the_transfer() -> None:
    images, targets = detection_batch(2)
    model = task()
    model.check_batch((images, targets))
    wrong = [target | {"labels": torch.full_like(target["labels"], 99)} for target in targets]
    with pytest.raises(ValueError, match="labels 99 to 99 must be in 1 to"):
        model.check_batch((images, wrong))
    model.check_batch({"images": images})  # a batch transform may still turn it into one that the task reads


def test_step_reads_no_labels_that_a_loader_has_checked(monkeypatch: Any) -> None:
    model = task()
    monkeypatch.setattr(model, "must_check", lambda values: False)
    monkeypatch.setattr("lit_loader.recipes.detection.check_labels", lambda *_, **__: pytest.fail("checked"))
    model.read_targets(detection_batch(2))
