"""Guarantee: the class mix that a sampler promises is the mix that arrives.

Each class's objects over the epochs are compared with their expectation. Drawn independently, their sum has
mean ``D * sum(q_i n_i)`` and variance ``D * (sum(q_i n_i^2) - (sum(q_i n_i))^2)`` over D draws; quotas and cycles only
lower the variance. The bound of 5.3 standard deviations is passed by chance once in 10^7 for each class.
"""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.datamodules import (
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SequentialSamplerConfig,
    WeightedSamplerConfig,
    expected_class_mix,
)
from lit_loader.datasets import VocSource

BOUND = 5.3
EPOCHS = 20


class Counts(Dataset):
    """Data set whose samples are the class counts of an image instead of pixels."""

    def __init__(self, table):
        self.counts = table.image_class_counts()

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        return self.counts[index]


def deviations(table, sampler, promised, *, num_workers=0):
    """Return the error of each class's number of delivered objects, in standard deviations."""
    dataset = Counts(table)
    with DataLoader(
        dataset, 8, sampler=sampler, seed=3, num_workers=num_workers, persistent_workers=num_workers > 0
    ) as loader:
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
def test_the_promised_mix_arrives(shapes, sampling):
    (table,) = shapes.tables("train")
    sampler = sampling.make_sampler(table)
    assert np.abs(deviations(table, sampler, sampler.expected_visits(), num_workers=2)).max() < BOUND


@pytest.mark.parametrize("sampling", [WeightedSamplerConfig(), ClassBalancedSamplerConfig()], ids=str)
def test_the_natural_mix_would_be_caught(shapes, sampling):
    """The mechanism disabled: what plain shuffling delivers is far from what balancing promises."""
    (table,) = shapes.tables("train")
    promised = sampling.make_sampler(table).expected_visits()
    assert np.abs(deviations(table, RandomSamplerConfig().make_sampler(table), promised)).max() > BOUND


@pytest.mark.parametrize("sampling", [WeightedSamplerConfig(), ClassBalancedSamplerConfig()], ids=str)
def test_on_real_annotations(shared_data, tmp_path, sampling):
    source = VocSource(root=str(shared_data / "bccd" / "BCCD"), cache_dir=str(tmp_path), progress=False)
    (table,) = source.tables("train")
    sampler = sampling.make_sampler(table)
    assert np.abs(deviations(table, sampler, sampler.expected_visits())).max() < BOUND
    mix = expected_class_mix(table, sampler)
    natural = table.class_counts() / table.class_counts().sum()
    rare = table.class_names.index("Platelets")  # every image has a WBC, which no choice of images can change
    assert mix[rare] > 1.15 * natural[rare]
