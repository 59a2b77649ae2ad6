"""Sizes and padding of the letterbox, and images that the object crop cannot crop; `test_landing` checks pixels."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import DecodeAwareCompose, Letterbox, RandomObjectCrop
from lit_loader.transforms.geometry import letterbox_geometry
from tests.support.drawn_samples import draw
from tests.support.seeded import seeded


def test_letterbox_pads_with_fill_and_masks_with_zero():
    image, target = draw()
    target["masks"] = tv_tensors.Mask(torch.ones((3, 110, 150), dtype=torch.bool))
    image, target = Letterbox((150, 150), fill=114)(image, target)
    assert (image[:, :20] == 114).all()
    assert (image[:, 130:] == 114).all()
    assert not target["masks"][:, :20].any()
    assert target["masks"][:, 20:130].all()


def test_letterbox_of_the_same_aspect_ratio_is_a_resize():
    image, target = draw()
    target["masks"] = tv_tensors.Mask(torch.randint(2, (3, 110, 150), dtype=torch.uint8))
    letterbox = Letterbox((55, 75), fill=114)
    expected_image, expected_target = v2.Resize([55, 75])(image, target)
    for result, result_target in (letterbox(image, target), DecodeAwareCompose([letterbox])(image, target)):
        assert torch.equal(result, expected_image)
        assert all(torch.equal(result_target[name], expected_target[name]) for name in ("boxes", "masks"))


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
        result, result_target = seeded(0, RandomObjectCrop(p=1), image, target)
        next_draw = torch.rand(())
        assert result is image
        assert result_target is target
        assert torch.equal(seeded(0, torch.rand, 2)[1], next_draw)


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
