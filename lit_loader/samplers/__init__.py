"""Samplers: an epoch's indices as a pure function of (seed, epoch), and their division over ranks."""

from __future__ import annotations

from lit_loader.samplers.block_shuffle import BlockShuffleSampler
from lit_loader.samplers.class_aware import ClassAwareSampler
from lit_loader.samplers.class_balanced import ClassBalancedSampler
from lit_loader.samplers.grouped import GroupedSampler, aspect_ratio_buckets, size_buckets
from lit_loader.samplers.mixed_source import MixedSourceSampler
from lit_loader.samplers.order import OrderSampler, RankBatch, SliceableOrder, array_order, num_batches, rank_batch
from lit_loader.samplers.random import RandomSampler, SequentialSampler, SubsetRandomSampler
from lit_loader.samplers.rare_classes import (
    RepeatFactorSampler,
    effective_number_image_weights,
    effective_number_weights,
    repeat_factors,
)
from lit_loader.samplers.weighted import WeightedRandomSampler

__all__ = [
    "BlockShuffleSampler",
    "ClassAwareSampler",
    "ClassBalancedSampler",
    "GroupedSampler",
    "MixedSourceSampler",
    "OrderSampler",
    "RandomSampler",
    "RankBatch",
    "RepeatFactorSampler",
    "SequentialSampler",
    "SliceableOrder",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "array_order",
    "aspect_ratio_buckets",
    "effective_number_image_weights",
    "effective_number_weights",
    "num_batches",
    "rank_batch",
    "repeat_factors",
    "size_buckets",
]
