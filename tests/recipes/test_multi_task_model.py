"""A detector with heads on its objects: which pixels they look at, and that points come back in the image's pixels."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import (
    FCOS,
    FasterRCNN,
    MaskRCNN,
    RetinaNet,
    fasterrcnn_mobilenet_v3_large_320_fpn,
    ssdlite320_mobilenet_v3_large,
)
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from lit_loader.recipes import PyramidBackbone
from lit_loader.recipes import multi_task_model as module
from lit_loader.recipes.multi_task_model import MultiTaskModel, ObjectHeads, jitter_boxes, scale_boxes

BOXES = torch.tensor([[10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 4.0, 2.0]])
ATTRIBUTES = {"finish": ("a", "b")}


def heads(**changes: Any) -> ObjectHeads:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"in_channels": 32, "num_keypoints": 3, "attributes": ATTRIBUTES}
    return ObjectHeads(**settings | changes)


def detector(kind: Any = FasterRCNN, **settings: Any) -> Any:
    torch.manual_seed(0)
    backbone = PyramidBackbone(channels=16, out_channels=32, strides=(4, 8))
    anchors = AnchorGenerator(((16,), (32,)), (((0.5, 1.0, 2.0) if kind is RetinaNet else (1.0,)),) * 2)
    if issubclass(kind, FasterRCNN):
        settings |= {"box_detections_per_img": 5, "box_score_thresh": 0.0, "rpn_anchor_generator": anchors}
        settings |= {"box_roi_pool": MultiScaleRoIAlign(["4", "8"], 7, 2)}
    else:
        settings |= {"detections_per_img": 5, "score_thresh": 0.0, "anchor_generator": anchors}
    return kind(backbone, num_classes=3, **{"min_size": 64, "max_size": 192} | settings)


def model(kind: Any = FasterRCNN, **settings: Any) -> MultiTaskModel:
    return MultiTaskModel(detector(kind, **settings), num_keypoints=3, attributes=ATTRIBUTES)


def drawn_targets() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 48, 64, generator=generator), torch.rand(3, 64, 40, generator=generator)]
    target = {
        "boxes": torch.tensor([[4.0, 6.0, 34.0, 36.0]]),
        "labels": torch.tensor([1]),
        "keypoints": torch.tensor([[[9.0, 11.0], [30.0, 12.0], [20.0, 33.0]]]),
        "keypoint_mask": torch.ones(1, 3, dtype=torch.bool),
        "finish": torch.tensor([1]),
    }
    return images, [target, target]


def record_regions(heads: ObjectHeads) -> list[Tensor]:
    """Return a list to which each later batch appends the regions that are pooled for it."""
    regions: list[Tensor] = []
    heads.trunk.register_forward_pre_hook(lambda _, inputs: regions.append(inputs[0]))
    return regions


def with_flat_heatmaps(model: MultiTaskModel) -> MultiTaskModel:
    """Make every heatmap flat, so that each point is in the middle of its region."""
    assert model.heads.points is not None
    torch.nn.init.zeros_(model.heads.points[-1].weight)
    torch.nn.init.zeros_(model.heads.points[-1].bias)
    return model


@pytest.mark.parametrize("kind", [FasterRCNN, RetinaNet, FCOS])
def test_every_detector_gives_losses_in_training_and_predictions_in_evaluation(kind: Any) -> None:
    net = model(kind)
    images, targets = drawn_targets()
    losses = net(images, targets)
    assert {"keypoints", "attributes/finish"} < set(losses)
    torch.stack(list(losses.values())).sum().backward()
    assert all(parameter.grad is not None for parameter in net.heads.parameters())
    assert net.detector.backbone.stem[0].weight.grad is not None  # type: ignore[union-attr, index]
    with torch.no_grad():
        predictions = net.eval()(images)[0]
    assert {name: tuple(rows.shape) for name, rows in predictions.items()} == {
        "boxes": (5, 4),
        "labels": (5,),
        "scores": (5,),
        "keypoints": (5, 3, 2),
        "keypoint_scores": (5, 3),
        "finish": (5,),
        "finish_probabilities": (5, 2),
    }


def test_pooled_map_of_a_torchvision_pyramid_is_not_used() -> None:
    net = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=96
    )
    multi_task = MultiTaskModel(net, num_keypoints=3, attributes={})
    regions = record_regions(multi_task.heads)
    multi_task(*drawn_targets())
    assert regions[0].shape == (2, 256, 8, 8)
    assert {name for name, _ in multi_task.named_children()} == {"detector", "heads"}


@pytest.mark.parametrize("min_size", [48, 96])
def test_points_are_in_pixels_of_the_image_for_every_input_size(min_size: int) -> None:
    net = with_flat_heatmaps(model(min_size=min_size)).eval()
    with torch.no_grad():
        predictions = net([torch.rand(3, 48, 64)])[0]
    middles = (predictions["boxes"][:, :2] + predictions["boxes"][:, 2:]) / 2
    torch.testing.assert_close(predictions["keypoints"], middles[:, None].expand(-1, 3, 2), rtol=1e-4, atol=1e-3)


def test_loss_of_points_does_not_depend_on_the_input_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "jitter_boxes", lambda boxes, amount: boxes)
    images, targets = drawn_targets()
    losses = [
        with_flat_heatmaps(model(min_size=size))(images[:1], targets[:1])["keypoints"].item() for size in (48, 96)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    moved = [targets[0] | {"keypoints": targets[0]["keypoints"] * 1.1}]
    assert with_flat_heatmaps(model(min_size=48))(images[:1], moved)["keypoints"].item() != losses[0]


def test_backbone_runs_once_a_batch_and_leaves_no_hook_or_attribute() -> None:
    net = model()
    images, targets = drawn_targets()
    runs = []
    net.detector.backbone.register_forward_hook(lambda *_: runs.append(1))  # type: ignore[union-attr]
    attributes = set(vars(net))
    net(images, targets)
    with torch.no_grad():
        net.eval()(images)
    assert len(runs) == 2
    assert len(net.detector.transform._forward_hooks) == 0  # type: ignore[union-attr, arg-type]
    assert set(vars(net)) == attributes


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (partial(ssdlite320_mobilenet_v3_large, weights=None, weights_backbone=None), "got a SSD; give"),
        (partial(nn.Linear, 1, 1), "got a Linear; give Faster R-CNN"),
        (partial(detector, MaskRCNN), "expected a detector of boxes, got a MaskRCNN"),
    ],
)
def test_models_other_than_box_detectors_are_refused(net: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MultiTaskModel(net(), num_keypoints=3, attributes={})


# -- heads -----------------------------------------------------------------------------------------------


def test_scaled_boxes_keep_their_centres() -> None:
    assert scale_boxes(BOXES, 1.5).tolist() == [[5.0, 10.0, 35.0, 70.0], [-1.0, -0.5, 5.0, 2.5]]


def test_jittered_edges_move_at_most_by_the_amount_and_keep_their_order() -> None:
    torch.manual_seed(0)
    boxes = BOXES.repeat(200, 1)
    moved = jitter_boxes(boxes, 0.49)
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    share = (moved - boxes).abs() / sides
    assert 0.4 < float(share.max()) <= 0.49
    assert bool((moved[:, 2:] > moved[:, :2]).all())
    torch.testing.assert_close(jitter_boxes(boxes, 0.0), boxes)


@pytest.mark.parametrize("side", [33, 64, 100])
def test_region_has_the_same_pixels_for_every_image_size(side: int) -> None:
    """RoIAlign guesses a map's stride from the input's size, which must be the padded one."""
    padded = -(-side // 32) * 32
    model = heads(box_scale=1.0)
    columns = torch.arange(padded, dtype=torch.float32).expand(1, 32, padded, padded)
    maps = {name: columns[..., s // 2 :: s, s // 2 :: s] for name, s in (("0", 4), ("1", 8), ("pool", 16))}
    regions = record_regions(model)
    model(maps, (padded, padded), [torch.tensor([[8.0, 8.0, 24.0, 24.0], [0.0, 0.0, 32.0, 32.0]])])
    middles = regions[0].mean(dim=(1, 2, 3))
    # Half a cell more than the box's middle, 16: torchvision's regions are not aligned by default.
    assert 14 < float(middles[0]) < 22
    assert 14 < float(middles[1]) < 22


@pytest.mark.parametrize(("side", "level"), [(8.0, 0), (40.0, 0), (70.0, 1), (600.0, 1)])
def test_region_is_pooled_from_the_map_on_which_it_has_eight_cells(side: float, level: int) -> None:
    model = heads(box_scale=1.0)
    names = ("0", "1", "pool")  # the last one is for anchors alone
    maps = {name: torch.full((1, 32, 128 // 2**i, 128 // 2**i), float(i)) for i, name in enumerate(names)}
    regions = record_regions(model)
    model(maps, (512, 512), [torch.tensor([[0.0, 0.0, side, side]])])
    assert float(regions[0].max()) == level


def test_batch_without_boxes_gives_no_rows_and_a_loss_of_zero() -> None:
    model = heads()
    outputs = model({"8": torch.rand(2, 32, 8, 8, requires_grad=True)}, (64, 64), [torch.zeros(0, 4)] * 2)
    target = {
        "keypoints": torch.zeros(0, 3, 2),
        "keypoint_mask": torch.zeros(0, 3, dtype=torch.bool),
        "finish": torch.zeros(0, dtype=torch.int64),
    }
    losses = model.losses(outputs, [target, target])
    assert {name: float(loss.detach()) for name, loss in losses.items()} == {"keypoints": 0.0, "attributes/finish": 0.0}
    torch.stack(list(losses.values())).sum().backward()
    assert len(model.predictions(outputs)["keypoints"]) == 0


def test_point_outside_of_the_region_does_not_contribute_to_the_loss() -> None:
    model = heads(box_scale=1.0)
    outputs = model({"8": torch.rand(1, 32, 8, 8)}, (64, 64), [torch.tensor([[16.0, 16.0, 32.0, 32.0]])])
    losses = []
    for x, mask in ((33.0, True), (25.0, False), (25.0, True)):
        target = {
            "keypoints": torch.tensor([[[20.0, 20.0], [x, 20.0], [30.0, 30.0]]]),
            "keypoint_mask": torch.tensor([[True, mask, True]]),
            "finish": torch.tensor([0]),
        }
        losses.append(float(model.losses(outputs, [target])["keypoints"].detach()))
    assert losses[0] == losses[1] != losses[2]
