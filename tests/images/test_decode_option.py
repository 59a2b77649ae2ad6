"""The option ``decode="fast"``: the same samples but for pixels, the same bits inline and in all workers."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import DataLoader, DetectionDataset
from lit_loader.annotations.formats import read_annotations
from lit_loader.datasets import ClassificationDataset
from lit_loader.images import EncodedImage, ImageReading, decode_image
from lit_loader.transforms import CropToObjects, DecodeAwareCompose, classification_transforms, detection_transforms
from tests.support.photo_like import jpeg, photo_like
from tests.support.seeded import seeded

NUM_IMAGES = 8


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for number in range(NUM_IMAGES):
        path = root / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(photo_like(120 + number, 161, seed=number)))
    return read_annotations("image_folder", root, use_cache=False, num_workers=0, progress=False)


@pytest.fixture
def opened(monkeypatch):
    """The regions that were decoded."""
    samples = []

    plain = EncodedImage.read_region

    def noting(image, region, *, zoom):
        samples.append(region)
        return plain(image, region, zoom=zoom)

    monkeypatch.setattr(EncodedImage, "read_region", noting)
    return samples


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        equal = torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value
        assert equal, name


def test_fast_samples_differ_from_exact_ones_in_pixels_alone_and_those_are_of_a_full_decode(table, opened):
    transforms = detection_transforms(True, size=32, photometric=0.5)
    exact, fast = (
        DetectionDataset(table, transforms=transforms, reading=ImageReading(decode=decode))
        for decode in ("exact", "fast")
    )
    for index in range(NUM_IMAGES):
        expected = seeded(index, exact.__getitem__, index)
        sample = seeded(index, fast.__getitem__, index)
        assert len(opened) == index + 1
        decoded = tv_tensors.Image(decode_image(table.image_path(index)))
        assert torch.equal(seeded(index, transforms, decoded, expected[1])[0], expected[0])
        same(sample[1], expected[1])
        assert (sample[0] - expected[0]).abs().mean() < 0.02
        assert not torch.equal(sample[0], expected[0])


def test_transforms_of_others_get_every_pixel(table, opened):
    def user(image, target):
        assert type(image) is tv_tensors.Image
        return image, target

    for transforms in (user, v2.Compose([user]), None):
        exact, fast = (
            DetectionDataset(table, transforms=transforms, reading=ImageReading(decode=decode))
            for decode in ("exact", "fast")
        )
        assert torch.equal(fast[0][0], exact[0][0])
    assert not opened


@pytest.mark.parametrize("crop", [True, False])
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_classification_gives_what_it_gives_with_whole_targets(table, decode, crop):
    """It leaves targets out where no transform can look at them."""
    transforms = classification_transforms(True, size=32, crop=crop, resize="crop", scale=(0.5, 1), photometric=0.5)
    unit = "object" if crop else "image"
    dataset = ClassificationDataset(table, transforms=transforms, sample_unit=unit, reading=ImageReading(decode=decode))
    detection = DetectionDataset(
        dataset.table, transforms=transforms, first_label=0, reading=ImageReading(decode=decode)
    )
    for index in range(4):
        image, label, position, _ = seeded(index, dataset.__getitem__, index)
        assert torch.equal(image, seeded(index, detection.__getitem__, index)[0])
        assert (label, position) == (int(detection[index][1]["labels"]), index)


def test_classification_keeps_the_targets_for_transforms_that_look_at_them(table):
    seen = []

    def user(image, target):
        seen.append(target["boxes"])
        return image, target

    for transforms in (
        user,
        DecodeAwareCompose([v2.Resize([8, 8]), user]),
        DecodeAwareCompose([CropToObjects(size=8)]),
    ):
        ClassificationDataset(table, transforms=transforms, reading=ImageReading(decode="fast"))[0]
    assert [len(boxes) for boxes in seen] == [1, 1]


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "fork"},
    ],
    ids=["threads", "two processes", "one process"],
)
def test_fast_batches_have_the_same_bits_inline_in_threads_and_in_processes(table, workers):
    transforms = DecodeAwareCompose(
        [
            v2.RandomResizedCrop(24),
            *classification_transforms(True, size=24, resize="crop", photometric=0.8, rotation=5).transforms,
        ]
    )
    dataset = ClassificationDataset(table, transforms=transforms, reading=ImageReading(decode="fast"))

    def epoch(**settings):
        with DataLoader(dataset, batch_size=3, shuffle=True, seed=5, collate_fn=default_collate, **settings) as loader:
            return [[part.clone() for part in batch] for batch in loader]

    inline = epoch()
    batches = epoch(**workers)
    assert len(inline) == len(batches) == 3
    for ours, theirs in zip(batches, inline, strict=True):
        assert all(torch.equal(value, other) for value, other in zip(ours, theirs, strict=True))
