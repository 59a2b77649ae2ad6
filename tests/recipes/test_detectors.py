"""torchvision's detectors: heads for other classes, masks, and what is refused before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops.misc import FrozenBatchNorm2d

from lit_loader.recipes import DetectionTask, PyramidBackbone, fcos_small, replace_detection_heads
from tests.datasets.test_masks import mask_rcnn
from tests.support.drawn_batches import drawn, fit

NAMES = ("dark", "bright")

pytestmark = [pytest.mark.filterwarnings("ignore:.*does not have many workers")]


def batch(num_images: int = 2, *, masks: bool = False) -> tuple[list[Tensor], list[dict[str, Any]]]:
    images, columns = drawn(num_images)
    targets = []
    for i in range(num_images):
        x1, y1, x2, y2 = columns["boxes"][i].long().tolist()
        target = {"boxes": columns["boxes"][i : i + 1], "labels": columns["labels"][i : i + 1] + 1}
        if masks:
            target["masks"] = torch.zeros(1, *images.shape[-2:], dtype=torch.uint8)
            target["masks"][0, y1:y2, x1:x2] = 1
        targets.append({**target, "is_duplicate": False})
    return list(images), targets


# -- heads -----------------------------------------------------------------------------------------------


def fcos(num_classes: int) -> nn.Module:
    return fcos_small(num_classes=num_classes, channels=16, head_channels=32, strides=(8, 16))


def retinanet(num_classes: int) -> nn.Module:
    backbone = PyramidBackbone(channels=16, out_channels=32, strides=(8, 16))
    anchors = AnchorGenerator(((16,), (32,)), ((0.5, 1.0),) * 2)
    return models.detection.RetinaNet(backbone, num_classes, anchor_generator=anchors, min_size=64)


def ssdlite(num_classes: int) -> nn.Module:
    return models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=num_classes)


def ssd(num_classes: int) -> nn.Module:
    model = ssdlite(num_classes)
    channels = [block[0][0].in_channels for block in model.head.classification_head.module_list]
    anchors = model.anchor_generator.num_anchors_per_location()
    model.head = models.detection.ssd.SSDHead(channels, anchors, num_classes)
    return model


def faster_rcnn(num_classes: int) -> nn.Module:
    return models.detection.FasterRCNN(
        PyramidBackbone(channels=16, out_channels=32, strides=(8,)),
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        box_roi_pool=models.detection.faster_rcnn.MultiScaleRoIAlign(["8"], 3, 2),
        box_head=models.detection.faster_rcnn.TwoMLPHead(32 * 9, 32),
        box_predictor=models.detection.faster_rcnn.FastRCNNPredictor(32, num_classes),
        min_size=64,
    )


ARCHITECTURES = [fcos, retinanet, ssdlite, ssd, faster_rcnn, mask_rcnn]


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_heads_are_replaced_as_the_builder_makes_them_and_all_else_is_kept(build: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    model, expected = build(91), build(4)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    replace_detection_heads(model, 4)
    after, wanted = model.state_dict(), expected.state_dict()
    assert {name: each.shape for name, each in after.items()} == {n: each.shape for n, each in wanted.items()}
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {name for name in wanted if wanted[name].shape != before[name].shape}
    for name in changed:  # drawn from the same distributions, and biases from -log(99) to 0.2
        assert float(after[name].mean()) == pytest.approx(float(wanted[name].mean()), abs=0.3)
        if after[name].ndim > 1:
            assert float(after[name].std()) == pytest.approx(float(wanted[name].std()), rel=0.35)


@pytest.mark.parametrize("build", ARCHITECTURES)
def test_a_model_with_new_heads_trains_and_answers_in_the_new_classes(build: Callable[..., nn.Module]) -> None:
    model = build(91)
    replace_detection_heads(model, 3)
    images, targets = batch(masks=True)
    losses = model.train()(images, targets)
    torch.stack(list(losses.values())).sum().backward()
    model.score_thresh = 0.0
    with torch.no_grad():
        labels = torch.cat([found["labels"] for found in model.eval()(images)])
    assert set(labels.tolist()) <= {0, 1, 2}
    assert len(labels) or isinstance(model, models.detection.FasterRCNN)


def test_heads_of_another_architecture_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"heads of a Linear can't be replaced .* give a builder that takes num_classes"
    ):
        replace_detection_heads(nn.Linear(1, 1), 3)
    model = faster_rcnn(3)
    model.roi_heads.box_predictor = nn.Linear(32, 3)
    with pytest.raises(ValueError, match="heads of a FasterRCNN can't be replaced"):
        replace_detection_heads(model, 3)


def test_weights_by_name_get_heads_for_the_classes_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = models.detection.SSDLite320_MobileNet_V3_Large_Weights
    state = ssdlite(91).state_dict()
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: state)
    model = DetectionTask("ssdlite320_mobilenet_v3_large", class_names=NAMES, weights="COCO_V1").model
    assert model.head.classification_head.num_columns == 3
    kept = {name: each for name, each in state.items() if "classification_head" not in name}
    assert all(torch.equal(model.state_dict()[name], each) for name, each in kept.items())


# -- masks -----------------------------------------------------------------------------------------------


def test_masks_are_trained_and_scored_beside_boxes(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = DetectionTask(mask_rcnn, class_names=NAMES, masks=True)
    trainer = fit(model, [batch(masks=True)] * 2, tmp_path)
    assert {"test/mask_map", "test/mask_map_50", "test/map"} <= set(trainer.callback_metrics)
    titles = dict(model.test_report())
    assert set(titles["mask AP@50"]) == set(NAMES)
    assert {"mask mAP@50", "mask mAP"} <= set(titles["test"])


def test_predicted_masks_are_bool_and_of_the_images_size() -> None:
    model = DetectionTask(partial(mask_rcnn, box_score_thresh=0.0), class_names=NAMES, masks=True).eval()
    with torch.no_grad():
        found, _ = model(batch()[0])
    assert len(found["boxes"])
    assert (found["masks"].dtype, found["masks"].shape) == (torch.bool, (len(found["boxes"]), 64, 64))


def test_crowds_are_left_out_of_masks_as_well() -> None:
    seen: list[Any] = []
    model = DetectionTask(mask_rcnn, class_names=NAMES, masks=True)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign] # there is no trainer
    model.model.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[1]))
    images, (target, *_) = batch(1, masks=True)
    crowd = {name: each.repeat(2, *[1] * (each.ndim - 1)) for name, each in target.items() if name != "is_duplicate"}
    model.training_step((images, [{**crowd, "iscrowd": torch.tensor([0, 1])}]), 0)
    assert [len(each["masks"]) for each in seen] == [1]


def test_masks_that_are_absent_are_asked_for() -> None:
    model = DetectionTask(mask_rcnn, class_names=NAMES, masks=True)
    with pytest.raises(ValueError, match=r"masks=True, and the targets have no masks; give the data module masks=True"):
        model.training_step(batch(), 0)
    model = DetectionTask(fcos, class_names=NAMES, masks=True).eval()
    with torch.no_grad(), pytest.raises(ValueError, match=r"masks=True, and FCOS gives no masks; give a model that"):
        model.validation_step(batch(masks=True), 0)


@pytest.mark.parametrize(
    ("build", "masks", "match"),
    [
        (mask_rcnn, False, r"MaskRCNN trains on masks, which the data module must give, too; pass masks=True"),
        (faster_rcnn, True, r"FasterRCNN predicts no masks; take maskrcnn_resnet50_fpn_v2"),
    ],
)
def test_a_model_that_would_not_get_its_targets_is_refused(build: Any, masks: bool, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DetectionTask(build, class_names=NAMES, masks=masks)


def test_a_model_of_keypoints_is_refused() -> None:
    def build(num_classes: int) -> nn.Module:
        model = faster_rcnn(num_classes)
        heads = model.roi_heads
        heads.keypoint_roi_pool = heads.keypoint_head = heads.keypoint_predictor = nn.Identity()
        return model

    with pytest.raises(ValueError, match="trains on keypoints, which DetectionTask does not pass on; use MultiTask"):
        DetectionTask(build, class_names=NAMES)


# -- images and detections -------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["normalised", "bytes as floats"])
@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_images_outside_of_the_unit_range_are_refused_in_the_first_batch(tmp_path: Any, stage: str, scale: str) -> None:
    images, targets = batch()
    images = [(image - 0.5) / 0.2 if scale == "normalised" else image * 255 for image in images]
    loader = torch.utils.data.DataLoader([(images, targets)], batch_size=None, num_workers=0)
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, num_sanity_val_steps=0)
    with pytest.raises(ValueError, match=r"and the model expects \[0, 1\], or uint8, and normalises by itself; leave"):
        loaders = (loader, loader) if stage == "fit" else (loader,)
        getattr(trainer, stage)(DetectionTask(fcos, class_names=NAMES), *loaders)


def test_labels_of_the_background_are_not_detections() -> None:
    def build(num_classes: int) -> nn.Module:
        return fcos_small(num_classes=num_classes, channels=16, head_channels=32, score_thresh=0.0)

    model = DetectionTask(build, class_names=NAMES).eval()
    with torch.no_grad():
        raw, found = model.model(batch()[0]), model(batch()[0])
    assert any(0 in each["labels"] for each in raw)
    assert {label for each in found for label in each["labels"].tolist()} == {1, 2}


def test_a_box_without_area_is_refused() -> None:
    images, targets = batch(1)
    targets[0]["boxes"][0, 2] = targets[0]["boxes"][0, 0]
    with pytest.raises(ValueError, match=r"has no area; drop such objects with .*SanitizeObjects"):
        DetectionTask(fcos, class_names=NAMES).training_step((images, targets), 0)


@pytest.mark.parametrize("build", [fcos, faster_rcnn])
def test_detections_under_bfloat16_are_in_single_precision(build: Callable[..., nn.Module]) -> None:
    model = DetectionTask(build, class_names=NAMES).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model(batch()[0])
    assert {each.dtype for one in found for each in one.values()} == {torch.float32, torch.int64}


def test_a_checkpoint_of_a_frozen_backbone_is_loaded_into_a_frozen_one(tmp_path: Any) -> None:
    source = DetectionTask(fcos, class_names=NAMES)
    frozen = {name: each for name, each in source.state_dict().items() if "num_batches" not in name}
    path = tmp_path / "task.ckpt"
    torch.save(
        {
            "state_dict": frozen,
            "hyper_parameters": dict(source.hparams),
            "pytorch-lightning_version": lightning.__version__,
        },
        path,
    )
    again = DetectionTask.load_from_checkpoint(path, model=fcos, weights_only=True)
    assert any(isinstance(each, FrozenBatchNorm2d) for each in again.modules())
    assert not any(isinstance(each, nn.BatchNorm2d) for each in again.modules())
