"""Transforms that no preset, or only some, can use: refused at construction or with the first sample, with a remedy."""

from __future__ import annotations

from functools import partial

import pytest
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
        ([v2.MixUp(num_classes=2)], "mixes the images of a batch; .*batch_transforms"),
        ([v2.FiveCrop(20)], "returns several images; use RandomCrop"),
        ([v2.SanitizeBoundingBoxes()], "no other field of their objects; remove it; .*min_box_size"),
        ([v2.ConvertBoundingBoxFormat("XYWH")], "changes the format of boxes"),
        ([v2.Normalize([0.5], [0.5])], "needs float images, and images are uint8 there; give .*NormalizeBatch"),
        ([v2.RandomRotation(9, expand=True)], "can differ from the image by a pixel; rotate without expand=True"),
        ([of_image], r"takes only an image.*take \(image, target\), and return both"),
        ([FlipSubclass()], "subclass of torchvision's flip.*use lit_loader.transforms.RandomHorizontalFlip"),
    ],
)
def test_unusable_transforms_are_refused_at_construction_with_the_remedy(transforms, message):
    with pytest.raises(SettingError, match=message):
        detection_transforms(False, extra_after=transforms)


def without_target(image, target):
    """Return the image alone."""
    return image


def cut_pixels(image, target):
    """Crop the image, and leave the boxes where they were."""
    return image[:, 20:], target


def as_pil(image, target):
    """Convert the image."""
    return v2.functional.to_pil_image(image), target


def cut_boxes(image, target):
    """Remove a box without its label."""
    return image, {**target, "boxes": tv_tensors.wrap(target["boxes"][:1], like=target["boxes"])}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_target, r"returned Image instead of \(image, target\); return both"),
        (cut_pixels, r"an image of height and width \(90, 150\) with boxes for \(110, 150\); move target\['boxes'\]"),
        (as_pil, r"returned Image, expected an image tensor .*v2.ToImage"),
        (cut_boxes, "has 2 rows for 1 boxes"),
    ],
)
def test_a_function_that_breaks_a_sample_is_refused(function, message):
    with pytest.raises(ValueError, match=message):
        detection_transforms(False, extra_before=[function])(*draw())
