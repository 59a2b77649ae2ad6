"""Objects are dropped from every per-object field at once, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import SanitizeObjects

IMAGE = tv_tensors.Image(torch.zeros((3, 20, 30), dtype=torch.uint8))
BOXES = [
    [2, 2, 10, 10],  # fine
    [5, 5, 5, 9],  # no width
    [25, 15, 40, 40],  # clamped to 5 x 5
    [30, 0, 50, 10],  # outside
    [1, 1, 2.5, 1.5],  # half a pixel high
]


def make_target(boxes=BOXES, *, format="XYXY", **fields):
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    rows = torch.arange(len(boxes))
    wrapped = tv_tensors.BoundingBoxes(boxes, format=format, canvas_size=(20, 30))
    return {"boxes": wrapped, "labels": rows, **fields}


def test_degenerate_and_outside_boxes_go_and_the_rest_is_clamped():
    _, target = SanitizeObjects()(IMAGE, make_target())
    assert target["labels"].tolist() == [0, 2]
    assert target["boxes"].tolist() == [[2, 2, 10, 10], [25, 15, 30, 20]]
    assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
    assert target["boxes"].canvas_size == (20, 30)


@pytest.mark.parametrize(
    ("arguments", "remaining"),
    [
        ({}, [0, 2]),
        ({"min_size": 0.5, "min_area": 0}, [0, 2, 4]),
        ({"min_size": 6}, [0]),
        ({"min_area": 25}, [0, 2]),
        ({"min_area": 26}, [0]),
    ],
)
def test_min_size_and_min_area_are_obeyed(arguments, remaining):
    assert SanitizeObjects(**arguments)(IMAGE, make_target())[1]["labels"].tolist() == remaining


@given(st.lists(st.tuples(*(st.floats(-10, 45) for _ in range(4))), max_size=6))
def test_every_per_object_field_loses_the_same_rows(rows):
    count = len(rows)
    target = make_target(
        rows,
        iscrowd=torch.arange(count),
        keypoints=tv_tensors.KeyPoints(torch.arange(count)[:, None, None].expand(count, 5, 2), canvas_size=(20, 30)),
        masks=tv_tensors.Mask(torch.arange(1, count + 1)[:, None, None].expand(count, 20, 30)),
        visibility=torch.arange(count, dtype=torch.uint8)[:, None].expand(count, 5),
        crop=torch.arange(count)[:, None].expand(count, 4).float(),
        names=[str(row) for row in range(count)],
        pair=tuple(range(count)),
        scores=np.arange(count),
    )
    _, result = SanitizeObjects(per_object=["names", "pair"])(IMAGE, target)
    remaining = result["labels"].tolist()
    for name in ("iscrowd", "keypoints", "visibility", "crop", "scores"):
        assert [int(row.ravel()[0]) for row in result[name]] == remaining
        assert result[name].dtype == target[name].dtype
    assert isinstance(result["keypoints"], tv_tensors.KeyPoints)
    assert (result["masks"][:, 0, 0] - 1).tolist() == remaining
    assert isinstance(result["masks"], tv_tensors.Mask)
    assert result["names"] == [str(row) for row in remaining]
    assert result["pair"] == tuple(remaining)
    assert isinstance(result["scores"], np.ndarray)
    sides = result["boxes"][:, 2:] - result["boxes"][:, :2]
    assert (sides >= 1).all()


def test_the_kept_rows_are_those_of_torchvision():
    torch.manual_seed(0)
    corners = torch.rand(200, 4) * torch.tensor([40, 30, 40, 30]) - 5
    target = make_target(torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] / 4], dim=1))
    theirs = v2.Compose([v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(min_size=2)])(IMAGE, target)[1]
    ours = SanitizeObjects(min_size=2)(IMAGE, target)[1]
    assert 0 < len(ours["labels"]) < 200
    assert ours["labels"].tolist() == theirs["labels"].tolist()


def test_a_per_image_vector_as_long_as_the_boxes_keeps_its_length():
    vector = torch.arange(5)
    _, target = SanitizeObjects(per_image=["histogram"])(IMAGE, make_target(histogram=vector))
    assert len(target["labels"]) == 2
    assert target["histogram"] is vector


@pytest.mark.parametrize("value", [torch.zeros(5), torch.zeros(3), np.zeros(4), [1, 2], (1,)], ids=str)
def test_an_undeclared_field_with_rows_is_refused_in_every_image(value):
    with pytest.raises(ValueError, match=r"'pose'.*per_object=\['pose'\].*per_image"):
        SanitizeObjects()(IMAGE, make_target(pose=value))


def test_numbers_strings_mappings_and_0d_tensors_are_per_image():
    fields = {"image_id": 3, "path": "a.jpg", "meta": {"k": [1]}, "scale": torch.tensor(2.0)}
    _, target = SanitizeObjects()(IMAGE, make_target(**fields))
    assert {name: target[name] for name in fields} == fields


def test_a_declaration_overrides_the_default_kind():
    sanitize = SanitizeObjects(per_image=["labels"], per_object=["size"])
    _, target = sanitize(IMAGE, make_target(size=torch.arange(5)))
    assert target["labels"].tolist() == [0, 1, 2, 3, 4]
    assert target["size"].tolist() == [0, 2]


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.tensor(1), 3])
def test_a_per_object_field_that_lost_alignment_is_refused(labels):
    with pytest.raises(ValueError, match=r"'labels' has .* for 5 boxes"):
        SanitizeObjects()(IMAGE, {**make_target(), "labels": labels})


def test_area_is_recomputed():
    area = torch.full((5,), 99, dtype=torch.float64)
    _, target = SanitizeObjects()(IMAGE, make_target(area=area))
    assert target["area"].tolist() == [64, 25]
    assert target["area"].dtype == torch.float64


def test_other_box_formats_are_measured_by_their_sides():
    boxes = [[2, 2, 8, 8], [5, 5, 0, 4]]
    _, target = SanitizeObjects()(IMAGE, make_target(boxes, format="XYWH", area=torch.zeros(2)))
    assert target["labels"].tolist() == [0]
    assert target["area"].tolist() == [64]
    assert target["boxes"].format == tv_tensors.BoundingBoxFormat.XYWH


def test_no_boxes_are_fine_and_the_given_target_is_not_changed():
    empty = make_target(torch.zeros((0, 4)), area=torch.zeros(0))
    _, target = SanitizeObjects()(IMAGE, empty)
    assert target["boxes"].shape == (0, 4)
    assert target["area"].shape == (0,)
    given_target = make_target()
    SanitizeObjects()(IMAGE, given_target)
    assert len(given_target["boxes"]) == 5
    assert given_target["boxes"].tolist() == [[float(x) for x in box] for box in BOXES]


def test_a_tuple_and_further_elements_pass():
    image, target, extra = SanitizeObjects()((IMAGE, make_target(), "more"))
    assert image is IMAGE
    assert len(target["labels"]) == 2
    assert extra == "more"


@pytest.mark.parametrize("target", [torch.zeros(1), {}, {"boxes": torch.zeros((1, 4))}], ids=str)
def test_a_target_without_tv_boxes_is_refused(target):
    with pytest.raises(TypeError, match=r"tv_tensors\.BoundingBoxes"):
        SanitizeObjects()(IMAGE, target)


@pytest.mark.parametrize("arguments", [{"min_size": -1}, {"min_area": -1}, {"per_object": ["a"], "per_image": ["a"]}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        SanitizeObjects(**arguments)


def test_an_object_without_a_pixel_of_its_mask_goes_with_its_box():
    masks = torch.zeros((5, 20, 30), dtype=torch.uint8)
    masks[[1, 2, 3], 15:18, 25:27] = 1
    _, result = SanitizeObjects()(IMAGE, make_target(masks=tv_tensors.Mask(masks), iscrowd=torch.arange(5)))
    assert result["labels"].tolist() == result["iscrowd"].tolist() == [2]
    assert (result["boxes"].tolist(), result["masks"].sum().item()) == ([[25, 15, 30, 20]], 6)
    crop = v2.Compose([v2.Lambda(lambda image: image), SanitizeObjects()])
    cut = v2.functional.crop(tv_tensors.Mask(masks), 0, 0, 10, 10)
    boxes = tv_tensors.BoundingBoxes([[2, 2, 10, 10]] * 5, format="XYXY", canvas_size=(10, 10))
    assert crop(IMAGE, {"boxes": boxes, "masks": cut, "labels": torch.arange(5)})[1]["masks"].shape == (0, 10, 10)
    unfiltered = SanitizeObjects(per_image=["masks"])(IMAGE, make_target(masks=tv_tensors.Mask(masks[:1] * 0)))[1]
    assert unfiltered["labels"].tolist() == [0, 2]
