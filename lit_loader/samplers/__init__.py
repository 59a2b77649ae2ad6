"""Samplers: an epoch's indices as a pure function of (seed, epoch), and their division among ranks."""

from __future__ import annotations

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.buckets import aspect_ratio_buckets, size_buckets
from lit_loader.samplers.class_aware import ClassAwareSampler
from lit_loader.samplers.class_balanced import ClassBalancedSampler
from lit_loader.samplers.effective_number import effective_number_image_weights, effective_number_weights
from lit_loader.samplers.grouped import GroupedSampler
from lit_loader.samplers.mixed_source import MixedSourceSampler
from lit_loader.samplers.orders import ArrayOrder, SequentialOrder, SliceableOrder
from lit_loader.samplers.repeat_factor import RepeatFactorSampler, repeat_factors
from lit_loader.samplers.sequential import SequentialSampler
from lit_loader.samplers.sharding import RankBatch, num_batches, rank_batch
from lit_loader.samplers.shuffled import RandomSampler
from lit_loader.samplers.subset import SubsetRandomSampler
from lit_loader.samplers.weighted import WeightedRandomSampler

__all__ = [
    "ArrayOrder",
    "ClassAwareSampler",
    "ClassBalancedSampler",
    "GroupedSampler",
    "MixedSourceSampler",
    "OrderSampler",
    "RandomSampler",
    "RankBatch",
    "RepeatFactorSampler",
    "SequentialOrder",
    "SequentialSampler",
    "SliceableOrder",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "aspect_ratio_buckets",
    "effective_number_image_weights",
    "effective_number_weights",
    "num_batches",
    "rank_batch",
    "repeat_factors",
    "size_buckets",
]
