"""The published bound of ``decode="fast"``: small results, and views that reach beyond the image."""

from __future__ import annotations

import itertools

import pytest
import torch
from torchvision import tv_tensors

from lit_loader.images import decode_image, open_image
from lit_loader.transforms import landmark_transforms
from tests.support.photo_like import jpeg, photo_like
from tests.support.read_both_ways import assert_within_bound
from tests.support.seeded import seeded

SIZES = (8, 16, 32, 64, 128)
TURNED = {"rotation": 30, "scale": (0.75, 1.25), "hflip": 0}
# Fine texture, and sizes that 8 does not divide.
PHOTOGRAPHS = (
    "coco_small/images/000000343934.jpg",
    "mmpose_samples/coco/000000040083.jpg",
    "mmpose_samples/coco/000000197388.jpg",
    "mmpose_samples/cofw/001766.jpg",
    "voc_coco_mmdet/VOCdevkit/VOC2012/JPEGImages/000001.jpg",
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    paths = []
    for seed, (height, width) in enumerate(((239, 317), (425, 639), (322, 235))):
        paths.append(root / f"{seed}.jpg")
        paths[-1].write_bytes(jpeg(photo_like(height, width, seed=seed)))
    return paths


def boxes(height, width):
    """Boxes in the middle, and in each corner, so that a margin reaches beyond the image."""
    shares = ((0.3, 0.3, 0.7, 0.7), (0, 0, 0.6, 0.5), (0.3, 0.4, 1, 1), (0.1, 0.02, 0.95, 0.99))
    return torch.tensor(shares) * torch.tensor([width, height, width, height])


def check_sample(path, transform, box, *, seed):
    image = tv_tensors.Image(decode_image(path))
    target = {"boxes": tv_tensors.BoundingBoxes(box[None], format="XYXY", canvas_size=image.shape[-2:])}
    exact, _ = seeded(seed, transform, image, target)
    fast, _ = seeded(seed, transform.read, open_image(path), target)
    difference = (exact.double() - fast.double()).abs()
    assert_within_bound(difference, f"{path.name} {box.tolist()} {tuple(exact.shape)}")


def assert_bound_of_landmarks(paths, sizes, settings):
    for path, size in itertools.product(paths, sizes):
        for seed, box in enumerate(boxes(*open_image(path).size)):
            fill = (0, 255)[seed % 2]
            transform = landmark_transforms(bool(settings), size=size, fill=fill, to_float=False, **settings)
            check_sample(path, transform, box, seed=seed)


@pytest.mark.parametrize("settings", [{}, TURNED], ids=["upright", "turned"])
@pytest.mark.parametrize("size", SIZES)
def test_small_results_and_views_with_fill_stay_within_the_published_bound(generated, size, settings):
    assert_bound_of_landmarks(generated, [size], settings)


@pytest.mark.parametrize("settings", [{}, TURNED], ids=["upright", "turned"])
def test_small_results_of_photographs_stay_within_the_published_bound(shared_data, settings):
    assert_bound_of_landmarks([shared_data / name for name in PHOTOGRAPHS], SIZES, settings)
