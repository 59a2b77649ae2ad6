"""Transforms that no preset, or only some, can use: refused at construction or with the first sample, with a remedy."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torchvision.transforms
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.errors import SettingError
from lit_loader.transforms import classification_transforms, detection_transforms, landmark_transforms
from tests.support.drawn_samples import draw

PLACES = ("extra_before", "extra_after")
AUTO_AUGMENT = (v2.AutoAugment, v2.RandAugment, v2.TrivialAugmentWide, v2.AugMix)

PRESETS_OF_OBJECTS = {
    "detection": (detection_transforms, PLACES),
    "landmarks": (landmark_transforms, PLACES),
    "classification of crops": (partial(classification_transforms, crop=True), ("extra_before",)),
}


@pytest.mark.parametrize("kind", AUTO_AUGMENT)
@pytest.mark.parametrize("task", PRESETS_OF_OBJECTS)
def test_auto_augment_is_refused_where_boxes_would_stay_behind(task, kind):
    preset, places = PRESETS_OF_OBJECTS[task]
    for place in places:
        for transforms in ([kind()], [v2.Identity(), v2.RandomApply([v2.RandomChoice([kind()])])]):
            position = len(transforms) - 1
            with pytest.raises(
                SettingError, match=rf"^{place}\[{position}\].*{kind.__name__}.* would move pixels without .*, which "
                rf"{task} needs; use .*ColorJitter.*RandomAffine.*AlbumentationsTransform$"
            ):  # fmt: skip
                preset(False, **{place: transforms})


class FlipSubclass(v2.RandomHorizontalFlip):
    """A subclass of torchvision's flip."""


def of_image(image):
    """Return the image, without a target."""
    return image


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([v2.ColorJitter], r"extra_after\[0\]='ColorJitter' is a class.*give an instance, ColorJitter\(\.\.\.\)"),
        ([partial(v2.ColorJitter, 0.2)], r"is a class, .*; in YAML leave out _partial_"),
        (["ColorJitter"], r"'ColorJitter' is text.*_target_: torchvision.transforms.v2.ColorJitter"),
        ([{"num_ops": 2}], "is a mapping.*_target_: torchvision.transforms.v2.NAME"),
        ([v2.Identity(), None], r"extra_after\[1\]=None is a NoneType, expected a transform; give a callable"),
        ([torchvision.transforms.RandomRotation(5)], "do not know boxes.*use torchvision.transforms.v2.RandomRotation"),
        ([torchvision.transforms.Lambda(of_image)], "do not know boxes.*use torchvision.transforms.v2.Lambda"),
        (v2.ColorJitter(0.2), r"is one transform, expected a sequence of them; put it into a list"),
        ("ColorJitter", r"'ColorJitter' should be a sequence of transforms; give a list"),
        ({"_target_": "x"}, "should be a sequence of transforms"),
        ([v2.MixUp(num_classes=2)], "mixes the images of a batch; .*mixing=batch_mixup; .*batch_transforms"),
        ([v2.FiveCrop(20)], "returns several images; use RandomCrop"),
        ([v2.SanitizeBoundingBoxes()], "no other field of their objects; remove it; .*min_box_size"),
        ([v2.ConvertBoundingBoxFormat("XYWH")], "changes the format of boxes"),
        ([v2.Normalize([0.5], [0.5])], "needs float images, and images are uint8 there; give .*NormalizeBatch"),
        ([v2.RandomRotation(9, expand=True)], "can differ from the image by a pixel; rotate without expand=True"),
        ([v2.Lambda(of_image, tv_tensors.Image)], r"not called for all boxes, .*detection.*; use .*\(.*TVTensor"),
        ([of_image], r"takes only an image.*take \(image, target\), and return both"),
        ([FlipSubclass()], "subclass of torchvision's flip.*use lit_loader.transforms.RandomHorizontalFlip"),
    ],
)
def test_unusable_transforms_are_refused_at_construction_with_the_remedy(transforms, message):
    with pytest.raises(SettingError, match=message):
        detection_transforms(False, extra_after=transforms)


def test_a_transform_of_albumentations_is_refused_at_construction():
    albumentations = pytest.importorskip("albumentations")
    flip = albumentations.HorizontalFlip(p=1)
    for transform in (flip, v2.RandomApply([flip]), albumentations.Compose([flip])):
        with pytest.raises(SettingError, match=r"is of Albumentations, .*; use .*AlbumentationsTransform\(A.Compose"):
            classification_transforms(False, extra_after=[transform])


def test_a_lambda_of_images_suits_presets_whose_boxes_do_not_matter():
    transforms = [v2.Lambda(of_image, tv_tensors.Image)]
    classification_transforms(False, extra_before=transforms, extra_after=transforms)
    classification_transforms(False, crop=True, extra_after=transforms)
    with pytest.raises(SettingError, match=r"extra_before\[0\]"):
        classification_transforms(False, crop=True, extra_before=transforms)


def without_target(image, target):
    """Return the image alone."""
    return image


def cut_pixels(image, target):
    """Crop the image, and leave the boxes where they were."""
    return image[:, 20:], target


def as_pil(image, target):
    """Convert the image."""
    return v2.functional.to_pil_image(image), target


def cut_masks(image, target):
    """Crop masks, and neither the image nor the boxes."""
    return image, {**target, "masks": tv_tensors.Mask(target["masks"][:, 10:])}


def cut_boxes(image, target):
    """Remove a box without its label."""
    return image, {**target, "boxes": tv_tensors.wrap(target["boxes"][:1], like=target["boxes"])}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_target, r"returned Image instead of \(image, target\); return both"),
        (cut_pixels, r"an image of height and width \(90, 150\) with boxes for \(110, 150\); move target\['boxes'\]"),
        (as_pil, r"returned Image, expected an image tensor .*v2.ToImage"),
        (cut_masks, r"of height and width \(110, 150\) with masks for \(100, 150\); move"),
        (cut_boxes, "has 2 rows for 1 boxes"),
    ],
)
def test_a_function_that_breaks_a_sample_is_refused(function, message):
    image, target = draw()
    target["masks"] = tv_tensors.Mask(torch.ones((2, 110, 150), dtype=torch.uint8))
    with pytest.raises(ValueError, match=message):
        detection_transforms(False, extra_before=[function])(image, target)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("field", ["boxes", "masks", "keypoints"])
@pytest.mark.parametrize("preset", [detection_transforms, landmark_transforms])
def test_objects_that_lost_their_type_are_refused_by_the_name_of_the_transform(preset, field, place):
    def calculate(image, target):
        return image, {**target, field: target[field] + 0}

    image, target = draw(objects=(0,))
    target["masks"] = tv_tensors.Mask(torch.ones((1, 110, 150), dtype=torch.uint8))
    message = rf"^{place}\[0\]=.*calculate' returned {field} as Tensor, .*; return tv_tensors.wrap\({field}, like="
    with pytest.raises(SettingError, match=message):
        preset(False, **{place: [calculate]})(image, target)
