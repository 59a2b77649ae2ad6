"""The multi-task recipe: three tasks learned on one backbone, masked values, heads left out, and reports."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torchvision.models import get_model_builder
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from lit_loader.recipes import MultiTask
from tests.support.batch_fields import with_fields
from tests.support.drawn_batches import (
    CLASSES,
    CORNERS,
    FINISH,
    changed_by_fit,
    fit,
    landmark_batch,
    multi_task_batch,
    overfit,
)
from tests.support.small_tasks import small_task

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

NAMES = {"class_names": CLASSES, "keypoint_names": CORNERS, "attributes": {"finish": FINISH}}
EVERY_SCORE = {"score_thresh": 0.0}

task = partial(small_task, "multi_task")


@pytest.mark.soak
def test_boxes_classes_points_and_an_attribute_of_drawn_squares_are_learned() -> None:
    model = task()
    batch = multi_task_batch(8)
    overfit(model, batch, steps=70, learning_rate=2e-2)
    with torch.no_grad():
        model.test_step(batch, 0)
    scores = model.test_metric.metric.compute_scores()
    assert scores.detection.map_50 > 0.95
    assert (scores.num_matched, scores.num_missed) == (8, 0)
    assert scores.landmarks.nme < 0.05
    assert scores.attributes["finish"].macro_f1 == 1.0
    assert scores.mean > 0.95


def test_masked_values_do_not_contribute_to_the_loss() -> None:
    batch = multi_task_batch(4)
    changed = with_fields(
        batch,
        keypoints=torch.where(batch.keypoint_mask[..., None], batch.keypoints, 31.0),
        boxes=torch.where(batch.object_mask[..., None], batch.boxes, 7.0),
        labels=torch.where(batch.object_mask, batch.labels, 99),
    )
    assert overfit(task(), batch, steps=2) == overfit(task(), changed, steps=2)


def test_crowd_regions_are_not_trained_on() -> None:
    batch = multi_task_batch(2)
    empty = multi_task_batch(2, empty=[0])
    crowd = with_fields(batch, iscrowd=torch.tensor([[1, 0], [0, 0]]))
    batch_loss, crowd_loss, empty_loss = (overfit(task(), targets, steps=1) for targets in (batch, crowd, empty))
    assert crowd_loss == empty_loss != batch_loss


def test_objects_without_points_and_attribute_contribute_to_the_other_losses() -> None:
    batch = multi_task_batch(2)
    boxes_only = with_fields(
        batch,
        visibility=torch.zeros_like(batch.visibility),
        keypoint_mask=torch.zeros_like(batch.keypoint_mask),
        attributes={"finish": torch.full_like(batch.labels, -1)},
        attribute_masks={"finish": torch.zeros_like(batch.object_mask)},
    )
    model = task()
    logged: dict[str, float] = {}
    model.log_dict = lambda values, **_: logged.update({k: float(v) for k, v in values.items()})
    model.training_step(boxes_only, 0).backward()
    assert (logged["train/keypoints"], logged["train/attributes/finish"]) == (0.0, 0.0)
    assert logged["train/classification"] > 0
    model.training_step(batch, 0)
    assert min(logged["train/keypoints"], logged["train/attributes/finish"]) > 0


def test_images_without_objects_train_and_score(tmp_path: Any) -> None:
    model = task()
    fit(model, [multi_task_batch(2, empty=[0]), multi_task_batch(2, empty=[0, 1])], tmp_path)
    assert model.test_scores.num_matched + model.test_scores.num_missed == 2  # one object, two loaders
    assert math.isfinite(model.test_scores.mean)


def test_padding_of_images_changes_neither_the_loss_nor_predictions() -> None:
    batch = multi_task_batch(2)
    model = task(EVERY_SCORE)
    padded = with_fields(batch, images=torch.nn.functional.pad(batch.images, (0, 40, 0, 24), value=0.7))
    assert overfit(task(), batch, steps=1) == overfit(task(), padded, steps=1)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model.predict_step(batch, 0), model.predict_step(padded, 0))


def test_predictions_are_in_pixels_of_the_image() -> None:
    model = task(EVERY_SCORE | {"detections_per_img": 7, "min_size": 32}).eval()
    model.model.detector.head.classification_head.cls_logits.bias.data[0] = -9.0  # no detections of the background
    with torch.no_grad():
        predictions = model([torch.rand(3, 128, 160)])[0]
    assert {name: tuple(value.shape) for name, value in predictions.items()} == {
        "boxes": (7, 4),
        "labels": (7,),
        "scores": (7,),
        "keypoints": (7, 4, 2),
        "keypoint_scores": (7, 4),
        "finish": (7,),
        "finish_probabilities": (7, 2),
    }
    corners, opposite_corners = predictions["boxes"].split(2, dim=1)
    distances = (predictions["keypoints"] - ((corners + opposite_corners) / 2)[:, None]).abs()
    # A region is 1.3 times as large as its box.
    assert bool((distances <= 0.65 * (opposite_corners - corners)[:, None] + 1e-3).all())
    assert float(predictions["keypoints"].max()) > 64
    assert bool((predictions["labels"] >= 1).all())


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"keypoint_names": ()}, {"keypoints", "keypoint_scores"}),
        ({"attributes": None}, {"finish", "finish_probabilities"}),
    ],
)
def test_either_head_can_be_left_out(tmp_path: Any, changes: dict[str, Any], absent: set[str]) -> None:
    model = task(EVERY_SCORE, **changes)
    fit(model, [multi_task_batch(2)], tmp_path)
    model.eval()
    with torch.no_grad():
        assert not absent & set(model(multi_task_batch(1).images)[0])
    assert (model.test_scores.landmarks is None) == ("keypoint_names" in changes)
    assert model.test_report()[0][1]["mAP@50"] == model.test_scores.detection.map_50


def test_fit_and_test_report_every_task(tmp_path: Any) -> None:
    model = task(normalization_pair=(0, 1), normalize_by="pair", failure_threshold=0.2)
    logged = fit(model, [multi_task_batch(4)], tmp_path).callback_metrics
    assert float(logged["test/mean"]) == pytest.approx(model.test_scores.mean)
    assert {"test/map_50", "test/nme", "test/failure_rate", "test/finish/macro_f1", "test/matched"} <= set(logged)
    sections = dict(model.test_report())
    assert sections["test"]["objects matched"] + sections["test"]["objects missed"] == 8
    assert "failures above 0.2" in sections["test"]
    assert set(sections["AP@50"]) == set(CLASSES)
    assert set(sections["finish: recall"]) == set(FINISH)


def test_checkpoint_of_a_model_by_name_needs_no_arguments(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = MultiTask("fcos_small", class_names=CLASSES, keypoint_names=CORNERS)
    fit(model, [multi_task_batch(2)], tmp_path, limit_val_batches=0).save_checkpoint(tmp_path / "m.ckpt")
    restored = MultiTask.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    torch.testing.assert_close(restored.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.soak
def test_layers_of_faster_rcnn_are_frozen_and_slowed_by_name(tmp_path: Any) -> None:
    builder = partial(fasterrcnn_mobilenet_v3_large_320_fpn, min_size=64, max_size=96)
    scales = {"detector.backbone.*": 0.1, "heads.*": 2.0}
    model = MultiTask(builder, freeze=["detector.backbone.body.0.*"], lr_scales=scales, **NAMES)
    trainer, changed = changed_by_fit(model, [multi_task_batch(2)], tmp_path)
    assert any(name.startswith("heads.") for name in changed)
    assert any(name.startswith("detector.backbone.fpn.") for name in changed)
    assert not any(name.startswith("detector.backbone.body.0.") for name in changed)
    assert {group["initial_lr"] for group in trainer.optimizers[0].param_groups} == {1e-4, 1e-3, 2e-3}
    assert model.test_scores is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn"])
def test_large_detectors_take_a_step_and_are_scored(name: str, tmp_path: Any) -> None:
    builder = partial(get_model_builder(name), min_size=64, max_size=96)
    model = MultiTask(builder, **NAMES)
    fit(model, [multi_task_batch(2)], tmp_path)
    assert model.test_scores is not None


def test_frozen_detector_leaves_only_the_heads_to_train(tmp_path: Any) -> None:
    model = task(freeze=["detector.*"])
    _, changed = changed_by_fit(model, [multi_task_batch(2)], tmp_path)
    assert {name.partition(".")[0] for name in changed} == {"heads"}


def test_unnamed_attribute_value_is_refused_in_a_step_and_before_the_transfer() -> None:
    batch = multi_task_batch(1)
    wrong = with_fields(batch, attributes={"finish": torch.full_like(batch.labels, 2)})
    for check in (lambda: task().training_step(wrong, 0), lambda: task().check_batch(wrong)):
        with pytest.raises(ValueError, match="must be in 0 to 1 for 'finish'"):
            check()


def test_batches_without_the_attribute_an_area_or_objects_are_refused() -> None:
    batch = multi_task_batch(1)
    with pytest.raises(ValueError, match=r"no attributes \['colour'\]"):
        task(attributes={"colour": ("red", "blue")}).training_step(batch, 0)
    with pytest.raises(ValueError, match="SanitizeObjects"):
        task().training_step(with_fields(batch, boxes=torch.zeros_like(batch.boxes)), 0)
    with pytest.raises(TypeError, match="MultiTaskDataModule"):
        task().training_step(landmark_batch(1), 0)
