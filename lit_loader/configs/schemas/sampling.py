"""Schemas of the ``sampler`` group: how samples are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

__all__ = [
    "ClassAwareSamplingConfig",
    "ClassBalancedSamplingConfig",
    "EffectiveNumberSamplingConfig",
    "RandomSamplingConfig",
    "RepeatFactorSamplingConfig",
    "SequentialSamplingConfig",
    "WeightedSamplingConfig",
]


@dataclass
class RandomSamplingConfig:
    """``lit_loader.datamodules.RandomSampling`` has no keys."""


@dataclass
class SequentialSamplingConfig:
    """``lit_loader.datamodules.SequentialSampling`` has no keys."""


@dataclass
class WeightedSamplingConfig:
    """Keys of ``lit_loader.datamodules.WeightedSampling``."""

    balance_by: Optional[str] = None
    exponent: float = 1.0
    reduce: str = "mean"
    num_samples: Optional[int] = None
    replacement: bool = True


@dataclass
class ClassBalancedSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassBalancedSampling``."""

    balance_by: Optional[str] = None
    exponent: float = 1.0
    num_samples: Optional[int] = None
    empty_share: Optional[float] = None


@dataclass
class ClassAwareSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassAwareSampling``."""

    balance_by: Optional[str] = None
    num_samples: Optional[int] = None
    empty_as_class: bool = False


@dataclass
class RepeatFactorSamplingConfig:
    """Keys of ``lit_loader.datamodules.RepeatFactorSampling``."""

    balance_by: Optional[str] = None
    repeat_thresh: float = 0.001


@dataclass
class EffectiveNumberSamplingConfig:
    """Keys of ``lit_loader.datamodules.EffectiveNumberSampling``."""

    balance_by: Optional[str] = None
    beta: float = 0.999
    num_samples: Optional[int] = None
    replacement: bool = True
