"""Samplers: an epoch's indices as a pure function of (seed, epoch), and their division among ranks."""

from __future__ import annotations

from lit_loader.samplers.base import OrderSampler
from lit_loader.samplers.class_balanced import ClassBalancedSampler
from lit_loader.samplers.orders import ArrayOrder, SequentialOrder, SliceableOrder
from lit_loader.samplers.sequential import SequentialSampler
from lit_loader.samplers.sharding import RankBatch, num_batches, rank_batch
from lit_loader.samplers.shuffled import RandomSampler
from lit_loader.samplers.weighted import WeightedRandomSampler

__all__ = [
    "ArrayOrder",
    "ClassBalancedSampler",
    "OrderSampler",
    "RandomSampler",
    "RankBatch",
    "SequentialOrder",
    "SequentialSampler",
    "SliceableOrder",
    "WeightedRandomSampler",
    "num_batches",
    "rank_batch",
]
