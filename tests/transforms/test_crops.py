"""Crops show the requested region, and every argument is honoured or refused."""

from __future__ import annotations

import pickle

import numpy as np
import PIL.Image
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from lit_loader.images.views import View
from lit_loader.transforms import CropToObjects, to_image_points
from tests.support.drawn_samples import BOXES, MARKS, check_marks, draw
from tests.support.seeded import seeded


def crop_of(seed=0, objects=(0,), **arguments):
    return seeded(seed, CropToObjects(**arguments), *draw(objects=objects))


def test_a_plain_crop_is_a_cut_and_nothing_is_resampled():
    image, target = crop_of(size=None, margin=0.0)
    assert torch.equal(image, draw(objects=(0,))[0][:, 10:60, 12:62])
    assert target["crop"].tolist() == [[12, 10, 62, 60]]
    assert target["boxes"].tolist() == [[0, 0, 50, 50]]
    assert target["area"].tolist() == [2500]
    assert target["image_id"] == 7


def test_a_resized_crop_is_one_antialiased_resize():
    image, target = crop_of(size=20, margin=0.0)
    cut = draw(objects=(0,))[0][:, 10:60, 12:62]
    assert torch.equal(image, functional.resize(cut, [20, 20], antialias=True))
    assert target["area"].tolist() == [400]


def test_a_shrunk_turned_crop_has_no_more_noise_than_a_shrunk_one():
    # Without antialiasing, shrinking white noise six times would keep its deviation.
    torch.manual_seed(0)
    noise = tv_tensors.Image(torch.rand(3, 400, 400))
    turned = CropToObjects(size=40, around="image", fit="crop", margin=0, scale=(0.6, 0.6), rotation=30)
    plain = CropToObjects(size=40, around="image", fit="crop", margin=0, scale=(0.6, 0.6))
    assert turned(noise).std() <= 1.05 * plain(noise).std() < 0.1


def test_a_turned_crop_takes_its_corners_from_the_image():
    white = tv_tensors.Image(torch.full((3, 110, 150), 255, dtype=torch.uint8))
    for seed in range(20):
        image, _ = seeded(seed, CropToObjects(size=48, margin=0, rotation=30), white, draw(objects=(0,))[1])
        # the box is 10 pixels from the rim of the image, the turned corners at most 9.2 further out
        assert image.min() == 255


@pytest.mark.parametrize("settings", [{}, {"rotation": 20}, {"size": 64}, {"size": 64, "rotation": 20}], ids=str)
def test_beyond_the_image_is_fill(settings):
    image, target = crop_of(margin=2.0, fill=77, **settings)
    assert (image[:, 0, 0] == 77).all()
    assert (image == 77).float().mean() > 0.2
    assert (target["visibility"] == 2).all()


def test_a_crop_beside_the_image_is_all_fill():
    image, target = draw(objects=(0,))
    far = tv_tensors.wrap(target["boxes"] + 500, like=target["boxes"])
    crop, moved = CropToObjects(size=16, fill=9)(image, {**target, "boxes": far})
    assert isinstance(crop, tv_tensors.Image)
    assert (crop == 9).all()
    assert (moved["visibility"] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "crop"),
    [
        ({"margin": 0.0}, [78, 43, 138, 103]),
        ({"margin": 0.5}, [48, 13, 168, 133]),
        ({"margin": 0.0, "fit": "stretch"}, [78, 48, 138, 98]),
        ({"margin": 0.0, "fit": "crop"}, [83, 48, 133, 98]),
        ({"margin": 0.0, "scale": (2.0, 2.0)}, [48, 13, 168, 133]),
        ({"margin": 0.0, "size": (40, 20)}, [78, 13, 138, 133]),
        ({"margin": 0.0, "size": (20, 40), "fit": "crop"}, [78, 58, 138, 88]),
        ({"margin": 0.0, "around": "points"}, [94, 58, 123, 87]),
        ({"margin": 0.0, "around": "image", "fit": "letterbox"}, [0, -20, 150, 130]),
        ({"margin": 0.0, "around": "image", "fit": "crop"}, [20, 0, 130, 110]),
        ({"margin": 0.0, "around": "image", "fit": "stretch"}, [0, 0, 150, 110]),
    ],
    ids=str,
)
def test_the_region_is_the_one_asked_for(arguments, crop):
    image, target = crop_of(objects=(1,), **arguments)
    assert target["crop"].tolist() == [crop]
    size = arguments.get("size", (crop[3] - crop[1], crop[2] - crop[0]))
    assert tuple(image.shape[-2:]) == target["boxes"].canvas_size == size


def test_around_points_takes_the_present_ones_and_the_box_where_there_are_fewer_than_two():
    for visibility, around in (([2, 2, 0], MARKS[0][:2]), ([0, 1, 0], None), ([0, 0, 0], None)):
        image, target = draw(objects=(0,))
        target["visibility"] = torch.tensor([visibility], dtype=torch.uint8)
        crop = CropToObjects(around="points", margin=0, fit="stretch")(image, target)[1]["crop"][0]
        expected_box = BOXES[0] if around is None else [coordinate for point in around for coordinate in point]
        assert (crop - torch.tensor(expected_box)).abs().max() <= 1


def test_shift_scale_and_rotation_cover_their_ranges_and_no_more():
    _, plain = crop_of(margin=0.0)
    crops = torch.cat([crop_of(seed, margin=0.0, shift=0.2)[1]["crop"] for seed in range(60)])
    moves = (crops - plain["crop"])[:, :2] / 50
    assert moves.abs().amax(dim=0).tolist() == pytest.approx([0.2, 0.2], abs=0.04)
    crops = [crop_of(seed, margin=0.0, scale=(0.5, 1.5))[1]["crop"] for seed in range(60)]
    sides = torch.cat(crops)[:, 2] - torch.cat(crops)[:, 0]
    assert [float(sides.min()), float(sides.max())] == pytest.approx([25, 75], abs=4)
    turned = [crop_of(seed, margin=0.0, rotation=40)[1]["keypoints"][0] for seed in range(60)]
    angles = torch.stack([torch.atan2(*(points[1] - points[0]).flip(0)) for points in turned]).rad2deg()
    start = float(torch.atan2(torch.tensor(1.6), torch.tensor(25.2)).rad2deg())
    assert [float(angles.min()), float(angles.max())] == pytest.approx([start - 40, start + 40], abs=4)


def test_the_box_is_not_clipped_and_encloses_the_turned_one():
    _, target = crop_of(margin=0.0, scale=(0.5, 0.5), size=100)
    assert target["boxes"].tolist() == [pytest.approx([-50, -50, 150, 150], abs=5)]
    assert target["boxes"].tolist()[0][2] > 100
    for seed in range(5):
        _, turned = crop_of(seed, margin=0.0, rotation=45)
        first, second, _ = turned["keypoints"][0].as_subclass(torch.Tensor)
        start, angle = (torch.atan2(*(b - a).flip(0)) for a, b in (map(torch.tensor, MARKS[0][:2]), (first, second)))
        grown = 50 * (abs(torch.cos(angle - start)) + abs(torch.sin(angle - start)))
        sides = turned["boxes"][0, 2:] - turned["boxes"][0, :2]
        assert sides.tolist() == pytest.approx([float(grown)] * 2, abs=0.01)
        assert turned["area"].item() == pytest.approx(float(sides.prod()))


def test_points_of_a_plain_crop_go_back_to_the_image():
    for seed in range(5):
        _, target = crop_of(seed, size=(64, 48), shift=0.2, scale=(0.7, 1.5))
        back = to_image_points(target["keypoints"], target["crop"], (64, 48))
        torch.testing.assert_close(back, torch.tensor([MARKS[0]]), atol=1e-4, rtol=0)


def test_the_corners_of_a_view_go_to_the_corners_of_the_result():
    corners = np.array([[10.0, 12], [70, 32], [50, 92], [-10, 72]])  # a square, turned
    moved, _ = View(corners=corners, size=(30, 40)).points(torch.from_numpy(corners))
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0], [40, 0], [40, 30], [0, 30]]), atol=1e-4, rtol=0)


def test_masks_move_with_the_pixels_and_other_fields_stay():
    image, target = draw(objects=(0,))
    mask = (image.amax(dim=0, keepdim=True) > 50).to(torch.uint8)
    target |= {"masks": tv_tensors.Mask(mask), "pose": torch.tensor([5])}
    white = tv_tensors.Image((mask * 255).expand(3, -1, -1))
    for settings in ({}, {"rotation": 30}):
        crop, moved = CropToObjects(size=64, margin=0.1, **settings)(white, target)
        assert isinstance(moved["masks"], tv_tensors.Mask)
        assert ((crop[:1] > 127) == moved["masks"].bool()).float().mean() > 0.96
        assert 0.4 < moved["masks"].float().mean() < 0.9
        assert set(moved["masks"].unique().tolist()) == {0, 1}
        assert moved["pose"] is target["pose"]
        everywhere = {**target, "masks": tv_tensors.Mask(torch.ones_like(mask))}
        beyond = CropToObjects(size=64, margin=2, fill=200, **settings)(image, everywhere)[1]["masks"]
        assert beyond[0, 0, 0] == 0


def test_the_given_sample_is_not_changed():
    image, target = draw(objects=(0,))
    original_target = {name: torch.clone(value) for name, value in target.items() if isinstance(value, torch.Tensor)}
    CropToObjects(size=32, rotation=30, shift=0.5)(image, target)
    assert torch.equal(image, draw(objects=(0,))[0])
    assert all(torch.equal(target[name], value) for name, value in original_target.items())
    assert "crop" not in target


def test_without_randomness_nothing_is_drawn_and_else_equally_much_for_every_sample():
    state = torch.get_rng_state()
    CropToObjects(size=32, scale=(1.2, 1.2))(*draw(objects=(0,)))
    assert torch.equal(torch.get_rng_state(), state)
    random_crop = CropToObjects(size=32, around="image", shift=0.1, scale=(1, 2), rotation=9)
    states = []
    for objects in ((), (0,), (0, 1)):
        _, target = seeded(3, random_crop, *draw(objects=objects))
        assert target["crop"].shape == (len(objects), 4)
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


@pytest.mark.parametrize("around", ["box", "points"])
@pytest.mark.parametrize("objects", [(), (0, 1)], ids=len)
def test_another_number_of_objects_than_one_is_refused(around, objects):
    with pytest.raises(ValueError, match=rf"{len(objects)} objects.*table\.per_object\(\)"):
        CropToObjects(around=around)(*draw(objects=objects))


def test_targets_without_boxes_pil_images_and_turned_boxes_are_refused():
    image, target = draw(objects=(0,))
    for wrong in ({"boxes": torch.zeros((1, 4))}, {}, 3, None):
        with pytest.raises(TypeError, match=r"tv_tensors\.BoundingBoxes"):
            CropToObjects()(image, wrong)
    with pytest.raises(TypeError, match="image tensors"):
        CropToObjects()(PIL.Image.new("RGB", (150, 110)), target)
    turned = tv_tensors.BoundingBoxes(torch.tensor([[9.0, 9, 5, 5, 3]]), format="XYWHR", canvas_size=(110, 150))
    with pytest.raises(ValueError, match="along the axes"):
        CropToObjects()(image, {"boxes": turned})


@pytest.mark.parametrize("format", ["XYWH", "CXCYWH"])
def test_other_box_formats_keep_theirs(format):
    image, target = draw(objects=(0,))
    boxes = functional.convert_bounding_box_format(target["boxes"], new_format=format)
    moved = CropToObjects(size=25, margin=0)(image, {"boxes": boxes})[1]["boxes"]
    assert moved.format == boxes.format
    expected_box = {"XYWH": [0, 0, 25, 25], "CXCYWH": [12.5, 12.5, 25, 25]}[format]
    assert moved.tolist() == [expected_box]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0"),
        ({"size": True}, "size=True"),
        ({"size": (3, 4.5)}, "whole pixels"),
        ({"size": (3, 4, 5)}, "height, width"),
        ({"margin": -0.1}, "margin=-0.1"),
        ({"margin": float("inf")}, "margin=inf"),
        ({"margin": float("nan")}, "margin=nan"),
        ({"shift": -1}, "shift=-1"),
        ({"rotation": 181}, "rotation=181"),
        ({"scale": (0, 1)}, "scale"),
        ({"scale": (2, 1)}, "scale"),
        ({"scale": (1,)}, "scale"),
        ({"around": "face"}, "'box', 'points', 'image'"),
        ({"fit": "pad"}, "'crop', 'stretch', 'letterbox'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CropToObjects(**arguments)


def test_float_images_and_tuples_are_cropped_and_crops_pickle():
    crop = CropToObjects(size=[40, 50], rotation=20, scale=[0.8, 1.2], fill=0.5)
    unpickled = pickle.loads(pickle.dumps(v2.Compose([crop])))
    image, target, extra = seeded(2, unpickled, (*draw(objects=(0,), float_image=True), "more"))
    assert image.dtype == torch.float32
    assert extra == "more"
    assert check_marks(image, target, tolerance=0.2) == 3
    assert "size=(40, 50), margin=0.25" in repr(crop)
    assert "fill=0.5" in repr(crop)
