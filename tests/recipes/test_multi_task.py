"""The multi-task recipe: what it accepts, that it learns three things on one backbone, and what it reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lit_loader.recipes import MultiTaskModule
from tests.recipes.drawn import CLASSES, CORNERS, FINISH, fit, landmark_batch, multi_task_batch, overfit

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def module(**changes: Any) -> MultiTaskModule:
    torch.manual_seed(0)
    settings = {
        "class_names": CLASSES,
        "keypoint_names": CORNERS,
        "attributes": {"finish": FINISH},
        "channels": 16,
        "head_channels": 32,
        "min_size": 64,
    }
    return MultiTaskModule(**settings | changes)


def test_it_learns_boxes_classes_points_and_an_attribute_of_drawn_squares() -> None:
    model, batch = module(), multi_task_batch(8)
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
    assert overfit(module(), batch, steps=2) == overfit(module(), junk, steps=2)


def test_crowd_regions_are_not_trained_on() -> None:
    batch = multi_task_batch(2)
    empty = multi_task_batch(2, empty=[0])
    crowd = batch._replace(iscrowd=torch.tensor([[1, 0], [0, 0]]))
    losses = [overfit(module(), one, steps=1) for one in (batch, crowd, empty)]
    assert losses[1] == losses[2] != losses[0]


def test_an_object_without_points_or_without_the_attribute_teaches_the_rest() -> None:
    batch = multi_task_batch(2)
    nothing = batch._replace(
        visibility=torch.zeros_like(batch.visibility),
        keypoint_mask=torch.zeros_like(batch.keypoint_mask),
        attributes={"finish": torch.full_like(batch.labels, -1)},
        attribute_masks={"finish": torch.zeros_like(batch.object_mask)},
    )
    model = module()
    seen: dict[str, float] = {}
    model.log_dict = lambda values, **_: seen.update({k: float(v) for k, v in values.items()})  # type: ignore[method-assign, assignment]
    model.training_step(nothing, 0).backward()
    assert (seen["train/keypoints"], seen["train/attributes/finish"]) == (0.0, 0.0)
    assert seen["train/classification"] > 0
    model.training_step(batch, 0)
    assert min(seen["train/keypoints"], seen["train/attributes/finish"]) > 0


def test_images_without_objects_train_and_score(tmp_path: Any) -> None:
    model = module()
    fit(model, [multi_task_batch(2, empty=[0]), multi_task_batch(2, empty=[0, 1])], tmp_path)
    assert model.test_scores is not None
    assert model.test_scores.num_matched + model.test_scores.num_missed == 2  # one object, two loaders
    assert math.isfinite(model.test_scores.mean)


def test_padding_of_images_is_not_seen() -> None:
    batch, model = multi_task_batch(2), module(score_thresh=0.0)
    padded = batch._replace(images=torch.nn.functional.pad(batch.images, (0, 40, 0, 24), value=0.7))
    assert overfit(module(), batch, steps=1) == overfit(module(), padded, steps=1)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model.predict_step(batch, 0), model.predict_step(padded, 0))


def test_the_backbone_runs_once_a_batch() -> None:
    model, runs = module(score_thresh=0.0), []
    model.model.backbone.register_forward_hook(lambda *_: runs.append(1))
    overfit(model, multi_task_batch(2), steps=1)
    with torch.no_grad():
        model(multi_task_batch(2).images)
    assert len(runs) == 2


def test_everything_found_is_in_pixels_of_the_image() -> None:
    model = module(score_thresh=0.0, detections_per_img=7, min_size=32).eval()
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
    model = module(score_thresh=0.0, **changes)
    fit(model, [multi_task_batch(2)], tmp_path)
    model.eval()
    with torch.no_grad():
        assert not absent & set(model(multi_task_batch(1).images)[0])
    assert model.test_scores is not None
    assert (model.test_scores.landmarks is None) == ("keypoint_names" in changes)
    assert model.test_report()[0][1]["mAP@50"] == model.test_scores.detection.map_50


def test_fit_and_test_report_every_task(tmp_path: Any) -> None:
    model = module(strides=(4, 8), normalization_pair=(0, 1), normalize_by="pair", failure_threshold=0.2)
    trainer = fit(model, [multi_task_batch(4)], tmp_path)
    logged, scores = trainer.callback_metrics, model.test_scores
    assert scores is not None
    assert float(logged["test/mean"]) == pytest.approx(scores.mean)
    assert {"test/map_50", "test/nme", "test/failure_rate", "test/finish/macro_f1", "test/matched"} <= set(
        logged
    )
    assert model.monitor.split("/")[1] == "mean"
    assert model.monitor_mode == "max"
    sections = dict(model.test_report())
    assert sections["test"]["objects matched"] + sections["test"]["objects missed"] == 8
    assert "failures above 0.2" in sections["test"]
    assert set(sections["AP@50"]) == set(CLASSES)
    assert set(sections["finish: recall"]) == set(FINISH)


def test_a_checkpoint_restores_the_module_from_plain_values(tmp_path: Any) -> None:
    model = module(score_thresh=0.0, normalization_pair=(0, 1))
    fit(model, [multi_task_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    torch.load(tmp_path / "m.ckpt", weights_only=True)
    again = MultiTaskModule.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True).eval()
    images = multi_task_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(again(images), model.eval()(images))
    assert again.attributes == {"finish": FINISH}


def test_uint8_images_are_scaled_to_the_unit_range() -> None:
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    model = module(score_thresh=0.0).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(images.float() / 255))


@pytest.mark.parametrize("label", [0, 3])
def test_a_label_outside_the_class_names_is_refused(label: int) -> None:
    batch = multi_task_batch(1)
    with pytest.raises(ValueError, match=r"must lie in 1 to 2 \(0 is background\)"):
        module().training_step(batch._replace(labels=torch.full_like(batch.labels, label)), 0)


def test_batches_that_do_not_fit_the_names_are_refused_with_the_remedy() -> None:
    batch = multi_task_batch(1)
    wrong = batch._replace(attributes={"finish": torch.full_like(batch.labels, 2)})
    with pytest.raises(ValueError, match="must lie in 0 to 1 for 'finish'"):
        module().training_step(wrong, 0)
    with pytest.raises(ValueError, match=r"no attributes \['colour'\]"):
        module(attributes={"colour": ("red", "blue")}).training_step(batch, 0)
    with pytest.raises(ValueError, match="objects have 4 points"):
        module(keypoint_names=CORNERS[:2]).training_step(batch, 0)
    with pytest.raises(ValueError, match="SanitizeObjects"):
        module().training_step(batch._replace(boxes=torch.zeros_like(batch.boxes)), 0)
    with pytest.raises(TypeError, match="MultiTaskDataModule"):
        module().training_step(landmark_batch(1), 0)


def test_a_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        module().test_report()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class_names": ()}, "class_names"),
        ({"keypoint_names": (), "attributes": None}, "DetectionModule"),
        ({"keypoint_names": ("a", "a")}, "keypoint_names"),
        ({"attributes": {"finish": ()}}, "finish"),
        ({"attributes": {"labels": ("a", "b")}}, "other fields"),
        ({"attributes": {"a": ("x",), "a_probabilities": ("x",)}}, "other fields"),
        ({"normalize_by": "pair"}, "needs normalization_pair"),
        ({"keypoint_names": (), "normalization_pair": (0, 1)}, "without keypoint_names"),
        ({"head_channels": 48}, "multiple of 32"),
        ({"detections_per_img": 101}, "detections_per_img"),
        ({"strides": (8, 32)}, "run of neighbours"),
        ({"warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        module(**changes)
