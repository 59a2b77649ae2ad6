"""Flat targets are transformed with torchvision's results; torchvision transforms nested ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.transforms.moving import flat_targets, moved_targets

SIZE = (30, 40)


def make_target(**fields):
    boxes = tv_tensors.BoundingBoxes([[1.0, 2, 20, 25], [0, 0, 40, 30]], format="XYXY", canvas_size=SIZE)
    points = tv_tensors.KeyPoints(torch.rand(2, 5, 2) * 30, canvas_size=SIZE)
    masks = tv_tensors.Mask(torch.randint(0, 2, (2, *SIZE), dtype=torch.uint8))
    return {
        "boxes": boxes,
        "keypoints": points,
        "masks": masks,
        "labels": torch.tensor([1, 2]),
        "image_id": 7,
        "name": "a",
        "score": np.float32([1, 2]),
        **fields,
    }


def test_flat_targets_move_as_torchvision_moves_them():
    target = make_target()
    image = tv_tensors.Image(torch.zeros((3, *SIZE), dtype=torch.uint8))
    targets = [target, {}, 3, target["boxes"], target["labels"]]
    assert flat_targets(targets, size=SIZE)
    _, expected, empty, number, boxes, _ = v2.Resize(17, max_size=20)(image, *targets)
    moved = moved_targets(targets, partial(functional.resize, size=[15, 20]))
    assert moved[1:3] == [empty, number] == [{}, 3]
    assert torch.equal(moved[3], boxes)
    assert moved[3].canvas_size == (15, 20)
    assert moved[4] is target["labels"]
    assert moved[0].keys() == expected.keys()
    for name in ("boxes", "keypoints", "masks"):
        assert type(moved[0][name]) is type(expected[name])
        assert torch.equal(moved[0][name], expected[name])
    assert moved[0]["boxes"].canvas_size == expected["boxes"].canvas_size == (15, 20)
    for name in ("labels", "image_id", "name", "score"):
        assert moved[0][name] is target[name]


@pytest.mark.parametrize(
    "other",
    [
        make_target(more=[1]),
        make_target(more={"boxes": 1}),
        make_target(more=tv_tensors.Image(torch.zeros(3, *SIZE))),
        make_target(masks=tv_tensors.Mask(torch.zeros(2, 30, 41))),
        make_target(keypoints=tv_tensors.KeyPoints(torch.zeros(2, 2), canvas_size=(40, 30))),
        [torch.zeros(2)],
        tv_tensors.Mask(torch.zeros(30, 41)),
    ],
    ids=["a list", "a dict", "a second image", "another mask", "another canvas", "no dict", "only another mask"],
)
def test_anything_else_is_not_flat(other):
    assert not flat_targets([{}, other], size=SIZE)
