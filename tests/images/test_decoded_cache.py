"""The decoded cache: the same samples as without it, one copy per host, and never a stale image."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from lit_loader.annotations.table import AnnotationTable
from lit_loader.datasets import DetectionDataset, LandmarkDataset
from lit_loader.errors import ImageError
from lit_loader.foundation.byte_sizes import byte_count
from lit_loader.images import CacheSettings, decode_image
from lit_loader.images.reading import ImageReading
from lit_loader.transforms import detection_transforms
from tests.support.decoded_images import files_in
from tests.support.drawn_set import SIZE
from tests.support.seeded import seeded


def assert_same(sample, other):
    assert torch.equal(sample[0], other[0])
    assert sample[0].stride() == other[0].stride()
    assert sample[1].keys() == other[1].keys()
    for name, value in sample[1].items():
        assert type(value) is type(other[1][name])
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other[1][name]))


@pytest.mark.parametrize("decode", ["exact", "fast"])
@pytest.mark.parametrize("size", [None, max(SIZE)])
def test_full_sized_images_are_the_same_samples_as_without_a_cache(table, cached, decode, size):
    transforms = detection_transforms(
        train=True, size=(40, 50), photometric=0.5, flip_pairs=table.flip_pairs, per_object=["finish"]
    )
    settings = {"keypoints": True, "attributes": "all", "reading": ImageReading(decode=decode)}
    for transform in (None, transforms):
        plain = DetectionDataset(table, transforms=transform, **settings)
        cached_dataset = DetectionDataset(table, transforms=transform, cache=cached(cache_size=size), **settings)
        for position in range(len(table.image_paths)):
            sample = seeded(position, plain.__getitem__, position)
            assert_same(seeded(position, cached_dataset.__getitem__, position), sample)


def test_every_image_is_decoded_once_for_all_data_sets_that_read_it_alike(table, cached, decoded_paths):
    first = DetectionDataset(table, cache=cached())
    assert sorted(decoded_paths) == sorted(f"set/{name}" for name in table.image_paths)
    second = DetectionDataset(table, cache=cached())
    for position in range(len(first)):
        first[position], second[position]
    assert len(decoded_paths) == table.num_images
    assert first.cache.key == second.cache.key
    assert len(files_in(cached().folder)) == 1


@pytest.mark.parametrize(
    ("reading", "settings"), [({"exif_orientation": False}, {}), ({"max_pixels": 99999}, {}), ({}, {"cache_size": 32})]
)
def test_other_settings_are_another_cache(table, cached, reading, settings):
    plain = DetectionDataset(table, cache=cached())
    other = DetectionDataset(table, cache=cached(**settings), reading=ImageReading(**reading))
    assert other.cache.key != plain.cache.key
    assert len(files_in(cached().folder)) == 2


def test_samples_of_one_image_share_it(table, cached):
    objects = LandmarkDataset(table, cache=cached())
    names = list(dict.fromkeys(objects.table.image_paths))
    assert len(objects) > len(names)
    full_size = DetectionDataset(table.select([table.image_paths[:].index(name) for name in names]), cache=cached())
    assert objects.cache.key == full_size.cache.key
    plain = LandmarkDataset(table)
    for position in range(len(objects)):
        assert_same(objects[position], plain[position])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_a_smaller_size_shrinks_image_and_target_by_the_true_ratios(tmp_path, cached, turned, decode):
    side = (31, 77) if turned else (77, 31)
    (tmp_path / "set").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "set" / "0.png")
    table = AnnotationTable(
        root=tmp_path / "set", image_paths=["0.png"], class_names=["a"], offsets=[0, 1], labels=[0],
        boxes=np.array([[3, 5, 29, 30.5]], dtype=np.float32), keypoint_names=["p", "q"],
        keypoints=np.array([[[7, 9], [40.5, 40.5]]], dtype=np.float32),
        visibility=np.array([[2, 1]], dtype=np.uint8),
    )  # fmt: skip
    dataset = DetectionDataset(table, keypoints=True, cache=cached(cache_size=20), reading=ImageReading(decode=decode))
    image, target = dataset[0]
    full = decode_image(table.image_path(0))
    cached_size = (20, 8) if turned else (8, 20)  # 31 * 20 / 77 = 8.05
    assert image.shape == (3, *cached_size)
    assert torch.equal(image, functional.resize(full, list(cached_size), antialias=True))
    ratios = torch.tensor([cached_size[1] / side[0], cached_size[0] / side[1]], dtype=torch.float64)
    boxes = torch.tensor([[3, 5, 29, 30.5]], dtype=torch.float64) * ratios.repeat(2)
    assert torch.equal(target["boxes"], boxes.float())
    assert target["boxes"].canvas_size == target["keypoints"].canvas_size == cached_size
    points = torch.tensor([[[7, 9], [40.5, 40.5]]], dtype=torch.float64) * ratios
    assert torch.equal(target["keypoints"], points.float())
    assert target["visibility"].tolist() == [[2, 0]]  # judged in the image as decoded
    sides = target["boxes"][:, 2:] - target["boxes"][:, :2]
    assert torch.equal(target["area"], sides.prod(dim=1))


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_changed_is_decoded_again_when_the_data_set_is_made(table, cached, change):
    path = table.image_path(5)
    picture = Image.open(path)
    picture.save(path, format="BMP")  # which has one length for all pixels
    old_dataset = DetectionDataset(table, cache=cached())
    old = old_dataset[5][0].clone()
    stamp = path.stat()
    Image.fromarray(255 - np.array(picture)).save(path, format="PNG" if change == "size" else "BMP")
    later = stamp.st_mtime_ns + (change == "time")
    os.utime(path, ns=(stamp.st_atime_ns, later))
    assert (path.stat().st_size == stamp.st_size) == (change == "time")
    assert torch.equal(old_dataset[5][0], old)  # looked at when opened, as documented
    new_dataset = DetectionDataset(table, cache=cached())
    assert new_dataset.cache.key != old_dataset.cache.key
    assert torch.equal(new_dataset[5][0], decode_image(path))
    assert torch.equal(old_dataset[5][0], old)
    assert len(files_in(cached().folder)) == 1  # the stale one is gone


def test_an_image_that_cannot_be_decoded_fails_when_it_is_asked_for(table, cached):
    table.image_path(3).write_bytes(b"no image")
    table.image_path(6).unlink()
    plain = DetectionDataset(table)
    cached_dataset = DetectionDataset(table, cache=cached())
    for position in range(table.num_images):
        if position not in (3, 6):
            assert_same(cached_dataset[position], plain[position])
            continue
        with pytest.raises(ImageError) as expected_error:
            plain[position]
        with pytest.raises(ImageError) as error:
            cached_dataset[position]
        assert str(error.value) == str(expected_error.value)


@pytest.mark.parametrize(
    ("words", "count"),
    [(None, None), (7, 7), ("7", 7), ("8 GiB", 8 << 30), ("1.5kb", 1500), (" 2 TB ", 2 * 10**12), ("3b", 3)],
)
def test_a_budget_is_a_number_of_bytes_or_a_string_with_a_unit(words, count):
    assert byte_count(words) == count


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cache_budget", [0, -1, True, 1.5, "", "8 apples", "GiB", "-3 GB", "1e9", "0 GB"]),
        ("cache_size", [0, -5, 1.5, True, "64"]),
    ],
)
def test_budgets_and_sizes_that_are_not_positive_numbers_are_refused(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"{name}="):
            CacheSettings(**{name: value})


@pytest.mark.parametrize("cache", ["ram", "disk", None, 1])
def test_cache_argument_must_be_a_bool_or_settings(table, cache):
    with pytest.raises(TypeError, match=r"cache=.* is not a bool; give True, False or CacheSettings"):
        DetectionDataset(table, cache=cache)
