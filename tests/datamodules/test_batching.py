"""Batching settings: batches of like shapes in every data module, whatever draws the samples."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from lit_loader.collate import batch_images
from lit_loader.datamodules import (
    AspectRatioBatching,
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
    PlainBatching,
    SequentialSamplerConfig,
    SizeBatching,
    WeightedSamplerConfig,
)
from lit_loader.samplers import (
    GroupedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    aspect_ratio_buckets,
    size_buckets,
)
from tests.support.drawn_set import DrawnSource, draw_set, drawn_source

SIZES = [(40, 30), (30, 40), (20, 15)]  # two ratios, three sizes


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Blank images of three sizes, eight of each, in turns."""
    root = tmp_path_factory.mktemp("mixed")
    sizes = SIZES * 8
    widths, heights = np.array(sizes).T
    table = draw_set(root, num_images=24, objects=0, widths=widths, heights=heights)
    for name, size in zip(table.image_paths, sizes, strict=True):
        Image.new("RGB", size).save(root / name)
    return DrawnSource(train=table, val=table, predict=table)


def shapes_of(loader):
    """Return the shapes of each batch's images, widths first."""
    return [{tuple(image.shape[:0:-1]) for image in batch_images(batch)} for batch in loader]


@pytest.mark.parametrize("sampling", [None, WeightedSamplerConfig(num_samples=40)], ids=["random", "weighted"])
def test_batches_are_of_one_size_where_there_are_enough(mixed, sampling):
    settings = {"batch_size": 4, "train_sampler": sampling, "seed": 1}
    grouped = DetectionDataModule(mixed, train_batching=SizeBatching(num_buckets=3), **settings)
    shapes = shapes_of(grouped.train_dataloader())
    assert {len(of_batch) for of_batch in shapes} == {1}
    assert set.union(*shapes) == set(SIZES)
    plain = DetectionDataModule(mixed, train_batching=PlainBatching(), **settings)
    assert max(len(of_batch) for of_batch in shapes_of(plain.train_dataloader())) > 1
    ratios = DetectionDataModule(mixed, train_batching=AspectRatioBatching(num_buckets=2), **settings)
    batches = shapes_of(ratios.train_dataloader())
    assert all(len({w > h for w, h in of_batch}) == 1 for of_batch in batches)
    assert max(len(of_batch) for of_batch in batches) == 2


def test_evaluation_has_a_batching_of_its_own(mixed):
    datamodule = DetectionDataModule(mixed, batch_size=4, eval_batching=SizeBatching(num_buckets=3))
    for loader in (datamodule.val_dataloader(), datamodule.predict_dataloader()):
        sampler = loader.sampler
        assert isinstance(sampler, GroupedSampler)
        assert isinstance(sampler.sampler, SequentialSampler)
        assert {len(of_batch) for of_batch in shapes_of(loader)} == {1}
    assert isinstance(datamodule.train_dataloader().sampler, RandomSampler)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DetectionDataModule, {}),
        (LandmarkDataModule, {}),
        (LandmarkDataModule, {"sample_unit": "image"}),
        (ClassificationDataModule, {"sample_unit": "object"}),
        (ClassificationDataModule, {"multi_label": True}),
        (MultiTaskDataModule, {}),
    ],
)
def test_every_data_module_groups_its_own_samples(tmp_path, kind, settings):
    rng = np.random.default_rng(0)
    widths, heights = rng.integers(20, 90, (2, 12))
    table = draw_set(tmp_path, num_images=12, widths=widths, heights=heights)
    datamodule = kind(
        DrawnSource(train=table, val=table),
        train_sampler=WeightedSamplerConfig(),
        train_batching=AspectRatioBatching(num_buckets=3),
        eval_batching=SizeBatching(num_buckets=4),
        **settings,
    )
    (samples,) = datamodule.tables("train")
    train = datamodule.train_dataloader().sampler
    val = datamodule.val_dataloader().sampler
    expected = aspect_ratio_buckets(samples.widths, samples.heights, 3)
    np.testing.assert_array_equal(train.group_ids, expected)
    assert isinstance(train.sampler, WeightedRandomSampler)
    np.testing.assert_array_equal(val.group_ids, size_buckets(samples.widths, samples.heights, 4))
    assert datamodule.summaries()[0].sampler == "WeightedRandomSampler"


def test_a_sampler_of_ours_may_be_given_itself_and_a_custom_one_not(mixed):
    grouped = DetectionDataModule(mixed, train_sampler=RandomSampler(24), train_batching=AspectRatioBatching())
    assert isinstance(grouped.train_dataloader().sampler, GroupedSampler)
    for stage, batching in (("train", "train_batching"), ("test", "eval_batching")):
        custom = {f"{stage}_sampler": TorchSequentialSampler(range(24))}
        with pytest.raises(
            ValueError,
            match=rf"{batching}=AspectRatioBatching\(num_buckets=8\).*{stage}_sampler=SequentialSampler.*"
            r"lit_loader\.samplers",
        ):
            DetectionDataModule(mixed, **{batching: AspectRatioBatching()}, **custom)
        DetectionDataModule(mixed, **{batching: PlainBatching()}, **custom)
    with pytest.raises(TypeError, match=r"train_batching='size' of type str should be Batching or None"):
        DetectionDataModule(mixed, train_batching="size")


def test_a_table_that_does_not_know_sizes_is_refused(tmp_path):
    (table,) = drawn_source(tmp_path).tables("train")
    unknown = draw_set(tmp_path / "unknown", num_images=3, widths=[64, 0, 0], heights=[48, 48, 0], split="train")
    for batching in (AspectRatioBatching(), SizeBatching()):
        batching.batched(SequentialSampler(table.num_images), table)
        with pytest.raises(ValueError, match=r"lacks the sizes of 2 of its 3 images, .*1\.png first"):
            batching.batched(SequentialSampler(3), unknown)
    plain = SequentialSamplerConfig().make_sampler(unknown)
    assert PlainBatching().batched(plain, unknown) is plain


@pytest.mark.parametrize("kind", [AspectRatioBatching, SizeBatching])
def test_one_bucket_is_no_batching(kind):
    with pytest.raises(ValueError, match=r"num_buckets=1 must be at least 2.*PlainBatching"):
        kind(num_buckets=1)
