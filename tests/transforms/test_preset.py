"""The detection preset: every argument has its documented effect."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.transforms import detection_transforms

EVERYTHING = {
    "size": (48, 64),
    "letterbox": True,
    "vflip": 0.5,
    "photometric": 0.5,
    "zoom_out": 0.5,
    "iou_crop": 0.5,
    "rotation": 20,
}


def make_sample(*, height=40, width=60, **fields):
    pixels = torch.arange(3 * height * width, dtype=torch.int64).remainder(251).to(torch.uint8)
    boxes = torch.tensor([[3.0, 4, 20, 30], [30, 5, 33, 8]])
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.tensor([1, 2]),
        **fields,
    }
    return tv_tensors.Image(pixels.reshape(3, height, width)), target


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (40, 60)),
        ({"size": 20}, (20, 30)),
        ({"size": 80, "max_size": 90}, (60, 90)),
        ({"max_size": 30}, (20, 30)),
        ({"size": (50, 50)}, (50, 50)),
        ({"size": [50, 50], "letterbox": True}, (50, 50)),
    ],
)
def test_the_size_arguments_give_the_size(arguments, shape):
    image, target = detection_transforms(False, **arguments)(*make_sample())
    assert tuple(image.shape[-2:]) == shape
    assert target["boxes"].canvas_size == shape


def test_to_float_scales_and_false_keeps_bytes():
    image = detection_transforms(False)(*make_sample())[0]
    expected = make_sample()[0]
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, tv_tensors.Image(expected / 255))
    assert torch.equal(detection_transforms(False, to_float=False)(*make_sample())[0], expected)


def test_rotation_turns_every_image_within_its_range_and_makes_boxes_looser():
    torch.manual_seed(0)
    preset = detection_transforms(True, hflip=0, rotation=20, to_float=False)
    images, targets = zip(*(preset(*make_sample()) for _ in range(20)), strict=True)
    assert all(image.shape == (3, 40, 60) for image in images)
    assert len({int(image.sum()) for image in images}) == 20
    sides = torch.stack([target["boxes"][0, 2:] - target["boxes"][0, :2] for target in targets])
    assert (sides.amin(dim=0) > 14).all()
    assert (sides > 17).any()
    for wrong in (-1, 181):
        with pytest.raises(ValueError, match=f"rotation={wrong}"):
            detection_transforms(False, rotation=wrong)


def test_points_of_an_object_are_dropped_with_it_and_flip_pairs_reach_both_flips():
    points = tv_tensors.KeyPoints(torch.tensor([[[4.0, 5], [18, 5]], [[31, 6], [32, 6]]]), canvas_size=(40, 60))
    fields = {"keypoints": points, "visibility": torch.tensor([[1, 2], [2, 1]], dtype=torch.uint8)}
    for flips in ({"hflip": 1}, {"hflip": 0, "vflip": 1}):
        preset = detection_transforms(True, flip_pairs=[[0, 1]], min_box_size=4, **flips)
        _, target = preset(*make_sample(**fields))
        assert target["labels"].tolist() == [1]
        assert target["visibility"].tolist() == [[2, 1]]
        x, y = (60 - 18, 5) if flips["hflip"] else (18, 40 - 5)
        assert target["keypoints"][0, 0].tolist() == [x, y]
        with pytest.raises(ValueError, match="flip_pairs=None but the target has"):
            detection_transforms(True, **flips)(*make_sample(**fields))
    with pytest.raises(ValueError, match="twice"):
        detection_transforms(False, flip_pairs=[[0, 0]])


@pytest.mark.parametrize("name", ["hflip", "vflip", "photometric", "zoom_out", "iou_crop"])
def test_each_probability_switches_its_transform(name):
    off = {"hflip": 0.0, "to_float": False}
    torch.manual_seed(1)
    original = make_sample()[0]
    assert torch.equal(detection_transforms(True, **off)(*make_sample())[0], original)
    on = detection_transforms(True, **{**off, name: 1.0})
    results = [on(*make_sample())[0] for _ in range(8)]
    assert any(image.shape != original.shape or not torch.equal(image, original) for image in results)
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match=name):
            detection_transforms(True, **{name: wrong})


def test_fill_reaches_letterbox_and_zoom_out():
    letterboxed = detection_transforms(False, size=(60, 60), letterbox=True, fill=77, to_float=False)
    assert (letterboxed(*make_sample())[0][:, 0] == 77).all()
    torch.manual_seed(0)
    zoomed = detection_transforms(True, hflip=0, zoom_out=1.0, fill=77, to_float=False)
    image = zoomed(*make_sample())[0]
    assert image.shape[-1] > 60
    assert (image[:, :, -1] == 77).all()
    turned = detection_transforms(True, hflip=0, rotation=90, fill=77, to_float=False)(*make_sample())[0]
    assert (turned[:, 0, 0] == 77).all()


def test_box_limits_and_field_names_reach_the_sanitiser():
    sample = make_sample(pose=torch.tensor([7, 8]), tags=torch.zeros(2))
    preset = detection_transforms(False, min_box_size=4, per_object=["pose"], per_image=["tags"])
    _, target = preset(*sample)
    assert target["labels"].tolist() == [1]
    assert target["pose"].tolist() == [7]
    assert len(target["tags"]) == 2
    by_area = detection_transforms(False, min_box_area=10, per_object=["pose"], per_image=["tags"])
    assert by_area(*sample)[1]["labels"].tolist() == [1]


def test_images_without_boxes_pass_every_transform():
    torch.manual_seed(0)
    preset = detection_transforms(True, **EVERYTHING)
    for _ in range(10):
        image, target = make_sample()
        empty = tv_tensors.BoundingBoxes(torch.zeros((0, 4)), format="XYXY", canvas_size=(40, 60))
        _, target = preset(image, {**target, "boxes": empty, "labels": torch.zeros(0, dtype=torch.int64)})
        assert target["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": True}, "size=True"),
        ({"size": (10, -1)}, "whole numbers of pixels"),
        ({"size": 0}, "size=0"),
        ({"size": (10, 9.5)}, "whole numbers"),
        ({"size": (5, 5, 5)}, r"size=\[5, 5, 5\]"),
        ({"size": (5, 5), "max_size": 9}, "max_size=9"),
        ({"size": 5, "letterbox": True}, "size=5"),
        ({"letterbox": True}, "size=None"),
        ({"max_size": 0}, "max_size=0"),
        ({"fill": 114}, "fill=114 has no effect without letterbox"),
        ({"shorter_sides": []}, "shorter_sides="),
        ({"shorter_sides": [0]}, "at least 1"),
        ({"shorter_sides": [5], "size": 4}, "shorter_sides="),
        ({"shorter_sides": [5], "letterbox": True}, "shorter_sides="),
    ],
    ids=str,
)
@pytest.mark.parametrize("train", [True, False])
def test_sizes_and_fills_without_meaning_are_refused_in_either_split(settings, message, train):
    with pytest.raises(ValueError, match=message):
        detection_transforms(train, **settings)
