"""Lists of transforms: one compact line each, in order, without control characters."""

from __future__ import annotations

import pytest
from torch import nn
from torchvision.transforms import v2

from lit_loader.transforms import (
    AlbumentationsTransform,
    classification_transforms,
    describe,
    detection_transforms,
    landmark_transforms,
)


def test_a_preset_is_a_list_of_its_steps_with_the_arguments_that_are_set():
    preset = detection_transforms(
        True,
        photometric=0.5,
        zoom_out=0.25,
        iou_crop=0.3,
        rotation=10,
        vflip=0.125,
        size=600,
        max_size=1000,
        extra_before=[v2.RandomApply([v2.ColorJitter(0.2), v2.RandomHorizontalFlip()], p=0.1)],
        extra_after=[v2.RandomAffine(5, (0.1, 0.1))],
    )
    assert describe(preset) == [
        "RandomApply([ColorJitter(brightness=[0.8, 1.2]), RandomHorizontalFlip(p=0.5)], p=0.1)",
        "RandomPhotometricDistort(p=0.5)",
        "RandomZoomOut(p=0.25)",
        "RandomObjectCrop(p=0.3)",
        "RandomRotation(degrees=[-10, 10], interpolation=bilinear)",
        "RandomHorizontalFlip(p=0.5)",
        "RandomVerticalFlip(p=0.125)",
        "Resize(size=[600], max_size=1000)",
        "RandomAffine(degrees=[-5, 5], translate=[0.1, 0.1])",
        "SanitizeObjects()",
        "ToFloat32(planes=False)",
    ]


def test_presets_of_one_size_show_it():
    assert describe(classification_transforms(True, extra_after=[v2.RandAugment(), v2.RandomErasing(0.2)])) == [
        "RandomResizedCrop(size=[224, 224])",
        "RandomHorizontalFlip(p=0.5)",
        "RandAugment(num_ops=2, magnitude=9)",
        "RandomErasing(p=0.2)",
        "ToFloat32()",
    ]
    assert describe(landmark_transforms(False, size=96, margin=0.5, to_float=False)) == [
        "CropToObjects(size=[96, 96], margin=0.5)",
        "ToUInt8()",
    ]


class Own(nn.Module):
    """A module of a user."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.inner = nn.Identity()

    def extra_repr(self):
        return f"name={self.name}"


class Silent:
    """A callable with Python's own repr, which holds an address."""

    def __call__(self, image, target):
        return image, target


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a" * 500])
def test_a_users_transform_is_one_short_line_without_control_characters(name):
    (line,) = describe(Own(name))
    assert line.isprintable()
    assert len(line) <= 96
    assert line.startswith("Own(")
    assert line.endswith("...") == (len(name) > 100)


def test_lines_hold_no_addresses():
    def local(image, target):
        return image, target

    lines = describe([Silent(), local, v2.Lambda(local), AlbumentationsTransform(Silent())])
    assert lines[0] == "Silent()"
    assert "local" in lines[1]
    assert lines[3].startswith("AlbumentationsTransform(Silent()")
    assert not any("0x" in line for line in lines)


def test_nested_compositions_are_flat_and_an_empty_list_is_empty():
    nested = v2.Compose([v2.Compose([v2.Pad(2), nn.Sequential(v2.Grayscale())]), v2.Identity()])
    assert describe(nested) == ["Pad(padding=2)", "Grayscale()", "Identity()"]
    assert describe([]) == []
