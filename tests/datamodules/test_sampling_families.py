"""Turns, repeat factors and effective numbers by name: each setting reaches the sampler, over the table's labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, Attribute, image_labels
from lit_loader.datamodules import (
    AspectRatioBatching,
    BlockShuffleSamplerConfig,
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RepeatFactorSamplerConfig,
    WeightedSamplerConfig,
)
from lit_loader.datamodules.batching import checked_batching
from lit_loader.errors import SettingError
from lit_loader.samplers import (
    BlockShuffleSampler,
    ClassAwareSampler,
    ClassBalancedSampler,
    RepeatFactorSampler,
    WeightedRandomSampler,
    effective_number_image_weights,
    repeat_factors,
)

BY = pytest.mark.parametrize("by", [None, "finish"])


@pytest.fixture
def table(shapes):
    (table,) = shapes.tables("train")
    return table


def _assert_same(sampler, expected):
    assert type(sampler) is type(expected)
    np.testing.assert_array_equal(sampler.expected_visits(), expected.expected_visits())
    np.testing.assert_array_equal(sampler.order(seed=1, epoch=2)[:], expected.order(seed=1, epoch=2)[:])


@BY
def test_class_aware_config_passes_labels_and_settings(table, by):
    labels = image_labels(table, by=by)
    _assert_same(ClassAwareSamplerConfig(balance_by=by).make_sampler(table), ClassAwareSampler(labels))
    settings = {"num_samples": 31, "empty_as_class": True}
    _assert_same(
        ClassAwareSamplerConfig(balance_by=by, **settings).make_sampler(table), ClassAwareSampler(labels, **settings)
    )


@BY
def test_repeat_factor_config_passes_labels_and_threshold(table, by):
    labels = image_labels(table, by=by)
    expected = RepeatFactorSampler(repeat_factors(labels, repeat_thresh=0.7))
    assert len(expected) > table.num_images
    _assert_same(RepeatFactorSamplerConfig(balance_by=by, repeat_thresh=0.7).make_sampler(table), expected)
    # With few classes the default of 0.001 repeats none.
    assert len(RepeatFactorSamplerConfig(balance_by=by).make_sampler(table)) == table.num_images


@BY
def test_effective_number_config_passes_labels_and_beta(table, by):
    weights = effective_number_image_weights(image_labels(table, by=by), beta=0.95)
    _assert_same(
        EffectiveNumberSamplerConfig(balance_by=by, beta=0.95, num_samples=40).make_sampler(table),
        WeightedRandomSampler(weights, 40),
    )
    everything = EffectiveNumberSamplerConfig(balance_by=by, replacement=False).make_sampler(table)
    assert everything.expected_visits().tolist() == [1.0] * table.num_images


@pytest.mark.parametrize("attribute", [None, "finish"])
def test_block_shuffle_config_passes_shards_sizes_and_repeats(table, attribute):
    packed = replace(table, shards=np.arange(table.num_images) % 3)
    labels = image_labels(table, by=attribute)
    options = {"open_shards": 2, "block_size": 5}
    for settings, repeats in (
        ({}, None),
        ({"exponent": 0.7}, ClassBalancedSampler(labels, exponent=0.7).expected_visits()),
        ({"repeat_thresh": 0.7}, repeat_factors(labels, repeat_thresh=0.7)),
    ):
        expected = BlockShuffleSampler(packed.shards, repeats=repeats, **options)
        config = BlockShuffleSamplerConfig(balance_by=attribute, **options, **settings)
        _assert_same(config.make_sampler(packed), expected)
    _assert_same(BlockShuffleSamplerConfig().make_sampler(packed), BlockShuffleSampler(packed.shards))


def test_block_shuffle_config_refuses_what_it_cannot_do(table):
    with pytest.raises(SettingError, match=r"open_shards=4 mixes the shards of a packed set.*sampler=random, or pack"):
        BlockShuffleSamplerConfig().make_sampler(table)
    with pytest.raises(SettingError, match=r"exponent=1\.0 repeats images for one balance, and repeat_thresh=0\.1"):
        BlockShuffleSamplerConfig(exponent=1.0, repeat_thresh=0.1)
    with pytest.raises(ValueError, match="block_size=0"):
        BlockShuffleSamplerConfig(block_size=0)
    with pytest.raises(TypeError, match="`exponent` must be a number"):
        BlockShuffleSamplerConfig(exponent={"points": {0: 0.0, 3: 1.0}})
    with pytest.raises(SettingError, match=r"train_batching=.* would spread the blocks"):
        checked_batching("train", AspectRatioBatching(), BlockShuffleSamplerConfig())


@pytest.mark.parametrize(
    "sampling",
    [
        partial(BlockShuffleSamplerConfig, exponent=1.0),
        ClassAwareSamplerConfig,
        ClassBalancedSamplerConfig,
        EffectiveNumberSamplerConfig,
        RepeatFactorSamplerConfig,
        WeightedSamplerConfig,
    ],
)
def test_an_attribute_without_values_or_unknown_is_refused(sampling):
    table = AnnotationTable(
        root="/nowhere",
        image_paths=["0.png", "1.png"],
        class_names=("a",),
        offsets=[0, 1, 1],
        boxes=[[0, 0, 4, 4]],
        labels=[0],
        shards=[0, 0],
        attributes={"finish": Attribute(ids=np.array([-1]), names=("matte", "gloss"))},
    )
    with pytest.raises(ValueError, match=r"balance_by='finish' names an attribute that none of the 1 objects .* has"):
        sampling(balance_by="finish").make_sampler(table)
    assert len(sampling().make_sampler(table)) == 2
    with pytest.raises(ValueError, match=r"one of \['finish'\]; got by='colour'"):
        sampling(balance_by="colour").make_sampler(table)
