"""Keypoints of several objects: training, absent points, predictions, and scores against COCO's own evaluation."""

from __future__ import annotations

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lit_loader.recipes import (
    KeypointTask,
    WithoutDuplicates,
    keypointrcnn_small,
    maskrcnn_small,
    replace_detection_heads,
)
from lit_loader.recipes.keypoint_metric import CorrectKeypoints, KeypointPrecision
from lit_loader.recipes.weights import load_weights
from tests.support.drawn_batches import CLASSES, CORNERS, detection_batch, drawn, fit, overfit
from tests.support.lightning_ranks import on_ranks
from tests.support.small_detectors import faster_rcnn

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

NET: dict[str, Any] = {"channels": 16, "head_channels": 16, "strides": (8,), "anchor_sizes": (24,), "min_size": 64}
NAMES: dict[str, Any] = {"class_names": CLASSES, "keypoint_names": CORNERS}


def task(net: dict[str, Any] | None = None, **settings: Any) -> KeypointTask:
    torch.manual_seed(0)
    return KeypointTask(partial(keypointrcnn_small, **NET | (net or {})), **NAMES | settings)


def keypoint_batch(count: int = 2, **changes: Any) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Return `detection_batch` with the points of its objects; ``changes`` replace fields of every target."""
    images, targets = detection_batch(count)
    _, columns = drawn(count)
    for target, points, visibility in zip(targets, columns["keypoints"], columns["visibility"], strict=True):
        target |= {"keypoints": points[None], "visibility": visibility[None]} | changes
    return images, targets


def losses_of(model: KeypointTask, batch: Any) -> dict[str, float]:
    """Return the losses of a step, whose gradients are finite."""
    logged: dict[str, float] = {}
    model.log_dict = lambda values, **_: logged.update({name: float(value) for name, value in values.items()})  # type: ignore[method-assign]
    torch.manual_seed(1)  # proposals are sampled
    model.train().training_step(batch, 0).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    return logged


# -- training --------------------------------------------------------------------------------------------


def test_steps_on_one_batch_reduce_the_loss_of_points() -> None:
    model = task()
    first_loss = losses_of(model, keypoint_batch())["train/loss_keypoint"]
    overfit(model, keypoint_batch(), steps=12, learning_rate=5e-3)
    assert losses_of(model, keypoint_batch())["train/loss_keypoint"] < 0.7 * first_loss


def test_absent_points_are_not_trained_on() -> None:
    images, targets = keypoint_batch()
    moved = [target | {"keypoints": target["keypoints"].clone()} for target in targets]
    for target in moved:
        target["keypoints"][target["visibility"] == 0] = float("nan")
    assert losses_of(task(), (images, moved)) == losses_of(task(), (images, targets))
    hidden = [target | {"visibility": (target["visibility"] == 2) * 2} for target in targets]
    assert losses_of(task(), (images, hidden)) != losses_of(task(), (images, targets))


def test_batch_without_any_visible_point_trains_boxes_alone() -> None:
    losses = losses_of(task(), keypoint_batch(visibility=torch.zeros(1, 4, dtype=torch.uint8)))
    assert losses["train/loss_keypoint"] == 0.0
    assert losses["train/loss_classifier"] > 0
    assert math.isfinite(losses["train/loss"])
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "is_duplicate": False}
    points = {"keypoints": torch.zeros(0, 4, 2), "visibility": torch.zeros(0, 4, dtype=torch.uint8)}
    assert losses_of(task(), (keypoint_batch()[0], [empty | points] * 2))["train/loss_keypoint"] == 0.0


def test_crowds_are_neither_trained_on_nor_scored() -> None:
    images, targets = keypoint_batch()
    crowds = []
    for target in targets:
        rows = {name: torch.cat([values, values]) for name, values in target.items() if isinstance(values, Tensor)}
        rows["boxes"][1] = torch.tensor([0.0, 0.0, 60.0, 60.0])
        crowds.append(rows | {"iscrowd": torch.tensor([0, 1]), "is_duplicate": False})
    assert losses_of(task(), (images, crowds)) == losses_of(task(), (images, targets))
    model = task().eval()
    with torch.no_grad():
        model.validation_step((images, crowds), 0)
    scores = model.val_metric.metric.compute_scores()
    assert scores.num_matched + scores.num_missed == 2


# -- predictions and reports -----------------------------------------------------------------------------


def test_predictions_have_points_in_pixels_of_the_image_and_scores_in_the_unit_range() -> None:
    model = task({"score_thresh": 0.0, "detections_per_img": 7, "min_size": 32}).eval()
    with torch.no_grad():
        (prediction,) = model.predict_step(([torch.rand(3, 128, 160)], [{"image_id": 3}]), 0)
    count = len(prediction["boxes"])
    assert 0 < count <= 7
    assert {name: tuple(value.shape) for name, value in prediction.items()} == {
        "boxes": (count, 4),
        "labels": (count,),
        "scores": (count,),
        "keypoints": (count, 4, 2),
        "keypoint_scores": (count, 4),
        "image_id": (),
    }
    corners = prediction["boxes"].reshape(-1, 2, 2)
    # In the box, or in the pixel at its edge.
    assert bool((prediction["keypoints"] >= corners[:, :1] - 6).all())
    assert bool((prediction["keypoints"] <= corners[:, 1:] + 6).all())
    assert float(prediction["keypoints"].max()) > 64
    assert bool(((prediction["keypoint_scores"] >= 0) & (prediction["keypoint_scores"] <= 1)).all())


def test_fit_and_test_report_points_by_name_and_curves_of_boxes_and_points(tmp_path: Path) -> None:
    model = task({"score_thresh": 0.0}, normalization_pair=(0, 1), pck_threshold=0.5)
    model.record_curves()
    trainer = fit(model, [keypoint_batch()], tmp_path)
    names = {"keypoint_map", "keypoint_map_50", "pck", "nme", "matched", "map", "map_50"}
    assert {f"test/{name}" for name in names} <= set(trainer.callback_metrics)
    assert model.monitor.replace("val", "test") in trainer.callback_metrics
    sections = dict(model.test_report())
    assert set(sections["PCK@0.5 by point"]) == set(sections["NME by point"]) == set(CORNERS)
    assert {"keypoint mAP", "PCK@0.5", "NME", "mAP@50"} <= set(sections["test"])
    assert math.isnan(sections["NME by point"]["never"])
    assert set(sections["keypoint AP"]) == set(CLASSES)
    assert [curves.label for curves in model.test_curves] == ["boxes", "points"]
    predictions = model.eval().predict_step(keypoint_batch(), 0)
    ((_, target), _) = model.mark_errors(keypoint_batch(), predictions, min_score=0.5)
    assert (target["keypoints"].shape, target["visibility"].tolist()) == ((1, 4, 2), [[2, 2, 1, 0]])


# -- models that do not fit ------------------------------------------------------------------------------


class BoxesOnly(nn.Module):
    """A model of a user's own that predicts no points."""

    def __init__(self, *, num_classes: int, num_keypoints: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: Any) -> list[dict[str, Tensor]]:
        labels = torch.zeros(0, dtype=torch.int64)
        return [{"boxes": torch.zeros(0, 4), "labels": labels, "scores": torch.zeros(0)} for _ in images]


def test_models_and_batches_without_points_are_refused() -> None:
    with pytest.raises(ValueError, match="FasterRCNN does not predict boxes and points alone; take keypointrcnn"):
        KeypointTask(lambda num_classes, num_keypoints: faster_rcnn(num_classes), **NAMES)
    with pytest.raises(ValueError, match="gives no keypoints and no keypoints_scores; give a model like Keypoint"):
        KeypointTask(BoxesOnly, **NAMES).eval()([torch.zeros(3, 64, 64)])
    with pytest.raises(ValueError, match="no keypoints and no visibility; give batches of KeypointDataModule"):
        task().training_step(detection_batch(1), 0)
    with pytest.raises(ValueError, match="objects have 4 points, keypoint_names has 2"):
        task(keypoint_names=CORNERS[:2]).training_step(keypoint_batch(), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigmas": [0.1]}, "sigmas has 1 numbers, but there are 4 points"),
        ({"sigmas": [0.1, 0.1, 0.1, 0.0]}, "sigmas must be finite and positive, got 0.0"),
        ({"masks": True}, "masks=True has no effect on points"),
        ({"pck_threshold": 0.0}, "pck_threshold=0.0 must be finite and above 0"),
        ({"pck_threshold": math.inf}, "pck_threshold=inf must be finite and above 0"),
        ({"max_keypoint_detections": 0}, "max_keypoint_detections=0 must be 1 or more"),
        ({"normalization_pair": (0, 9)}, "must be two different points among 4"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**settings)
    with pytest.raises(TypeError, match=r"sigmas as one number per point, got 0\.05"):
        task(sigmas=0.05)
    with pytest.raises(TypeError, match="sigmas must be numbers, got 'a'"):
        task(sigmas=["a"] * 4)
    with pytest.raises(ValueError, match=r"anchor_sizes=\[24\] and strides=\[8, 16\] differ in length"):
        task({"strides": (8, 16)})


def test_heads_are_replaced_for_other_points_and_kept_for_the_same() -> None:
    build = partial(keypointrcnn_small, **NET)
    model = build(num_classes=2, num_keypoints=17)
    predictor = model.roi_heads.keypoint_predictor
    replace_detection_heads(model, 4, num_keypoints=17)
    assert model.roi_heads.keypoint_predictor is predictor
    replace_detection_heads(model, 4, num_keypoints=3)
    expected = build(num_classes=4, num_keypoints=3).state_dict()
    assert {n: v.shape for n, v in model.state_dict().items()} == {n: v.shape for n, v in expected.items()}
    with pytest.raises(ValueError, match="heads of a FasterRCNN can't be replaced for 3 points"):
        replace_detection_heads(faster_rcnn(3), 3, num_keypoints=3)


def test_weights_of_a_file_leave_out_a_head_for_other_points(tmp_path: Path, caplog: Any) -> None:
    build = partial(keypointrcnn_small, **NET, num_classes=2)
    source = build(num_keypoints=17)
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    model = build(num_keypoints=4)
    load_weights(model, tmp_path / "weights.pt")
    assert "keypoint_predictor.kps_score_lowres.weight" in caplog.text
    assert torch.equal(model.backbone.laterals[0].weight, source.backbone.laterals[0].weight)


def test_builder_gets_the_numbers_of_classes_and_points() -> None:
    heads = task().model.roi_heads
    assert (heads.box_predictor.cls_score.out_features, heads.keypoint_predictor.out_channels) == (3, 4)


def test_checkpoint_restores_points_and_settings(tmp_path: Path) -> None:
    source = task(sigmas=(0.1, 0.2, 0.3, 0.4), pck_threshold=0.3, normalization_pair=(0, 1))
    checkpoint = {"state_dict": source.state_dict(), "hyper_parameters": dict(source.hparams)}
    torch.save(checkpoint | {"pytorch-lightning_version": lightning.__version__}, tmp_path / "task.ckpt")
    builder = partial(keypointrcnn_small, **NET)
    restored = KeypointTask.load_from_checkpoint(tmp_path / "task.ckpt", model=builder, weights_only=True)
    metric: Any = restored.val_metric.metric
    assert (restored.keypoint_names, metric.precision.sigmas) == (CORNERS, (0.1, 0.2, 0.3, 0.4))
    assert (metric.correct.threshold, metric.errors.normalization_pair) == (0.3, (0, 1))
    assert all(torch.equal(restored.state_dict()[name], values) for name, values in source.state_dict().items())


@pytest.mark.parametrize("build", [maskrcnn_small, partial(keypointrcnn_small, num_keypoints=3)])
def test_arguments_of_small_rcnns_out_of_range_are_refused(build: Any) -> None:
    for name, value in [("anchor_sizes", [0]), ("anchor_sizes", [math.inf]), ("head_channels", 0)]:
        with pytest.raises(ValueError, match=rf"{name}=.* must be (above 0|at least 1)"):
            build(num_classes=2, **NET | {name: value})
    with pytest.raises(ValueError, match="num_classes=1 must be at least 2"):
        build(num_classes=1, **NET)
    with pytest.raises(ValueError, match="detections_per_img=0 must be at least 1"):
        build(num_classes=2, **NET, detections_per_img=0)
    with pytest.raises(ValueError, match="num_keypoints=0 must be at least 1"):
        keypointrcnn_small(num_classes=2, num_keypoints=0)


def test_image_may_have_as_many_detections_as_asked_for() -> None:
    sizes = {"head_channels": 8, "min_size": 96, "score_thresh": 0.0, "nms_thresh": 1.0, "detections_per_img": 350}
    model = keypointrcnn_small(num_classes=3, num_keypoints=1, **NET | sizes).eval()
    model.rpn.nms_thresh = 1.0
    with torch.no_grad():
        (prediction,) = model([torch.rand(3, 96, 96)])
    assert len(prediction["boxes"]) == 350


# -- metrics ---------------------------------------------------------------------------------------------


def objects(boxes: list[list[float]], points: list[Any], **fields: Any) -> dict[str, Tensor]:
    columns = {"boxes": torch.tensor(boxes), "labels": torch.ones(len(boxes), dtype=torch.int64)}
    return columns | {"keypoints": torch.tensor(points)} | fields


def precision_of(images: list[Any], *, sigmas: tuple[float, ...] = (0.1,), names: Any = ("a",)) -> dict[str, float]:
    metric = KeypointPrecision(names, sigmas=sigmas)
    for detections, target in images:
        metric.update([detections], [target])
    return metric.average_precision()[0]


def test_oks_of_a_known_distance_decides_the_thresholds() -> None:
    # Area 0.53 * 100 * 100, sigma 0.1: OKS = exp(-d^2 / (2 * 5300 * 0.04)), which is 0.79 for d = 10.
    truth = objects([[0.0, 0.0, 100.0, 100.0]], [[[50.0, 50.0, 2.0]]])
    detection = objects([[0.0, 0.0, 100.0, 100.0]], [[[60.0, 50.0]]], scores=torch.tensor([0.9]))
    assert math.exp(-100 / (2 * 5300 * 0.04)) == pytest.approx(0.79, abs=5e-3)
    means = precision_of([(detection, truth)])
    assert means == {"map": pytest.approx(0.6), "map_50": pytest.approx(1.0), "map_75": pytest.approx(1.0)}
    assert precision_of([(detection, truth)], sigmas=(0.05,))["map_50"] == 0.0  # OKS 0.39


def test_objects_without_points_count_neither_for_nor_against_the_points() -> None:
    truth = objects([[0.0, 0.0, 9.0, 9.0], [50.0, 50.0, 60.0, 60.0]], [[[5.0, 5.0, 2.0]], [[0.0, 0.0, 0.0]]])
    scores = torch.tensor([0.5, 0.9])
    detection = objects([[0.0, 0.0, 9.0, 9.0], [50.0, 50.0, 60.0, 60.0]], [[[5.0, 5.0]], [[55.0, 55.0]]], scores=scores)
    assert precision_of([(detection, truth)])["map"] == pytest.approx(1.0)
    empty = {name: values[:0] for name, values in (truth | detection).items()}
    assert set(precision_of([(empty, empty)]).values()) == {0.0}
    assert set(precision_of([(detection, empty)]).values()) == {0.0}
    alone = {name: values[1:] for name, values in truth.items()}
    assert precision_of([({n: v[1:] for n, v in detection.items()}, alone)])["map"] == 0.0


def test_correct_points_are_counted_by_the_larger_side_of_the_box() -> None:
    metric = CorrectKeypoints(2, threshold=0.2)
    truth = torch.zeros(2, 2, 2)
    predicted = torch.tensor([[[7.9, 0.0], [0.0, 8.1]], [[0.0, 0.0], [float("nan"), 0.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    metric.update(predicted, truth, mask, torch.tensor([[0.0, 0.0, 40.0, 10.0], [0.0, 0.0, 5.0, 5.0]]))
    assert metric.compute().tolist() == [[2, 2], [0, 1]]


def image_of(number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return detections and objects of an image, with errors that grow with its number."""
    generator = torch.Generator().manual_seed(number)
    count = number % 3 + 1
    corners = torch.rand(count, 2, generator=generator) * 200
    boxes = torch.cat([corners, corners + 40], dim=1)
    points = corners[:, None] + torch.rand(count, 4, 2, generator=generator) * 40
    target = {"boxes": boxes, "labels": torch.randint(1, 3, (count,), generator=generator)}
    target["keypoints"] = torch.cat([points, torch.randint(0, 3, (count, 4, 1), generator=generator).float()], dim=2)
    noise = torch.randn(count, 4, 2, generator=generator) * (1 + number / 2)
    detection = {"boxes": boxes + 1, "labels": target["labels"], "scores": torch.rand(count, generator=generator)}
    return detection | {"keypoints": points + noise}, target


def scores_of(numbers: list[int], duplicates: tuple[int, ...] = ()) -> dict[str, float]:
    metric = WithoutDuplicates(task().make_metric())
    for place, number in enumerate(numbers):
        detections, target = image_of(number)
        metric.update([detections], [target], is_duplicate=[place in duplicates])
    scores = metric.metric.compute_scores()
    return {**scores.logged, **scores.ap, **{f"pck {n}": v for n, v in scores.pck_by_point.items()}}


def score_on_rank(folder: Path) -> None:
    rank = dist.get_rank()
    # The last image of the second rank is a duplicate; in the second case it has no image at all.
    results = [scores_of([[0, 2, 4], [1, 3, 0]][rank], duplicates=(2,) if rank else ())]
    results.append(scores_of([[0, 1, 2, 3, 4], []][rank]))
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(results))


def test_two_ranks_have_the_scores_of_one_process(tmp_path: Path) -> None:
    expected = scores_of([0, 1, 2, 3, 4])
    assert 0 < expected["keypoint_map"] < 1
    assert expected["keypoint_map"] != pytest.approx(scores_of([0, 1, 2, 3, 4, 0])["keypoint_map"])
    on_ranks(2, tmp_path, score_on_rank, tmp_path)
    for rank in range(2):
        for scores in pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()):
            assert scores == pytest.approx(expected, nan_ok=True)
