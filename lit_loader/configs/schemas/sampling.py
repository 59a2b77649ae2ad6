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
    """``lit_loader.datamodules.RandomSamplerConfig`` has no keys."""


@dataclass
class SequentialSamplingConfig:
    """``lit_loader.datamodules.SequentialSamplerConfig`` has no keys."""


@dataclass
class WeightedSamplingConfig:
    """Keys of ``lit_loader.datamodules.WeightedSamplerConfig``."""

    balance_by: Optional[str] = None
    exponent: float = 1.0
    reduce: str = "mean"
    num_samples: Optional[int] = None
    replacement: bool = True


@dataclass
class ClassBalancedSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassBalancedSamplerConfig``."""

    balance_by: Optional[str] = None
    exponent: float = 1.0
    num_samples: Optional[int] = None
    empty_share: Optional[float] = None


@dataclass
class ClassAwareSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassAwareSamplerConfig``."""

    balance_by: Optional[str] = None
    num_samples: Optional[int] = None
    empty_as_class: bool = False


@dataclass
class RepeatFactorSamplingConfig:
    """Keys of ``lit_loader.datamodules.RepeatFactorSamplerConfig``."""

    balance_by: Optional[str] = None
    repeat_thresh: float = 0.001


@dataclass
class EffectiveNumberSamplingConfig:
    """Keys of ``lit_loader.datamodules.EffectiveNumberSamplerConfig``."""

    balance_by: Optional[str] = None
    beta: float = 0.999
    num_samples: Optional[int] = None
    replacement: bool = True
