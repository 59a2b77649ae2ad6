"""The heads on objects: which pixels a region shows, and boxes made larger or moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_loader.recipes.multi_task_net import ObjectHeads, jitter_boxes, scale_boxes

BOXES = torch.tensor([[10.0, 20.0, 30.0, 60.0], [0.0, 0.0, 4.0, 2.0]])


def heads(**changes: Any) -> ObjectHeads:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "in_channels": 32,
        "strides": (8,),
        "num_keypoints": 3,
        "attributes": {"finish": ("a", "b")},
    }
    return ObjectHeads(**settings | changes)


def test_scaled_boxes_keep_their_middles() -> None:
    assert scale_boxes(BOXES, 1.5).tolist() == [[5.0, 10.0, 35.0, 70.0], [-1.0, -0.5, 5.0, 2.5]]


def test_moved_edges_stay_within_their_share_and_no_box_turns_inside_out() -> None:
    torch.manual_seed(0)
    boxes = BOXES.repeat(200, 1)
    moved = jitter_boxes(boxes, 0.49)
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    share = (moved - boxes).abs() / sides
    assert 0.4 < float(share.max()) <= 0.49
    assert bool((moved[:, 2:] > moved[:, :2]).all())
    torch.testing.assert_close(jitter_boxes(boxes, 0.0), boxes)


@pytest.mark.parametrize("side", [33, 64, 100])
def test_a_region_shows_the_same_pixels_whatever_the_size_of_the_images(side: int) -> None:
    """RoIAlign guesses a map's stride from the image's size, which must be the padded one."""
    padded = -(-side // 32) * 32
    model = heads(box_scale=1.0, strides=(4, 8))
    columns = torch.arange(padded, dtype=torch.float32).expand(1, 32, padded, padded)
    features = {str(s): columns[..., s // 2 :: s, s // 2 :: s] for s in (4, 8)}
    seen = []
    model.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(features, [torch.tensor([[8.0, 8.0, 24.0, 24.0], [0.0, 0.0, 32.0, 32.0]])])
    middles = seen[0].mean(dim=(1, 2, 3))
    # half a cell more than the box's middle, 16: torchvision's regions are not aligned by default
    assert 14 < float(middles[0]) < 22
    assert 14 < float(middles[1]) < 22


def test_no_boxes_give_no_rows_and_a_loss_of_nothing() -> None:
    model = heads()
    none = torch.zeros(0, 4)
    outputs = model({"8": torch.rand(2, 32, 8, 8, requires_grad=True)}, [none, none])
    target = {
        "keypoints": torch.zeros(0, 3, 2),
        "keypoint_mask": torch.zeros(0, 3, dtype=torch.bool),
        "finish": torch.zeros(0, dtype=torch.int64),
    }
    losses = model.losses(outputs, [target, target])
    assert {name: float(loss.detach()) for name, loss in losses.items()} == {
        "keypoints": 0.0,
        "attributes/finish": 0.0,
    }
    torch.stack(list(losses.values())).sum().backward()
    assert len(model.predictions(outputs)["keypoints"]) == 0


def test_a_point_outside_of_the_region_teaches_nothing() -> None:
    model = heads(box_scale=1.0)
    outputs = model({"8": torch.rand(1, 32, 8, 8)}, [torch.tensor([[16.0, 16.0, 32.0, 32.0]])])
    losses = []
    for x, mask in ((33.0, True), (25.0, False), (25.0, True)):
        target = {
            "keypoints": torch.tensor([[[20.0, 20.0], [x, 20.0], [30.0, 30.0]]]),
            "keypoint_mask": torch.tensor([[True, mask, True]]),
            "finish": torch.tensor([0]),
        }
        losses.append(float(model.losses(outputs, [target])["keypoints"].detach()))
    assert losses[0] == losses[1] != losses[2]


def test_points_are_given_in_pixels_of_the_networks_input() -> None:
    model = heads(box_scale=2.0)
    assert model.points is not None
    torch.nn.init.zeros_(model.points[-1].weight)
    torch.nn.init.zeros_(model.points[-1].bias)
    found = model.predictions(model({"8": torch.rand(1, 32, 8, 8)}, [BOXES[:1]]))
    torch.testing.assert_close(found["keypoints"], torch.tensor([[20.0, 40.0]]).expand(1, 3, 2))
