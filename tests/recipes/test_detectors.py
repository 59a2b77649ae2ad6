"""torchvision's detectors: heads for other classes, masks, and models that are refused before training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.ops.misc import FrozenBatchNorm2d

from lit_loader.recipes import DetectionTask, replace_detection_heads
from tests.support.drawn_batches import CLASSES, detection_batch, fit, overfit
from tests.support.small_detectors import faster_rcnn, fcos, mask_rcnn, retinanet, ssd, ssdlite

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


# -- heads -----------------------------------------------------------------------------------------------


ARCHITECTURES = [fcos, retinanet, ssdlite, ssd, faster_rcnn, mask_rcnn]


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_new_heads_are_initialised_like_the_builders_and_other_layers_keep_their_weights(
    build: Callable[..., nn.Module],
) -> None:
    torch.manual_seed(0)
    model = build(91)
    expected = build(4).state_dict()
    old_state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    replace_detection_heads(model, 4)
    state = model.state_dict()
    assert {name: tensor.shape for name, tensor in state.items()} == {n: tensor.shape for n, tensor in expected.items()}
    changed = {name for name in state if not torch.equal(state[name], old_state[name])}
    assert changed == {name for name in expected if expected[name].shape != old_state[name].shape}
    for name in changed:  # drawn from the same distributions, and biases from -log(99) to 0.2
        assert float(state[name].mean()) == pytest.approx(float(expected[name].mean()), abs=0.3)
        if state[name].ndim > 1:
            assert float(state[name].std()) == pytest.approx(float(expected[name].std()), rel=0.35)


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_model_with_new_heads_trains_and_predicts_the_new_classes(build: Callable[..., nn.Module]) -> None:
    model = build(91)
    replace_detection_heads(model, 3)
    images, targets = detection_batch(2, masks=True)
    losses = model.train()(images, targets)
    torch.stack(list(losses.values())).sum().backward()
    model.score_thresh = 0.0
    with torch.no_grad():
        labels = torch.cat([detection["labels"] for detection in model.eval()(images)])
    assert set(labels.tolist()) <= {0, 1, 2}
    assert len(labels) or isinstance(model, models.detection.FasterRCNN)


def test_heads_of_other_architectures_are_refused() -> None:
    message = r"heads of a Linear can't be replaced .* give a builder that takes num_classes"
    with pytest.raises(ValueError, match=message):
        replace_detection_heads(nn.Linear(1, 1), 3)
    model = faster_rcnn(3)
    model.roi_heads.box_predictor = nn.Linear(32, 3)
    with pytest.raises(ValueError, match="heads of a FasterRCNN can't be replaced"):
        replace_detection_heads(model, 3)


def test_named_weights_get_heads_for_the_classes_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = models.detection.SSDLite320_MobileNet_V3_Large_Weights
    state = ssdlite(91).state_dict()
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: state)
    model = DetectionTask("ssdlite320_mobilenet_v3_large", class_names=CLASSES, weights="COCO_V1").model
    assert model.head.classification_head.num_columns == 3
    other_layers = {name: tensor for name, tensor in state.items() if "classification_head" not in name}
    assert other_layers.keys() < model.state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in other_layers.items())


# -- masks -----------------------------------------------------------------------------------------------


def test_masks_are_trained_and_scored_next_to_boxes(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = DetectionTask(mask_rcnn, class_names=CLASSES, masks=True)
    trainer = fit(model, [detection_batch(2, masks=True)] * 2, tmp_path)
    assert {"test/mask_map", "test/mask_map_50", "test/map"} <= set(trainer.callback_metrics)
    titles = dict(model.test_report())
    assert set(titles["mask AP@50"]) == set(CLASSES)
    assert {"mask mAP@50", "mask mAP"} <= set(titles["test"])


def test_predicted_masks_are_bool_and_have_the_size_of_the_image() -> None:
    model = DetectionTask(partial(mask_rcnn, box_score_thresh=0.0), class_names=CLASSES, masks=True).eval()
    with torch.no_grad():
        detections, _ = model(detection_batch(2)[0])
    assert len(detections["boxes"])
    assert (detections["masks"].dtype, detections["masks"].shape) == (torch.bool, (len(detections["boxes"]), 64, 64))


def test_masks_of_crowds_are_not_trained_on() -> None:
    trained_targets: list[Any] = []
    model = DetectionTask(mask_rcnn, class_names=CLASSES, masks=True)
    model.model.register_forward_pre_hook(lambda _, inputs: trained_targets.extend(inputs[1]))
    images, (target,) = detection_batch(1, masks=True)
    objects = {name: target[name].repeat(2, *[1] * (target[name].ndim - 1)) for name in ("boxes", "labels", "masks")}
    overfit(model, (images, [objects | {"iscrowd": torch.tensor([0, 1])}]), steps=1)
    assert [len(target["masks"]) for target in trained_targets] == [1]


def test_missing_masks_are_refused() -> None:
    model = DetectionTask(mask_rcnn, class_names=CLASSES, masks=True)
    with pytest.raises(ValueError, match=r"masks=True, and the targets have no masks; give the data module masks=True"):
        model.training_step(detection_batch(2), 0)
    model = DetectionTask(fcos, class_names=CLASSES, masks=True).eval()
    with torch.no_grad(), pytest.raises(ValueError, match=r"masks=True, and FCOS gives no masks; give a model that"):
        model.validation_step(detection_batch(2, masks=True), 0)


def keypoint_rcnn(num_classes: int) -> nn.Module:
    model = faster_rcnn(num_classes)
    heads = model.roi_heads
    heads.keypoint_roi_pool = heads.keypoint_head = heads.keypoint_predictor = nn.Identity()
    return model


@pytest.mark.parametrize(
    ("build", "masks", "match"),
    [
        (mask_rcnn, False, r"MaskRCNN trains on masks, which the data module must give as well; pass masks=True"),
        (faster_rcnn, True, r"FasterRCNN predicts no masks; take maskrcnn_resnet50_fpn_v2"),
        (keypoint_rcnn, False, "trains on keypoints, which DetectionTask does not pass on; use KeypointTask"),
    ],
)
def test_models_that_would_not_get_their_targets_are_refused(build: Any, masks: bool, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DetectionTask(build, class_names=CLASSES, masks=masks)


# -- images and detections -------------------------------------------------------------------------------


def test_box_without_area_is_refused() -> None:
    images, targets = detection_batch(1)
    targets[0]["boxes"][0, 2] = targets[0]["boxes"][0, 0]
    with pytest.raises(ValueError, match=r"has no area; drop such objects with .*SanitizeObjects"):
        DetectionTask(fcos, class_names=CLASSES).training_step((images, targets), 0)


@pytest.mark.parametrize("build", [fcos, faster_rcnn])
def test_detections_under_bfloat16_are_in_single_precision(build: Callable[..., nn.Module]) -> None:
    model = DetectionTask(build, class_names=CLASSES).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        detections = model(detection_batch(2)[0])
    assert {value.dtype for fields in detections for value in fields.values()} == {torch.float32, torch.int64}


def test_checkpoint_of_a_frozen_backbone_restores_frozen_batch_normalisation(tmp_path: Any) -> None:
    source = DetectionTask(fcos, class_names=CLASSES)
    # The state of a frozen layer has no counts of batches.
    state = {name: tensor for name, tensor in source.state_dict().items() if "num_batches" not in name}
    version = {"pytorch-lightning_version": lightning.__version__}
    torch.save({"state_dict": state, "hyper_parameters": dict(source.hparams), **version}, tmp_path / "task.ckpt")
    restored = DetectionTask.load_from_checkpoint(tmp_path / "task.ckpt", model=fcos, weights_only=True)
    layers = {type(module) for module in restored.modules()}
    assert FrozenBatchNorm2d in layers
    assert nn.BatchNorm2d not in layers
