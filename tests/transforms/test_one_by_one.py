"""A composition draws what its transforms draw one by one, with the same result."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import (
    DecodeAwareCompose,
    Letterbox,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    ToFloat32,
    ToUInt8,
)
from tests.support.seeded import seeded

HEIGHT = 90
WIDTH = 120
ROWS = {
    "crop and flips": [RandomResizedCrop(40), RandomHorizontalFlip(), RandomVerticalFlip(), ToUInt8()],
    "crop and flips, float": [RandomResizedCrop(40), RandomVerticalFlip(), ToFloat32()],
    "flips around": [RandomHorizontalFlip(), RandomResizedCrop((30, 50)), RandomVerticalFlip(), ToUInt8()],
    "flips that undo each other": [RandomHorizontalFlip(1), v2.Resize(30), RandomHorizontalFlip(1), ToUInt8()],
    "two crops": [RandomResizedCrop(60), RandomResizedCrop(40), RandomHorizontalFlip(), ToUInt8()],
    "a crop that is not the usual one": [
        RandomHorizontalFlip(),
        RandomResizedCrop(40, interpolation=v2.InterpolationMode.NEAREST),
        RandomHorizontalFlip(),
        RandomResizedCrop(20),
    ],
    "something drawn in between": [
        RandomHorizontalFlip(),
        v2.RandomPhotometricDistort(),
        RandomResizedCrop(40),
        v2.RandomResizedCrop(30),
        RandomVerticalFlip(),
        ToUInt8(),
    ],
    "pixels in between": [RandomHorizontalFlip(), Letterbox((50, 50)), RandomHorizontalFlip(), RandomVerticalFlip()],
    "compositions": [v2.Compose([RandomHorizontalFlip(), RandomResizedCrop(40)]), RandomVerticalFlip(), ToUInt8()],
    "after the end": [RandomResizedCrop(40), ToUInt8(), RandomHorizontalFlip(), RandomResizedCrop(20)],
}


def one_by_one(transforms, image, target):
    for transform in transforms:
        image, target = transform(image, target)
    return image, target


@pytest.mark.parametrize("row", ROWS)
def test_numbers_and_results_are_those_of_the_transforms_one_by_one(row):
    image = tv_tensors.Image(torch.randint(0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8).permute(2, 0, 1))
    boxes = tv_tensors.BoundingBoxes([[10.0, 20, 50, 80]], format="XYXY", canvas_size=(HEIGHT, WIDTH))
    for seed in range(16):
        expected, expected_target = seeded(seed, one_by_one, ROWS[row], image, {"boxes": boxes})
        state = torch.get_rng_state()
        result, target = seeded(seed, DecodeAwareCompose(ROWS[row]), image, {"boxes": boxes})
        assert torch.equal(torch.get_rng_state(), state)
        assert type(result) is tv_tensors.Image
        assert torch.equal(result, expected)
        assert torch.equal(target["boxes"], expected_target["boxes"])


RESULTS = {
    "dict": [lambda image, target: {"image": image, "target": target}],
    "object": [lambda image, target: image.shape],
    "nothing": [lambda image, target: None],
    "list, then tuple": [lambda image, target: [image, target], lambda image, target: (target, image)],
    "list, then flip": [lambda image, target: [image, target], RandomHorizontalFlip(1)],
    "three values": [lambda image, target: (image, target, 1), lambda image, target, more: (image, more)],
}


@pytest.mark.parametrize("name", RESULTS)
def test_any_result_of_a_transform_is_passed_on_as_in_torchvision(name):
    image = tv_tensors.Image(torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8))
    expected, result = (
        kind([v2.Resize(16), *RESULTS[name]])(image, {"a": 1}) for kind in (v2.Compose, DecodeAwareCompose)
    )
    assert type(result) is type(expected)
    assert str(result) == str(expected)
