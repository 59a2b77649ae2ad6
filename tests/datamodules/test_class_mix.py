"""Guarantee: the mix of classes, or of an attribute's values, that a sampler promises is the mix that arrives.

Each class's objects over the epochs are compared with their expectation. Drawn independently, their sum has
mean ``D * sum(q_i n_i)`` and variance ``D * (sum(q_i n_i^2) - (sum(q_i n_i))^2)`` over D draws; quotas and cycles only
lower the variance. The bound of 5.3 standard deviations is passed by chance once in 10^7 for each class.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.datamodules import (
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SequentialSamplerConfig,
    SetSummary,
    WeightedSamplerConfig,
    expected_class_mix,
    summary_table,
)
from lit_loader.datasets import VocSource

BOUND = 5.3
EPOCHS = 20
NAMES = ("plain", "dotted", "hollow")


@pytest.fixture(scope="module")
def images():
    """250 images of 0 to 5 objects; 90 % of the objects have an attribute, with values of 85, 12 and 3 %."""
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 6, 250)
    total = int(counts.sum())
    finish = np.where(rng.random(total) < 0.1, -1, rng.choice(3, total, p=[0.85, 0.12, 0.03]))
    return AnnotationTable(
        root="/nowhere",
        image_paths=[f"{i}.png" for i in range(250)],
        class_names=("a", "b"),
        offsets=np.cumsum([0, *counts]),
        boxes=np.tile(np.float32([0, 0, 4, 4]), (total, 1)),
        labels=rng.integers(0, 2, total),
        attributes={"finish": Attribute(ids=finish, names=NAMES)},
    )


@pytest.fixture(scope="module", params=["images", "objects"])
def table(request, images):
    return images if request.param == "images" else images.per_object()


class Counts(Dataset):
    """Data set whose samples are an image's counts of classes, or of values of an attribute, instead of pixels."""

    def __init__(self, table, by=None):
        self.counts = table.image_class_counts() if by is None else table.image_label_counts(by)

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        return self.counts[index]


def deviations(table, sampler, promised, *, by=None, num_workers=0):
    """Return the error of each label's number of delivered objects, in standard deviations."""
    dataset = Counts(table, by)
    workers = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    with DataLoader(dataset, 8, sampler=sampler, seed=3, **workers) as loader:
        delivered = sum(batch.sum(0).numpy() for _ in range(EPOCHS) for batch in loader)
    draws = EPOCHS * len(sampler)
    q = promised / promised.sum()
    mean = q @ dataset.counts
    variance = q @ dataset.counts**2 - mean**2
    return (delivered - draws * mean) / np.sqrt(draws * np.maximum(variance, 1e-9))


SAMPLINGS = [
    RandomSamplerConfig(),
    SequentialSamplerConfig(),
    WeightedSamplerConfig(),
    WeightedSamplerConfig(exponent=0.5, reduce="max", num_samples=500),
    ClassBalancedSamplerConfig(),
    ClassBalancedSamplerConfig(exponent=0.3, num_samples=300),
    ClassAwareSamplerConfig(),
    ClassAwareSamplerConfig(num_samples=300, empty_as_class=True),
    RepeatFactorSamplerConfig(repeat_thresh=0.5),
    EffectiveNumberSamplerConfig(beta=0.9),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_promised_class_mix_arrives(shapes, sampling):
    (table,) = shapes.tables("train")
    sampler = sampling.make_sampler(table)
    assert np.abs(deviations(table, sampler, sampler.expected_visits(), num_workers=2)).max() < BOUND


@pytest.mark.parametrize("sampling", [WeightedSamplerConfig(), ClassBalancedSamplerConfig()], ids=str)
def test_shuffling_deviates_from_the_promised_class_mix(shapes, sampling):
    (table,) = shapes.tables("train")
    promised = sampling.make_sampler(table).expected_visits()
    assert np.abs(deviations(table, RandomSamplerConfig().make_sampler(table), promised)).max() > BOUND


@pytest.mark.parametrize("sampling", [WeightedSamplerConfig(), ClassBalancedSamplerConfig()], ids=str)
def test_promised_class_mix_arrives_on_real_annotations(shared_data, tmp_path, sampling):
    source = VocSource(root=str(shared_data / "bccd" / "BCCD"), cache_dir=str(tmp_path), progress=False)
    (table,) = source.tables("train")
    sampler = sampling.make_sampler(table)
    assert np.abs(deviations(table, sampler, sampler.expected_visits())).max() < BOUND
    mix = expected_class_mix([table], sampler)
    natural = table.class_counts() / table.class_counts().sum()
    rare = table.class_names.index("Platelets")  # every image has a WBC, which no choice of images can change
    assert mix[rare] > 1.15 * natural[rare]


@pytest.mark.parametrize(
    "sampling",
    [
        WeightedSamplerConfig(balance_by="finish", exponent=0.5, reduce="max", num_samples=500),
        ClassBalancedSamplerConfig(balance_by="finish", exponent=0.4, num_samples=300),
    ],
    ids=str,
)
def test_promised_attribute_mix_arrives(table, sampling):
    sampler = sampling.make_sampler(table)
    assert np.abs(deviations(table, sampler, sampler.expected_visits(), by="finish")).max() < BOUND


@pytest.mark.parametrize("sampling", [WeightedSamplerConfig, ClassBalancedSamplerConfig])
def test_samplers_without_balance_by_deviate_from_the_promised_attribute_mix(table, sampling):
    promised = sampling(balance_by="finish").make_sampler(table).expected_visits()
    for other in (sampling(), RandomSamplerConfig()):
        assert np.abs(deviations(table, other.make_sampler(table), promised, by="finish")).max() > BOUND


def test_object_samples_balance_every_attribute_value(images):
    table = images.per_object()
    for sampling in (WeightedSamplerConfig(balance_by="finish"), ClassBalancedSamplerConfig(balance_by="finish")):
        mix = expected_class_mix([table], sampling.make_sampler(table), by="finish")
        assert mix == pytest.approx([1 / 3] * 3, abs=0.003)  # quotas are whole


def test_the_summary_of_an_attribute_counts_its_values(images):
    sampler = ClassBalancedSamplerConfig(balance_by="finish").make_sampler(images)
    summary = SetSummary.of("train", [images], sampler, by="finish", num_left_out=3)
    ids = images.attributes["finish"].ids
    assert (summary.label, summary.class_names, summary.num_left_out) == ("finish", NAMES, 3)
    assert summary.class_counts.tolist() == [int((ids == i).sum()) for i in range(3)]
    assert summary.expected_mix.sum() == pytest.approx(1)
    assert summary.expected_mix[2] > 3 * summary.natural_mix[2]
    visits = sampler.expected_visits()
    delivered = visits @ images.image_label_counts("finish")
    assert summary.expected_mix == pytest.approx(delivered / delivered.sum())
    per_image = SetSummary.of("train", [images], sampler, by="finish", distinct=True)
    assert per_image.class_counts.tolist() == per_image.image_counts.tolist() == summary.image_counts.tolist()
    delivered = visits @ (images.image_label_counts("finish") > 0)
    assert per_image.expected_mix == pytest.approx(delivered / delivered.sum())
    assert summary.num_empty == int((images.image_label_counts("finish").sum(axis=1) == 0).sum())


def test_the_summary_of_many_images_of_many_classes_takes_memory_for_the_images_alone():
    # a count for each image and class would take 1.6 GB
    num_images = 200_000
    num_classes = 1000
    table = AnnotationTable(
        root="/nowhere",
        image_paths=[f"{i}" for i in range(num_images)],
        class_names=[f"{c}" for c in range(num_classes)],
        offsets=np.arange(num_images + 1),
        boxes=np.zeros((num_images, 4), dtype=np.float32),
        labels=np.arange(num_images) % num_classes,
    )
    tracemalloc.start()
    try:
        summary = SetSummary.of("train", [table], RandomSamplerConfig().make_sampler(table), distinct=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6
    assert "without objects" not in summary_table([summary])
    train = SetSummary.of("train", [table.select(range(990))], None, num_crowd=1)
    text = summary_table([train])
    assert ("989 " in text, "991 " in text) == (True, False)
    assert "10 without objects" in text
    assert "1 crowd region left out" in text
    assert summary.image_counts.tolist() == [200] * num_classes
    assert summary.expected_mix == pytest.approx([1 / num_classes] * num_classes)
