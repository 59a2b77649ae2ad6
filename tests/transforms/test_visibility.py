"""A point off the canvas becomes absent, and stays so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.images.views import points_on_canvas
from lit_loader.transforms import UpdateVisibility, detection_transforms
from tests.support.drawn_samples import check_marks, draw
from tests.support.seeded import seeded

IMAGE = tv_tensors.Image(torch.zeros((3, 20, 30), dtype=torch.uint8))


def make_target(points, visibility=None):
    points = torch.as_tensor(points, dtype=torch.float32).reshape(1, -1, 2)
    if visibility is None:
        visibility = [2] * points.shape[1]
    return {
        "keypoints": tv_tensors.KeyPoints(points, canvas_size=(20, 30)),
        "visibility": torch.tensor([visibility], dtype=torch.uint8),
    }


def test_the_edges_belong_to_the_canvas_and_what_is_beyond_or_not_finite_does_not():
    inside = [(0, 0), (30, 20), (0, 20), (15, 10)]
    nan = float("nan")
    inf = float("inf")
    outside = [(-0.01, 5), (5, -0.01), (30.01, 5), (5, 20.01), (nan, 5), (5, inf), (25, 25)]
    _, target = UpdateVisibility()(IMAGE, make_target(inside + outside))
    assert target["visibility"].tolist() == [[2] * len(inside) + [0] * len(outside)]


@given(st.lists(st.tuples(st.floats(-9, 40), st.floats(-9, 40), st.integers(0, 2)), max_size=8))
def test_visibility_is_kept_inside_zero_outside_and_coordinates_stay(rows):
    source_target = make_target([row[:2] for row in rows], [row[2] for row in rows])
    _, target = UpdateVisibility()(IMAGE, source_target)
    x, y = source_target["keypoints"].as_subclass(torch.Tensor).unbind(-1)
    inside = (x >= 0) & (x <= 30) & (y >= 0) & (y <= 20)
    assert torch.equal(target["visibility"], source_target["visibility"] * inside)
    assert target["visibility"].dtype == torch.uint8
    assert torch.equal(target["keypoints"], source_target["keypoints"])


def test_an_absent_point_stays_absent_when_its_coordinates_come_back():
    target = make_target([(28, 10), (5, 10)])
    back = v2.Compose([v2.CenterCrop((20, 20)), UpdateVisibility(), v2.Pad(20), UpdateVisibility()])
    _, result = back(IMAGE, target)
    assert result["visibility"].tolist() == [[0, 2]]
    assert result["keypoints"][0, 0].tolist() == [28 - 5 + 20, 30]
    assert target["visibility"].tolist() == [[2, 2]]


def test_a_point_beside_the_image_does_not_land_on_the_padding_of_a_preset():
    image, target = draw()
    points = target["keypoints"].clone()
    points[0, 0] = torch.tensor([-5.0, 20])
    target["keypoints"] = tv_tensors.wrap(points, like=target["keypoints"])
    for preset in (
        detection_transforms(False, size=(200, 250), letterbox=True),
        detection_transforms(True, zoom_out=1.0, hflip=0),
        detection_transforms(True, rotation=10, hflip=0),
    ):
        _, moved = seeded(1, preset, image, target)
        assert moved["visibility"].tolist() == [[0, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("settings", [{"iou_crop": 1.0}, {"rotation": 180}, {"iou_crop": 0.5, "rotation": 90}])
def test_a_preset_marks_the_points_that_left_and_no_others(settings):
    preset = detection_transforms(True, hflip=0, zoom_out=0.3, **settings)
    num_absent = num_seen = 0
    for seed in range(40):
        image, target = seeded(seed, preset, *draw())
        num_seen += check_marks(image, target, tolerance=0.4)
        num_absent += int((target["visibility"] == 0).sum())
    assert num_absent >= 3
    assert num_seen > 60


def test_a_point_that_a_crop_cut_off_does_not_come_back_with_a_turn():
    preset = detection_transforms(True, hflip=0, iou_crop=1.0, rotation=180)
    back = 0
    for seed in range(150):
        _, target = seeded(seed, preset, *draw())
        points = target["keypoints"].as_subclass(torch.Tensor)
        back += int((points_on_canvas(points, target["keypoints"].canvas_size) & (target["visibility"] == 0)).sum())
    assert back > 0


def test_targets_without_points_labels_and_images_alone_pass_as_they_are():
    target = {"labels": torch.zeros(2)}
    assert UpdateVisibility()(IMAGE, target)[1] is target
    assert UpdateVisibility()(IMAGE, 3)[1] == 3
    assert UpdateVisibility()(IMAGE) is IMAGE
    *_, extra = UpdateVisibility()((IMAGE, make_target([]), "more"))
    assert extra == "more"


def test_no_objects_are_fine():
    assert UpdateVisibility()(*draw(objects=()))[1]["visibility"].shape == (0, 3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"keypoints": torch.zeros((1, 1, 2))}, TypeError, r"tv_tensors\.KeyPoints\(points, canvas_size"),
        ({"visibility": None}, ValueError, "no visibility tensor"),
        ({"visibility": torch.zeros((1, 2))}, ValueError, r"got \(1, 1, 2\) and \(1, 2\)"),
    ],
)
def test_points_that_could_not_be_marked_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        UpdateVisibility()(IMAGE, {**make_target([(1, 1)]), **change})
