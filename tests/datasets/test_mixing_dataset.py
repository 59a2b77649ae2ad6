"""`MixingDataset`: parts and mixed samples of lit_loader's data sets and of others."""

from __future__ import annotations

import pickle

import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import DetectionDataset, LandmarkDataset, MixingDataset, sample_key
from lit_loader.datasets import JoinedDataset
from lit_loader.errors import SettingError
from lit_loader.images import ImageReading, LazyImage
from lit_loader.mixing import MixSample
from lit_loader.transforms import detection_transforms
from tests.support.drawn_set import draw_set
from tests.support.toy_mixes import Added, Stacked


class Noise(torch.nn.Module):
    """Add noise to an image, which shows which draws a transform got."""

    def forward(self, image, target):
        noise = torch.randint(0, 50, image.shape, dtype=torch.uint8)
        return tv_tensors.wrap(image // 2 + noise, like=image), target


def same(sample, other):
    """Return True if two samples ``(image, target)`` have the same bits and types."""
    (image, target), (other_image, other_target) = sample, other
    pairs = [(image, other_image), *((target[name], other_target[name]) for name in target)]
    return list(target) == list(other_target) and all(
        type(a) is type(b) and (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b) for a, b in pairs
    )


def mixed(dataset, index, partner):
    with sample_key(position=index):
        part = dataset.read_part(index)
        return dataset.mixed_sample(index, part, [(0, dataset.read_part(partner))])


@pytest.mark.parametrize("decode", ["exact", "fast"])
@pytest.mark.parametrize("kind", ["preset", "preset with extras", "own", "none"])
def test_sample_without_partners_is_the_sample_of_the_data_set(tmp_path, kind, decode):
    transforms = {
        "preset": detection_transforms(True, size=32, photometric=0.5, iou_crop=0.5),
        "preset with extras": detection_transforms(True, size=32, extra_before=[Noise()], extra_after=[Noise()]),
        "own": Noise(),
        "none": None,
    }[kind]
    dataset = DetectionDataset(draw_set(tmp_path), transforms=transforms, reading=ImageReading(decode=decode))
    mixing = MixingDataset(dataset, Stacked())
    for index in (0, 3, len(dataset) - 1):
        with sample_key(position=index):
            expected = dataset[index]
        with sample_key(position=index):
            sample = mixing.mixed_sample(index, mixing.read_part(index), [])
        assert same(sample, expected)


def test_mixed_sample_is_transformed_after_mixing(tmp_path):
    dataset = DetectionDataset(draw_set(tmp_path), transforms=detection_transforms(False, size=(96, 64)))
    image, target = mixed(MixingDataset(dataset, [Stacked()]), 2, 3)
    assert image.shape == (3, 96, 64)
    assert image.dtype is torch.float32
    plain = DetectionDataset(dataset.table)
    boxes = torch.cat([plain[2][1]["boxes"], plain[3][1]["boxes"] + torch.tensor([0, 48, 0, 48])])
    torch.testing.assert_close(target["boxes"].as_subclass(torch.Tensor), boxes.as_subclass(torch.Tensor))
    assert target["image_id"] == 2


def test_parts_have_the_transforms_before_mixing(tmp_path):
    class Dark(torch.nn.Module):
        def forward(self, image, target):
            return tv_tensors.wrap(image // 4, like=image), target

    transforms = detection_transforms(False, extra_before=[Dark()], size=16)
    dataset = DetectionDataset(draw_set(tmp_path), transforms=transforms)
    part = MixingDataset(dataset, Stacked()).read_part(1, object_row=0)
    assert isinstance(part, MixSample)
    assert part.object_row == 0
    assert part.image.size == (48, 64)
    assert int(part.image.read().max()) <= 255 // 4


def test_part_of_a_fast_reading_is_not_decoded(tmp_path):
    table = draw_set(tmp_path, num_images=2, image_paths=["0.jpg", "1.jpg"])
    for number in range(2):
        Image.open(tmp_path / f"{number}.png").save(tmp_path / f"{number}.jpg")
    for transforms in (None, detection_transforms(True), v2.Identity()):
        dataset = DetectionDataset(table, transforms=transforms, reading=ImageReading(decode="fast"))
        image = dataset.open_sample(0).image
        assert isinstance(image, LazyImage)
        assert type(image).__name__ == "EncodedImage"


def test_transform_before_mixing_that_returns_floats_is_refused(tmp_path):
    to_float = v2.ToDtype(torch.float32, scale=True)
    dataset = DetectionDataset(draw_set(tmp_path), transforms=detection_transforms(True, extra_before=[to_float]))
    with pytest.raises(TypeError, match=r"uint8 image .* got torch.float32 \(3, 48, 64\).* extra_after") as raised:
        dataset.open_sample(3)
    assert any("sample 3, image" in note for note in raised.value.__notes__)


def test_failing_transform_after_mixing_names_the_sample(tmp_path):
    def fail(image, target):
        raise RuntimeError("boom")

    dataset = DetectionDataset(draw_set(tmp_path), transforms=fail)
    with pytest.raises(RuntimeError, match="boom") as raised:
        mixed(MixingDataset(dataset, Stacked()), 5, 1)
    assert [note for note in raised.value.__notes__ if "5.png" in note] == [
        f"while transforming sample 5, image {tmp_path}/5.png"
    ]


def test_joined_data_sets_read_each_part_from_its_own(tmp_path):
    parts = [DetectionDataset(draw_set(tmp_path / str(i), num_images=3 + i, seed=i)) for i in range(3)]
    dataset = MixingDataset(JoinedDataset(parts), Stacked())
    assert len(dataset) == 12
    for index, (part, row) in {0: (0, 0), 3: (1, 0), 6: (1, 3), 7: (2, 0), 11: (2, 4)}.items():
        assert torch.equal(dataset.read_part(index).image.read(), parts[part][row][0])
        assert dataset.sample_path(index) == parts[part].sample_path(row)
        assert same(mixed(dataset, index, index), mixed(MixingDataset(parts[part], Stacked()), row, row))


def test_own_mix_of_own_data_set_gets_its_samples():
    dataset = MixingDataset([torch.tensor(i) for i in range(5)], {"added": Added(), "off": None})
    assert mixed(dataset, 2, 3) == 302
    negative = MixingDataset(dataset.dataset, Added(), transforms=torch.neg)
    assert mixed(negative, 2, 3) == -302
    with sample_key():
        assert negative.mixed_sample(2, negative.read_part(2), []) == -2


def test_single_sample_is_refused_with_the_remedy():
    dataset = MixingDataset([1, 2], Added())
    with pytest.raises(TypeError, match=r"lit_loader.DataLoader\(dataset, seed=0\).*attribute `dataset`"):
        dataset[0]
    with pytest.raises(TypeError, match=r"lit_loader\.DataLoader"):
        next(iter(torch.utils.data.DataLoader(dataset)))


def test_pool_is_made_from_the_tables_of_all_data_sets(tmp_path):
    calls = []

    class Pooled(Stacked):
        def pool(self, tables):
            calls.append(tables)
            return self

    tables = [draw_set(tmp_path / str(i), num_images=3, seed=i) for i in range(2)]
    mixes = [Stacked(), Pooled()]
    dataset = MixingDataset(JoinedDataset([DetectionDataset(table) for table in tables]), mixes)
    assert [dataset.partner_pool(number) for number in range(2)] == [None, mixes[1]]
    assert MixingDataset([1], mixes).partner_pool(1) is mixes[1]
    assert calls == [tables, []]


def test_pickled_data_set_mixes_the_same_samples(tmp_path):
    dataset = MixingDataset(DetectionDataset(draw_set(tmp_path)), Stacked())
    assert same(mixed(pickle.loads(pickle.dumps(dataset)), 4, 7), mixed(dataset, 4, 7))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda table: MixingDataset([1], []), SettingError, "has no mix"),
        (lambda table: MixingDataset([1], {"mosaic": None}), SettingError, "has no mix"),
        (lambda table: MixingDataset([1], [Stacked(), 5]), TypeError, "contains 5 of type int; expected a"),
        (lambda table: MixingDataset([1], "mosaic"), TypeError, "of type str"),
        (lambda table: MixingDataset(LandmarkDataset(table), Stacked()), TypeError, "crops of objects"),
        (
            lambda table: MixingDataset(DetectionDataset(table), Stacked(), transforms=v2.Identity()),
            SettingError,
            "give them to that",
        ),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, make, error, message):
    table = draw_set(tmp_path)
    with pytest.raises(error, match=message):
        make(table)


def test_mix_that_returns_no_mix_sample_is_named(tmp_path):
    class Broken(Stacked):
        def apply(self, samples, rng):
            return samples[0].image

    with pytest.raises(TypeError, match="expected a MixSample from `apply` of Broken, got DecodedImage"):
        mixed(MixingDataset(DetectionDataset(draw_set(tmp_path)), Broken()), 0, 1)
