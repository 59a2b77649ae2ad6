"""The multi-task recipe: what it accepts, that it learns three things on one backbone, and what it reports."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torchvision.models import get_model_builder
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from lit_loader.recipes import MultiTask, fcos_small
from tests.support.drawn_batches import CLASSES, CORNERS, FINISH, fit, landmark_batch, multi_task_batch, overfit

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


ALL = {"score_thresh": 0.0}
SMALL = {"channels": 16, "head_channels": 32, "strides": (4, 8), "min_size": 64}


def task(*, detector: dict[str, Any] | None = None, **changes: Any) -> MultiTask:
    torch.manual_seed(0)
    settings = {"class_names": CLASSES, "keypoint_names": CORNERS, "attributes": {"finish": FINISH}}
    return MultiTask(partial(fcos_small, **SMALL | (detector or {})), **settings | changes)


@pytest.mark.soak
def test_it_learns_boxes_classes_points_and_an_attribute_of_drawn_squares() -> None:
    model, batch = task(), multi_task_batch(8)
    overfit(model, batch, steps=70, learning_rate=2e-2)
    with torch.no_grad():
        model.test_step(batch, 0)
    scores = model._score("test", model.test_metric)
    assert scores.detection.map_50 > 0.95
    assert (scores.num_matched, scores.num_missed) == (8, 0)
    assert scores.landmarks is not None
    assert scores.landmarks.nme < 0.05
    assert scores.attributes["finish"].macro_f1 == 1.0
    assert scores.mean > 0.95


def test_what_is_masked_teaches_nothing() -> None:
    batch = multi_task_batch(4)
    junk = batch._replace(
        keypoints=torch.where(batch.keypoint_mask[..., None], batch.keypoints, 31.0),
        boxes=torch.where(batch.object_mask[..., None], batch.boxes, 7.0),
        labels=torch.where(batch.object_mask, batch.labels, 99),
    )
    assert overfit(task(), batch, steps=2) == overfit(task(), junk, steps=2)


def test_crowd_regions_are_not_trained_on() -> None:
    batch = multi_task_batch(2)
    empty = multi_task_batch(2, empty=[0])
    crowd = batch._replace(iscrowd=torch.tensor([[1, 0], [0, 0]]))
    losses = [overfit(task(), one, steps=1) for one in (batch, crowd, empty)]
    assert losses[1] == losses[2] != losses[0]


def test_an_object_without_points_or_without_the_attribute_teaches_the_rest() -> None:
    batch = multi_task_batch(2)
    nothing = batch._replace(
        visibility=torch.zeros_like(batch.visibility),
        keypoint_mask=torch.zeros_like(batch.keypoint_mask),
        attributes={"finish": torch.full_like(batch.labels, -1)},
        attribute_masks={"finish": torch.zeros_like(batch.object_mask)},
    )
    model = task()
    seen: dict[str, float] = {}
    model.log_dict = lambda values, **_: seen.update({k: float(v) for k, v in values.items()})  # type: ignore[method-assign, assignment]
    model.training_step(nothing, 0).backward()
    assert (seen["train/keypoints"], seen["train/attributes/finish"]) == (0.0, 0.0)
    assert seen["train/classification"] > 0
    model.training_step(batch, 0)
    assert min(seen["train/keypoints"], seen["train/attributes/finish"]) > 0


def test_images_without_objects_train_and_score(tmp_path: Any) -> None:
    model = task()
    fit(model, [multi_task_batch(2, empty=[0]), multi_task_batch(2, empty=[0, 1])], tmp_path)
    assert model.test_scores is not None
    assert model.test_scores.num_matched + model.test_scores.num_missed == 2  # one object, two loaders
    assert math.isfinite(model.test_scores.mean)


def test_padding_of_images_is_not_seen() -> None:
    batch, model = multi_task_batch(2), task(detector=ALL)
    padded = batch._replace(images=torch.nn.functional.pad(batch.images, (0, 40, 0, 24), value=0.7))
    assert overfit(task(), batch, steps=1) == overfit(task(), padded, steps=1)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model.predict_step(batch, 0), model.predict_step(padded, 0))


def test_everything_found_is_in_pixels_of_the_image() -> None:
    model = task(detector={"score_thresh": 0.0, "detections_per_img": 7, "min_size": 32}).eval()
    model.model.detector.head.classification_head.cls_logits.bias.data[0] = -9.0  # no answers of background
    with torch.no_grad():
        found = model([torch.rand(3, 128, 160)])[0]
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "boxes": (7, 4),
        "labels": (7,),
        "scores": (7,),
        "keypoints": (7, 4, 2),
        "keypoint_scores": (7, 4),
        "finish": (7,),
        "finish_probabilities": (7, 2),
    }
    middles = (found["boxes"][:, :2] + found["boxes"][:, 2:]) / 2
    sides = found["boxes"][:, 2:] - found["boxes"][:, :2]
    assert bool(((found["keypoints"] - middles[:, None]).abs() <= 0.65 * sides[:, None] + 1e-3).all())
    assert float(found["keypoints"].max()) > 64
    assert bool((found["labels"] >= 1).all())


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"keypoint_names": ()}, {"keypoints", "keypoint_scores"}),
        ({"attributes": None}, {"finish", "finish_probabilities"}),
    ],
)
def test_either_head_can_be_left_out(tmp_path: Any, changes: dict[str, Any], absent: set[str]) -> None:
    model = task(detector=ALL, **changes)
    fit(model, [multi_task_batch(2)], tmp_path)
    model.eval()
    with torch.no_grad():
        assert not absent & set(model(multi_task_batch(1).images)[0])
    assert model.test_scores is not None
    assert (model.test_scores.landmarks is None) == ("keypoint_names" in changes)
    assert model.test_report()[0][1]["mAP@50"] == model.test_scores.detection.map_50


def test_fit_and_test_report_every_task(tmp_path: Any) -> None:
    model = task(normalization_pair=(0, 1), normalize_by="pair", failure_threshold=0.2)
    trainer = fit(model, [multi_task_batch(4)], tmp_path)
    logged, scores = trainer.callback_metrics, model.test_scores
    assert scores is not None
    assert float(logged["test/mean"]) == pytest.approx(scores.mean)
    assert {"test/map_50", "test/nme", "test/failure_rate", "test/finish/macro_f1", "test/matched"} <= set(logged)
    assert model.monitor.split("/")[1] == "mean"
    assert model.monitor_mode == "max"
    sections = dict(model.test_report())
    assert sections["test"]["objects matched"] + sections["test"]["objects missed"] == 8
    assert "failures above 0.2" in sections["test"]
    assert set(sections["AP@50"]) == set(CLASSES)
    assert set(sections["finish: recall"]) == set(FINISH)


def test_a_checkpoint_loads_with_the_builder_and_holds_plain_values(tmp_path: Any) -> None:
    model = task(detector=ALL, normalization_pair=(0, 1))
    fit(model, [multi_task_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    torch.load(tmp_path / "m.ckpt", weights_only=True)
    builder = partial(fcos_small, **SMALL | ALL)
    again = MultiTask.load_from_checkpoint(tmp_path / "m.ckpt", model=builder, weights_only=True).eval()
    images = multi_task_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(again(images), model.eval()(images))
    assert again.attributes == {"finish": FINISH}


def test_a_checkpoint_of_a_model_by_name_loads_by_itself(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = MultiTask("fcos_small", class_names=CLASSES, keypoint_names=CORNERS)
    fit(model, [multi_task_batch(2)], tmp_path, limit_val_batches=0).save_checkpoint(tmp_path / "m.ckpt")
    again = MultiTask.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.soak
def test_a_step_of_faster_rcnn_with_frozen_and_slow_layers_by_name(tmp_path: Any) -> None:
    builder = partial(fasterrcnn_mobilenet_v3_large_320_fpn, min_size=64, max_size=96)
    names = {"class_names": CLASSES, "keypoint_names": CORNERS, "attributes": {"finish": FINISH}}
    scales = {"detector.backbone.*": 0.1, "heads.*": 2.0}
    model = MultiTask(builder, freeze=["detector.backbone.body.0.*"], lr_scales=scales, **names)
    before = {name: value.clone() for name, value in model.model.named_parameters()}
    trainer = fit(model, [multi_task_batch(2)], tmp_path)
    moved = {name for name, value in model.model.named_parameters() if not torch.equal(value, before[name])}
    assert any(name.startswith("heads.") for name in moved)
    assert any(name.startswith("detector.backbone.fpn.") for name in moved)
    assert not any(name.startswith("detector.backbone.body.0.") for name in moved)
    assert {group["initial_lr"] for group in trainer.optimizers[0].param_groups} == {1e-4, 1e-3, 2e-3}
    assert model.test_scores is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn"])
def test_a_step_of_the_detectors_of_a_resnet(name: str, tmp_path: Any) -> None:
    builder = partial(get_model_builder(name), min_size=64, max_size=96)
    model = MultiTask(builder, class_names=CLASSES, keypoint_names=CORNERS, attributes={"finish": FINISH})
    fit(model, [multi_task_batch(2)], tmp_path)
    assert model.test_scores is not None


def test_the_heads_alone_are_trained_on_a_frozen_detector(tmp_path: Any) -> None:
    model = task(freeze=["detector.*"])
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    fit(model, [multi_task_batch(2)], tmp_path)
    moved = {name for name, value in model.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.startswith("heads.") for name in moved)


def test_uint8_images_are_scaled_to_the_unit_range() -> None:
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    model = task(detector=ALL).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(images.float() / 255))


@pytest.mark.parametrize("label", [0, 3])
def test_a_label_outside_the_class_names_is_refused(label: int) -> None:
    batch = multi_task_batch(1)
    with pytest.raises(ValueError, match=r"must be in 1 to 2 \(0 is background\)"):
        task().training_step(batch._replace(labels=torch.full_like(batch.labels, label)), 0)


def test_batches_that_do_not_fit_the_names_are_refused_with_the_remedy() -> None:
    batch = multi_task_batch(1)
    wrong = batch._replace(attributes={"finish": torch.full_like(batch.labels, 2)})
    with pytest.raises(ValueError, match="must be in 0 to 1 for 'finish'"):
        task().training_step(wrong, 0)
    with pytest.raises(ValueError, match="must be in 0 to 1 for 'finish'"):
        task().check_batch(wrong)  # before the transfer
    with pytest.raises(ValueError, match=r"no attributes \['colour'\]"):
        task(attributes={"colour": ("red", "blue")}).training_step(batch, 0)
    with pytest.raises(ValueError, match="objects have 4 points"):
        task(keypoint_names=CORNERS[:2]).training_step(batch, 0)
    with pytest.raises(ValueError, match="SanitizeObjects"):
        task().training_step(batch._replace(boxes=torch.zeros_like(batch.boxes)), 0)
    with pytest.raises(TypeError, match="MultiTaskDataModule"):
        task().training_step(landmark_batch(1), 0)


def test_a_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        task().test_report()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class_names": ()}, "class_names"),
        ({"keypoint_names": (), "attributes": None}, "DetectionTask"),
        ({"keypoint_names": ("a", "a")}, "keypoint_names"),
        ({"attributes": {"finish": ()}}, "finish"),
        ({"attributes": {"labels": ("a", "b")}}, "other fields"),
        ({"attributes": {"a": ("x",), "a_probabilities": ("x",)}}, "other fields"),
        ({"normalize_by": "pair"}, "needs normalization_pair"),
        ({"keypoint_names": (), "normalization_pair": (0, 1)}, "without keypoint_names"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        task(**changes)
