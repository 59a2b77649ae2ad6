"""Transforms that a user adds to a preset: marks land where they are drawn, rows stay aligned, misuse is refused."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.transforms import (
    Letterbox,
    RandomHorizontalFlip,
    SanitizeObjects,
    classification_transforms,
    detection_transforms,
    landmark_transforms,
)
from tests.support.drawn_samples import PAIRS, check_boxes, check_marks, draw
from tests.support.seeded import seeded

BILINEAR = v2.InterpolationMode.BILINEAR
PLACES = ("extra_before", "extra_after")
AUTO_AUGMENT = (v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide, v2.AugMix)

# transform, whether it mirrors, tolerance of points in pixels
MOVING = {
    "affine": (v2.RandomAffine(20, (0.2, 0.2), (0.8, 1.2), 10, interpolation=BILINEAR), 0, 0.4),
    "rotation": (v2.RandomRotation(40, interpolation=BILINEAR), 0, 0.4),
    "perspective": (v2.RandomPerspective(0.3, p=1), 0, 0.5),
    "strong perspective": (v2.RandomPerspective(0.7, p=1), 0, 1.5),
    "crop": (v2.RandomCrop((90, 100)), 0, 0.3),
    "resized crop": (v2.RandomResizedCrop((96, 120), (0.4, 1)), 0, 0.3),
    "zoom out": (v2.RandomZoomOut(p=1, side_range=(1.0, 2.0)), 0, 0.3),
    "jitter of scale": (v2.ScaleJitter((110, 150), (0.6, 1.4)), 0, 0.3),
    "flip": (v2.RandomHorizontalFlip(p=1), 1, 0.1),
    "flip of lit_loader": (RandomHorizontalFlip(p=1), 1, 0.1),
    "flip in a container": (v2.RandomApply([v2.RandomOrder([v2.RandomVerticalFlip(p=1)])], p=1), 1, 0.1),
    "choice": (v2.RandomChoice([v2.RandomRotation(30, BILINEAR), v2.Pad(9), v2.Compose([v2.Pad(3)])]), 0, 0.4),
    "several": (v2.Compose([v2.RandomCrop((90, 120)), v2.RandomAffine(30, (0.3, 0.3), None, 0, BILINEAR)]), 0, 0.5),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MOVING)
def test_marks_land_where_they_are_drawn_after_a_transform_that_moves_objects(name, place):
    transform, mirrors, tolerance = MOVING[name]
    preset = detection_transforms(True, hflip=0, flip_pairs=PAIRS, **{place: [transform]})
    num_seen = 0
    for seed in range(20):
        image, target = seeded(seed, preset, *draw(objects=(seed % 2,)))
        num_seen += check_marks(image, target, tolerance=tolerance, mirrors=mirrors)
        check_boxes(image, target, tolerance=2.5, turned=True)
    assert num_seen > 12


@pytest.mark.parametrize("name", [name for name in MOVING if "crop" not in name and name != "several"])
def test_marks_land_in_a_landmark_crop(name):
    transform, mirrors, tolerance = MOVING[name]
    num_seen = 0
    for place in PLACES:
        preset = landmark_transforms(True, size=96, hflip=0, flip_pairs=PAIRS, **{place: [transform]})
        for seed in range(10):
            image, target = seeded(seed, preset, *draw(objects=(seed % 2,)))
            assert len(target["boxes"]) == len(target["keypoints"]) == 1
            num_seen += check_marks(image, target, tolerance=2 * tolerance, mirrors=mirrors)
    assert num_seen > 12


@pytest.mark.parametrize("place", PLACES)
def test_a_landmark_object_that_leaves_the_image_stays_as_a_row_without_present_points(place):
    def move(value):
        return v2.functional.affine(value, 0, [200, 0], 1.0, [0, 0])

    preset = landmark_transforms(False, size=64, **{place: [v2.Lambda(move, tv_tensors.TVTensor)]})
    _, target = preset(*draw(objects=(1,)))
    assert target["boxes"].shape == (1, 4)
    assert target["visibility"].tolist() == [[0, 0, 0]]
    # torchvision cuts boxes at the edge, so this one has no area.
    assert target["boxes"][0, 0] == target["boxes"][0, 2]


def masks_of_boxes():
    masks = torch.zeros((2, 110, 150), dtype=torch.uint8)
    masks[0, 10:60, 12:62] = 1
    masks[1, 48:98, 78:138] = 1
    return tv_tensors.Mask(masks)


def test_masks_and_rows_follow_an_object_that_leaves_the_image():
    crop = v2.Lambda(lambda value: v2.functional.crop(value, 40, 70, 70, 80), tv_tensors.TVTensor)
    image, target = draw()
    target |= {"masks": masks_of_boxes(), "iscrowd": torch.tensor([0, 1])}
    new_image, result = detection_transforms(False, extra_before=[crop], to_float=False)(image, target)
    assert tuple(new_image.shape) == (3, 70, 80)
    assert result["labels"].tolist() == [2]
    assert result["iscrowd"].tolist() == [1]
    torch.testing.assert_close(result["boxes"].as_subclass(torch.Tensor), torch.tensor([[8.0, 8, 68, 58]]))
    assert torch.equal(result["masks"].as_subclass(torch.Tensor), masks_of_boxes()[1:, 40:, 70:])
    assert result["keypoints"].shape == (1, 3, 2)


def test_a_box_on_the_rim_gets_no_area_from_a_later_rotation():
    # The crop clamps the second box to a segment on the rim, whose rotation would enclose an area.
    crop = v2.Lambda(lambda value: v2.functional.crop(value, 0, 0, 110, 70), tv_tensors.TVTensor)
    rotation = v2.RandomRotation((45, 45))
    bare = v2.Compose([crop, rotation, SanitizeObjects()])(*draw())[1]
    assert bare["labels"].tolist() == [1, 2]
    _, target = detection_transforms(False, extra_before=[crop, rotation])(*draw())
    assert target["labels"].tolist() == [1]


def test_a_point_off_the_canvas_stays_absent_when_a_later_transform_brings_it_back():
    crop = v2.Lambda(lambda value: v2.functional.crop(value, 0, 0, 110, 45), tv_tensors.TVTensor)
    _, target = detection_transforms(False, extra_before=[crop, v2.Pad(40)])(*draw(objects=(0,)))
    assert target["visibility"].tolist() == [[2, 0, 2]]


@pytest.mark.parametrize("flip", [v2.RandomHorizontalFlip(p=0), v2.RandomVerticalFlip(p=1), RandomHorizontalFlip()])
@pytest.mark.parametrize("preset", [detection_transforms, partial(landmark_transforms, hflip=0)])
def test_a_flip_of_points_without_pairs_is_refused_in_the_first_sample(flip, preset):
    for extras in ([flip], [v2.RandomApply([flip], p=1)]):
        with pytest.raises(SettingError, match=r"flip_pairs=None but .* label left points as right.*flip_pairs=\[\]"):
            preset(False, extra_after=extras)(*draw(objects=(0,)))


def flip(sample, *, axis=-1, pairs=()):
    """Flip a sample; with pairs, left and right exchange their names."""
    image, target = sample
    flip_leaf = v2.functional.horizontal_flip if axis == -1 else v2.functional.vertical_flip
    moved = {
        name: flip_leaf(value) if isinstance(value, tv_tensors.TVTensor) else value for name, value in target.items()
    }
    order = [0, 1, 2]
    for first, second in pairs:
        order[first] = second
        order[second] = first
    moved["keypoints"] = tv_tensors.wrap(moved["keypoints"][:, order], like=moved["keypoints"])
    return flip_leaf(image), {**moved, "visibility": moved["visibility"][:, order]}


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("flip_pairs", [PAIRS, None])
@pytest.mark.parametrize("rotation", [0, 30, 90])
def test_a_users_flip_that_does_not_exchange_left_and_right_is_refused(axis, flip_pairs, rotation):
    def wrong(image, target):
        return flip(v2.RandomRotation((rotation, rotation))(image, target), axis=axis)

    def right(image, target):
        return flip(v2.RandomRotation((rotation, rotation))(image, target), axis=axis, pairs=PAIRS)

    settings = {"hflip": 0, "flip_pairs": flip_pairs}
    with pytest.raises(
        SettingError, match=r"mirrored points without exchanging left and right; .*RandomHorizontalFlip"
    ):
        detection_transforms(False, extra_after=[wrong], **settings)(*draw())
    detection_transforms(False, extra_after=[right], **settings)(*draw())
    detection_transforms(False, extra_after=[wrong], **{**settings, "flip_pairs": []})(*draw())
    lambda_flip = v2.Lambda(v2.functional.horizontal_flip, tv_tensors.TVTensor)
    with pytest.raises(SettingError, match="mirrored points"):
        detection_transforms(False, extra_after=[v2.RandomApply([lambda_flip], p=1)], **settings)(*draw())


def test_flips_draw_and_mirror_as_torchvisions_do():
    image, target = draw()
    target = {"boxes": target["boxes"], "labels": target["labels"]}
    for seed in range(6):
        expected, expected_target = seeded(seed, v2.RandomHorizontalFlip(), image, target)
        preset = detection_transforms(False, extra_after=[v2.RandomHorizontalFlip()], to_float=False)
        result, result_target = seeded(seed, preset, image, target)
        assert torch.equal(result, expected)
        assert torch.equal(result_target["boxes"], expected_target["boxes"])


@pytest.mark.parametrize("kind", AUTO_AUGMENT)
@pytest.mark.parametrize("crop", [False, True], ids=["whole images", "crops"])
def test_auto_augment_changes_the_pixels_of_classification_as_torchvision_does(kind, crop):
    image, target = draw(objects=(1,))
    settings = {"size": 64, "crop": crop, "hflip": 0, "to_float": False}
    plain = classification_transforms(False, **settings)
    preset = classification_transforms(False, extra_after=[kind()], **settings)
    view, view_target = plain(image, target)
    num_changed = 0
    for seed in range(8):
        result, result_target = seeded(seed, preset, image, target)
        assert torch.equal(result, seeded(seed, kind(), view))
        assert torch.equal(result_target["keypoints"], view_target["keypoints"])
        num_changed += not torch.equal(result, view)
    assert num_changed >= 4


class Doubled(nn.Module):
    """A module of a user that enlarges images with their targets."""

    def forward(self, image, target):
        return v2.Resize([220, 300])(image, target)


def test_every_kind_of_transform_can_be_added_in_both_places():
    transforms = [
        Doubled(),
        nn.Sequential(v2.GaussianNoise(), v2.RandomErasing(p=1)),
        Letterbox((220, 320)),
        v2.ColorJitter(0.2, 0.2),
        v2.GaussianBlur(3),
    ]
    for preset in (detection_transforms, classification_transforms, landmark_transforms):
        for place in PLACES:
            transform = pickle.loads(pickle.dumps(preset(False, **{place: transforms})))
            image, target = transform(*draw(objects=(0,)))
            assert image.dtype == torch.float32
            assert place == "extra_before" or image.shape[-2:] == (220, 320)
            assert target["boxes"].canvas_size == image.shape[-2:]
            assert len(target["boxes"]) == 1


def test_extras_come_before_all_and_after_the_resize():
    sizes = []

    def record(image, target):
        sizes.append((tuple(image.shape[-2:]), image.dtype))
        return image, target

    for preset in (detection_transforms, classification_transforms, landmark_transforms):
        preset(True, size=64, hflip=0, extra_before=[record], extra_after=[record])(*draw(objects=(0,)))
    final = [(64, 87), (64, 64), (64, 64)]
    assert sizes == [size for shape in final for size in (((110, 150), torch.uint8), (shape, torch.uint8))]


def test_a_float_pipeline_may_end_with_a_normalisation():
    normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    plain, _ = detection_transforms(False)(*draw())
    image, _ = detection_transforms(False, extra_after=normalize)(*draw())
    torch.testing.assert_close(image, (plain - 0.5) / 0.25)


def brighter(image):
    """Transform an image without a target."""
    return v2.functional.adjust_brightness(image, 1.5)


def test_an_image_alone_and_a_label_pass_through_classification():
    image, _ = draw()
    preset = classification_transforms(False, size=32, extra_after=[v2.RandAugment(), v2.RandomRotation(10), brighter])
    expected = seeded(3, preset, image)
    result, label = seeded(3, preset, image, 5)
    assert torch.equal(result, expected)
    assert label == 5
