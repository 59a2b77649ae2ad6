"""Boxes sit on the pixels they were drawn around, whatever the geometry."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import Letterbox, RandomObjectCrop, SanitizeObjects, detection_transforms
from lit_loader.transforms.geometry import letterbox_geometry

# Each object has a colour of its own, far from the others in one channel and from the black background.
COLOURS = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255]], dtype=torch.uint8)
BOXES = [[10, 8, 50, 30], [60, 20, 90, 70], [20, 45, 48, 75]]


def draw(*, height=80, width=100):
    pixels = torch.zeros((3, height, width), dtype=torch.uint8)
    for colour, (x1, y1, x2, y2) in zip(COLOURS, BOXES, strict=True):
        pixels[:, y1:y2, x1:x2] = colour[:, None, None]
    boxes = torch.tensor(BOXES, dtype=torch.float32)
    target = {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.tensor([1, 2, 3]),
        "image_id": 7,
        "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
        "iscrowd": torch.zeros(3, dtype=torch.int64),
        "difficult": torch.tensor([True, False, True]),
    }
    return tv_tensors.Image(pixels), target


def bounds(image, label):
    """The box around the pixels of an object's colour: more than half of its channel, less of the others."""
    plain = image.as_subclass(torch.Tensor).float() / (255 if image.dtype == torch.uint8 else 1)
    other_channels = [channel for channel in range(3) if channel != label - 1]
    mark_pixels = (plain[label - 1] > 0.5) & (plain[other_channels] < 0.5).all(dim=0)
    ys, xs = mark_pixels.nonzero(as_tuple=True)
    if not len(xs):
        return None
    return torch.tensor([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], dtype=torch.float32)


def check_on_pixels(image, target, *, tolerance):
    assert target["boxes"].canvas_size == tuple(image.shape[-2:])
    for box, label in zip(target["boxes"].as_subclass(torch.Tensor), target["labels"].tolist(), strict=True):
        seen = bounds(image, label)
        assert seen is not None
        assert (seen - box).abs().max() <= tolerance, (label, seen, box)


@pytest.mark.parametrize(
    ("transform", "tolerance"),
    [
        (v2.RandomHorizontalFlip(p=1), 0),
        (v2.RandomVerticalFlip(p=1), 0),
        (v2.CenterCrop((40, 60)), 0),
        (v2.RandomCrop((50, 50)), 0),
        (v2.RandomZoomOut(p=1, side_range=(1.5, 2.0)), 0),
        # resampling blurs an edge over about one pixel of the result
        (v2.Resize((160, 150)), 1.01),
        (v2.Resize((37, 53)), 1.01),
        (Letterbox((128, 128)), 1.01),
        (Letterbox((40, 120)), 1.01),
        # the rotated corner of a rectangle ends between pixels, and nearest resampling moves it by one more
        (v2.RandomRotation((90, 90), expand=True), 1.01),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else str(value),
)
def test_boxes_sit_on_their_pixels(transform, tolerance):
    torch.manual_seed(3)
    image, target = SanitizeObjects()(*transform(*draw()))
    assert len(target["labels"]) > 0
    check_on_pixels(image, target, tolerance=tolerance)


def test_a_rotated_box_encloses_its_pixels_within_two_pixels():
    image, target = SanitizeObjects()(*v2.RandomRotation((10, 10))(*draw()))
    assert target["labels"].tolist() == [1, 2, 3]
    check_on_pixels(image, target, tolerance=2)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_crop_keeps_every_field_row_aligned(seed):
    torch.manual_seed(seed)
    given_target = draw()[1]
    image, target = SanitizeObjects()(*RandomObjectCrop(p=1)(*draw()))
    check_on_pixels(image, target, tolerance=0)
    marks = target["labels"] - 1
    assert torch.equal(target["difficult"], given_target["difficult"][marks])
    sides = target["boxes"][:, 2:] - target["boxes"][:, :2]
    assert torch.equal(target["area"], sides.as_subclass(torch.Tensor).prod(dim=1))


@pytest.mark.parametrize("seed", range(8))
def test_the_training_preset_keeps_boxes_on_pixels(seed):
    torch.manual_seed(seed)
    preset = detection_transforms(
        True, size=(96, 128), letterbox=True, vflip=0.5, zoom_out=0.3, iou_crop=0.5, min_box_size=3
    )
    image, target = preset(*draw())
    assert image.shape == (3, 96, 128)
    check_on_pixels(image, target, tolerance=1.6)


def test_letterbox_pads_with_fill_and_masks_with_zero():
    image, target = draw()
    target["masks"] = tv_tensors.Mask(torch.ones((3, 80, 100), dtype=torch.bool))
    image, target = Letterbox((100, 100), fill=114)(image, target)
    assert (image[:, :10] == 114).all()
    assert (image[:, 90:] == 114).all()
    assert not target["masks"][:, :10].any()
    assert target["masks"][:, 10:90].all()


@given(*(st.integers(1, 300) for _ in range(4)))
def test_letterbox_fills_the_canvas_exactly_and_touches_two_sides(height, width, canvas_height, canvas_width):
    scaled, (left, top, right, bottom) = letterbox_geometry((height, width), (canvas_height, canvas_width))
    assert (top + scaled[0] + bottom, left + scaled[1] + right) == (canvas_height, canvas_width)
    assert min(left, top, right, bottom) >= 0
    assert min(scaled) >= 1
    assert scaled[0] == canvas_height or scaled[1] == canvas_width
    assert 0 <= right - left <= 1
    assert 0 <= bottom - top <= 1


def test_object_crop_leaves_images_it_cannot_crop_and_draws_all_the_same():
    tiny = tv_tensors.Image(torch.zeros((3, 2, 2), dtype=torch.uint8))
    for image, boxes in ((draw()[0], torch.zeros((0, 4))), (tiny, torch.tensor([[0.0, 0, 2, 2]]))):
        size = tuple(image.shape[-2:])
        target = {"boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)}
        torch.manual_seed(0)
        result, same = RandomObjectCrop(p=1)(image, target)
        drawn = torch.rand(())
        assert result is image
        assert same is target
        torch.manual_seed(0)
        assert torch.equal(torch.rand(2)[1], drawn)


def test_object_crop_probability_is_obeyed():
    torch.manual_seed(0)
    image, target = draw()
    assert RandomObjectCrop(p=0)(image, target)[0] is image
    changed = sum(RandomObjectCrop(p=0.5)(image, target)[0] is not image for _ in range(400))
    # at most half: RandomIoUCrop itself keeps the image in about one of seven tries
    assert 100 < changed < 230


@pytest.mark.parametrize("make", [lambda: Letterbox((0, 5)), lambda: Letterbox((5,)), lambda: RandomObjectCrop(p=1.5)])
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_a_target_without_boxes_cannot_be_cropped():
    with pytest.raises(TypeError, match="target with boxes"):
        RandomObjectCrop(p=1)(draw()[0], {"labels": torch.zeros(1)})


def test_transforms_pickle_and_show_their_arguments():
    for transform in (Letterbox((5, 6), fill=3), RandomObjectCrop(p=0.25)):
        assert repr(pickle.loads(pickle.dumps(transform))) == repr(transform)
    assert "size=(5, 6), fill=3" in repr(Letterbox((5, 6), fill=3))
    assert "p=0.25" in repr(RandomObjectCrop(p=0.25))
