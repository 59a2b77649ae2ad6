"""`MixingDataset`: parts and mixed samples of lit_loader's data sets and of others."""

from __future__ import annotations

import pickle

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import (
    CopyPaste,
    DataLoader,
    DetectionDataset,
    LandmarkDataset,
    MixingDataset,
    MixUp,
    Mosaic,
    sample_key,
    sample_rng,
)
from lit_loader.collate import BatchMixing
from lit_loader.datasets import JoinedDataset
from lit_loader.errors import SettingError
from lit_loader.images import DecodedImage, ImageReading, LazyImage
from lit_loader.mixing import MixSample
from lit_loader.transforms import detection_transforms
from tests.support.drawn_set import draw_set
from tests.support.toy_mixes import Added, Stacked


class Stream(IterableDataset):
    """A stream with a length."""

    def __iter__(self):
        return iter([1])

    def __len__(self):
        return 1


class Noise(torch.nn.Module):
    """Add noise to an image, which shows which draws a transform got."""

    def forward(self, image, target):
        noise = torch.randint(0, 50, image.shape, dtype=torch.uint8)
        return tv_tensors.wrap(image // 2 + noise, like=image), target


def same(sample, other):
    """Return True if two samples ``(image, target)`` have the same bits and types."""
    image, target = sample
    other_image, other_target = other
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


class Wrapped:
    """Samples as ``wrap_dataset_for_transforms_v2`` returns them: an image, and a dict with boxes and labels."""

    def __init__(self, length=10):
        self.images = [tv_tensors.Image(torch.full((3, 40 + i, 50), 20 * i, dtype=torch.uint8)) for i in range(length)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        size = tuple(self.images[index].shape[1:])
        boxes = tv_tensors.BoundingBoxes([[5.0, 5, 35, 30]], format="XYXY", canvas_size=size)
        return self.images[index], {"image_id": index, "boxes": boxes, "labels": torch.tensor([index])}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_wrapped_data_set_of_torchvision_is_mixed_by_every_shipped_mix(num_workers):
    inner = Wrapped()
    mixes = [Mosaic(size=64, scale=(1.0, 1.0), min_visible=0), MixUp(), CopyPaste(num_objects=2, min_visible=0)]
    transforms = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Resize((32, 32))])
    dataset = MixingDataset(inner, mixes, transforms=transforms)
    loader = DataLoader(dataset, batch_size=5, shuffle=True, seed=0, num_workers=num_workers, collate_fn=list)
    samples = [sample for batch in loader for sample in batch]
    assert sorted(target["image_id"] for _, target in samples) == list(range(10))
    for image, target in samples:
        assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
        # Objects of a mosaic, of another image, and two that are pasted.
        assert len(target["labels"]) == len(target["boxes"]) >= 4
    # Nothing wrote to the images that the data set keeps.
    assert [image.unique().tolist() for image in inner.images] == [[20 * i] for i in range(10)]


def test_own_mix_of_own_data_set_gets_its_samples():
    dataset = MixingDataset([torch.tensor(i) for i in range(5)], {"added": Added(), "off": None})
    assert mixed(dataset, 2, 3) == 302
    negative = MixingDataset(dataset.dataset, Added(), transforms=torch.neg)
    assert mixed(negative, 2, 3) == -302
    with sample_key():
        assert negative.mixed_sample(2, negative.read_part(2), []) == -2


def test_own_mix_of_own_data_set_is_applied_by_the_loader():
    dataset = MixingDataset([torch.tensor(i) for i in range(8)], Added(p=0.5))
    first, second = [
        torch.cat(list(DataLoader(dataset, batch_size=4, seed=3, num_workers=workers))) for workers in (0, 2)
    ]
    assert torch.equal(first, second)
    assert (first % 100).tolist() == list(range(8))
    assert 0 < int((first >= 100).sum()) < 8


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
        (lambda table: MixingDataset([1], len), TypeError, "of type builtin_function_or_method; expected a"),
        (lambda table: MixingDataset([1], BatchMixing(mixup=1)), SettingError, "ClassificationDataModule"),
        (lambda table: MixingDataset([1], Added(), transforms=5), TypeError, "transforms=5 cannot be called"),
        (lambda table: MixingDataset(iter([1]), Added()), TypeError, "map data set .* got list_iterator"),
        (lambda table: MixingDataset(Stream(), Added()), TypeError, "map data set .* got Stream"),
        (lambda table: MixingDataset(MixingDataset([1], Added()), Added()), TypeError, "one MixingDataset as a list"),
        (
            lambda table: MixingDataset(Subset(MixingDataset([1], Added()), [0]), Added()),
            TypeError,
            r"Subset\(MixingDataset",
        ),
        (
            lambda table: MixingDataset(Subset(DetectionDataset(table), [0]), Stacked()),
            TypeError,
            r"mixed after their transforms; .*Subset\(MixingDataset",
        ),
        (
            lambda table: MixingDataset(ConcatDataset([DetectionDataset(table)] * 2), Stacked()),
            TypeError,
            "JoinedDataset",
        ),
        (
            lambda table: MixingDataset(DetectionDataset(table), Stacked(), per_object=["depth"]),
            SettingError,
            "SanitizeObjects .* of the DetectionDataset",
        ),
        (lambda table: MixingDataset(LandmarkDataset(table), Stacked()), TypeError, "crops of objects"),
        (
            lambda table: MixingDataset(DetectionDataset(table), Stacked(), transforms=v2.Identity()),
            SettingError,
            "give all transforms to the DetectionDataset",
        ),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, make, error, message):
    table = draw_set(tmp_path)
    with pytest.raises(error, match=message):
        make(table)


def test_other_data_sets_in_a_subset_or_concatenation_are_mixed():
    for dataset in (Subset(Wrapped(), range(5)), ConcatDataset([Wrapped(3), Wrapped(2)])):
        loader = DataLoader(MixingDataset(dataset, MixUp()), batch_size=5, seed=0, collate_fn=list)
        assert [len(target["labels"]) for _, target in next(iter(loader))] == [2] * 5


class WithFields(Wrapped):
    """Targets with a field per object, and one of the image whose length may be the number of objects."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, {**target, "depth": torch.tensor([float(index)]), "exposure": torch.tensor([0.5])}


def test_fields_of_other_data_sets_are_declared():
    with pytest.raises(ValueError, match="'exposure' has a first dimension, but is not declared"):
        MixingDataset(WithFields(), MixUp(), per_object=["depth"]).read_part(1)
    dataset = MixingDataset(WithFields(), MixUp(), per_object=["depth"], per_image=["exposure"])
    _, target = mixed(dataset, 2, 3)
    assert target["depth"].tolist() == [2, 3]
    assert target["exposure"].tolist() == [0.5]


class Depth(torch.nn.Module):
    def forward(self, image, target):
        return image, {**target, "depth": target["labels"] * 2, "exposure": torch.ones(2)}


def test_fields_of_lit_loaders_data_sets_are_those_of_their_transforms(tmp_path):
    table = draw_set(tmp_path, objects=2)
    for fields, message in (({}, "not declared"), ({"per_object": ["depth"], "per_image": ["exposure"]}, None)):
        transforms = detection_transforms(True, extra_before=[Depth()], size=32, hflip=0, **fields)
        dataset = MixingDataset(DetectionDataset(table, transforms=transforms), MixUp())
        if message:
            with pytest.raises(ValueError, match=message):
                dataset.read_part(1)
        else:
            _, target = mixed(dataset, 2, 3)
            assert torch.equal(target["depth"], target["labels"] * 2)
            assert target["exposure"].tolist() == [1, 1]
    attributes = DetectionDataset(table, attributes=["finish"])
    assert len(mixed(MixingDataset(attributes, MixUp()), 2, 3)[1]["finish"]) == 4


class DropFirst(torch.nn.Module):
    """Remove the first object."""

    def forward(self, image, target):
        names = ("boxes", "labels", "area", "iscrowd")
        return image, {**target, **{name: tv_tensors.wrap(target[name][1:], like=target[name]) for name in names}}


def test_objects_of_a_pool_are_those_of_the_annotations(tmp_path):
    transforms = detection_transforms(True, extra_before=[DropFirst()], size=32)
    dataset = MixingDataset(DetectionDataset(draw_set(tmp_path, objects=3), transforms=transforms), CopyPaste())
    assert len(dataset.read_part(1).target["boxes"]) == 2
    with pytest.raises(ValueError, match=r"object 0 of 3 was drawn .* its target has 2 objects; .*extra_after"):
        dataset.read_part(1, object_row=0)


class OneGray(Wrapped):
    """Image 5 has one channel."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return (image[:1] if index == 5 else image), target


@pytest.mark.filterwarnings("ignore::lit_loader.errors.BadSamplesWarning")
def test_partner_that_cannot_be_mixed_is_the_one_that_is_reported():
    dataset = MixingDataset(OneGray(), MixUp())
    loader = DataLoader(dataset, batch_size=5, seed=0, collate_fn=list, on_bad_sample="substitute")
    assert [len(batch) for batch in loader] == [5, 5]
    assert {record.index for record in loader.bad_samples} == {5}
    assert {record.partner_of is None for record in loader.bad_samples} == {True, False}


def test_exact_parts_decode_only_the_region_that_is_shown(tmp_path):
    table = draw_set(tmp_path, num_images=4, objects=2, image_paths=[f"{number}.jpg" for number in range(4)])
    for number in range(4):
        Image.open(tmp_path / f"{number}.png").save(tmp_path / f"{number}.jpg")
    dataset = DetectionDataset(table)
    image = dataset.open_sample(1).image
    assert type(image).__name__ == "ExactImage"
    assert torch.equal(image.read(), dataset[1][0])
    mixes = [Mosaic(), CopyPaste()]
    for index in range(4):
        parts = [MixingDataset(dataset, mixes).read_part(number) for number in (index, 1, 2, 3)]
        decoded_parts = [
            MixSample(DecodedImage(part.image.read()), part.target, part.object_row, part.fields) for part in parts
        ]
        for mix in mixes:
            with sample_key(position=index):
                lazy_sample = mix.apply(parts, sample_rng())
            with sample_key(position=index):
                decoded_sample = mix.apply(decoded_parts, sample_rng())
            assert torch.equal(lazy_sample.image.read(), decoded_sample.image.read())


def test_mix_that_returns_no_mix_sample_is_named(tmp_path):
    class Broken(Stacked):
        def apply(self, samples, rng):
            return samples[0].image

    with pytest.raises(TypeError, match="expected a MixSample from `apply` of Broken, got ExactImage"):
        mixed(MixingDataset(DetectionDataset(draw_set(tmp_path)), Broken()), 0, 1)
