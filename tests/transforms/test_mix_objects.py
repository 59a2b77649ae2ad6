"""Geometry of mixed targets: masks, points and boxes of a part of an image on the canvas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

from lit_loader.annotations.masks import Masks
from lit_loader.transforms.mix_objects import Placement, join, place, resize_mask, xyxy_boxes
from tests.support.mix_marks import FIELDS, target_of

SIDES = st.integers(1, 40)


@given(height=SIDES, width=SIDES, new_height=SIDES, new_width=SIDES, seed=st.integers(0, 1000))
def test_masks_are_resized_as_annotations_are_drawn(height, width, new_height, new_width, seed):
    polygon = np.random.default_rng(seed).uniform(0, [width, height], (5, 2)).astype(np.float32)
    bitmap = Masks.from_rows([[polygon]]).rasterize(0, height, width)
    resized = resize_mask(bitmap, (new_height, new_width))
    assert resized.shape == (new_height, new_width)
    rows = np.floor((np.arange(new_height) + 0.5) * height / new_height).astype(int)
    columns = np.floor((np.arange(new_width) + 0.5) * width / new_width).astype(int)
    assert np.array_equal(resized, bitmap[np.ix_(rows, columns)])


def test_corners_of_a_part_are_corners_of_its_region():
    placement = Placement((10, 20, 17, 33), (26, 21), (5, 6))
    assert placement.region == (5, 6, 26, 32)
    assert placement.points(np.array([[10, 20], [17, 33]])).tolist() == [[5, 6], [26, 32]]
    assert placement.boxes(np.array([[0, 0, 99, 99]])).tolist() == [[5, 6, 26, 32]]


@pytest.mark.parametrize(
    ("box", "stays"),
    [
        ([10, 10, 10, 15], True),
        ([20, 10, 20, 15], True),
        ([21, 10, 21, 15], False),
        ([5, 5, 5, 5], False),
        ([15, 12, 11, 13], False),
        ([float("nan")] * 4, False),
        ([20, 10, 25, 15], False),
    ],
)
def test_boxes_without_area_stay_if_the_part_touches_them(box, stays):
    target = target_of(0, [box], (40, 40), np.random.default_rng(0))
    placed = place(target, Placement((10, 10, 20, 20), (10, 10)), (40, 40), min_visible=0.5, fields=FIELDS)
    assert len(placed["boxes"]) == len(placed["labels"]) == stays


def test_points_between_two_parts_are_on_the_right_or_lower_one():
    rng = np.random.default_rng(0)
    target = target_of(0, [[0, 0, 20, 20]], (20, 20), rng)
    target["keypoints"][0] = torch.tensor([[10.0, 5.0], [20.0, 5.0]])
    target["visibility"][0] = 2
    for part, visibility in (((0, 0, 10, 20), [0, 0]), ((10, 0, 20, 20), [2, 2])):
        placement = Placement(part, (20, 10), (part[0], 0))
        placed = place(target, placement, (20, 20), min_visible=0, fields=FIELDS)
        assert placed["visibility"].tolist() == [visibility]
    for canvas_size, seen in (((20, 20), 2), ((20, 21), 0)):
        placed = place(target, Placement((0, 0, 20, 20), (20, 20)), canvas_size, min_visible=0, fields=FIELDS)
        assert placed["visibility"].tolist() == [[2, seen]]


def test_boxes_of_another_kind_are_named():
    boxes = tv_tensors.BoundingBoxes(torch.zeros(1, 4, dtype=torch.int64), format="XYWH", canvas_size=(9, 9))
    with pytest.raises(TypeError, match=r"float32, format XYXY, on the CPU, got torch.int64, format XYWH, on cpu"):
        xyxy_boxes({"boxes": boxes})


def test_targets_with_other_numbers_of_points_are_refused():
    rng = np.random.default_rng(0)
    targets = [target_of(number, [[0, 0, 9, 9]], (10, 10), rng) for number in range(2)]
    targets[1]["keypoints"] = targets[1]["keypoints"][:, :1]
    targets[1]["visibility"] = targets[1]["visibility"][:, :1]
    with pytest.raises(TypeError, match="keypoints"):
        place(targets[1], Placement((0, 0, 10, 10), (10, 10)), (40, 40), min_visible=0, fields=FIELDS)
    targets[1]["keypoints"] = type(targets[0]["keypoints"])(targets[1]["keypoints"], canvas_size=(10, 10))
    placed = [
        place(target, Placement((0, 0, 10, 10), (10, 10)), (40, 40), min_visible=0, fields=FIELDS) for target in targets
    ]
    with pytest.raises(ValueError, match=r"\[2, 1\] keypoints an object"):
        join(placed, (10, 10), fields=FIELDS)


def test_masks_of_another_kind_are_refused():
    target = target_of(0, [[0, 0, 9, 9]], (10, 10), np.random.default_rng(0))
    target["masks"] = torch.zeros((1, 10, 10))
    with pytest.raises(TypeError, match=r"uint8 \(N, H, W\), got torch.float32 \(1, 10, 10\)"):
        place(target, Placement((0, 0, 10, 10), (10, 10)), (40, 40), min_visible=0, fields=FIELDS)
