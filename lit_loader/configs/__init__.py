"""Typed schemas of the config groups in ``conf/``, checks against them, and errors that name the remedy.

The shipped YAML files refer to no schema, so that any Hydra app can compose them by
``hydra.searchpath: [pkg://lit_loader.conf]`` without importing this package. An app calls `validate` on
what it composed, and runs its main function through `run_with_hints`. Nothing here imports torch.
"""

from __future__ import annotations

from lit_loader.configs.checks import ConfigError, validate
from lit_loader.configs.hints import run_with_hints
from lit_loader.configs.schemas import (
    GROUPS,
    ClassBalancedSamplingConfig,
    DetectionDataModuleConfig,
    DetectionModuleConfig,
    DetectionTransformsConfig,
    RandomSamplingConfig,
    RootConfig,
    SequentialSamplingConfig,
    ShapesSourceConfig,
    TrainerConfig,
    VocSourceConfig,
    WeightedSamplingConfig,
    WorkersConfig,
)

__all__ = [
    "ClassBalancedSamplingConfig",
    "ConfigError",
    "DetectionDataModuleConfig",
    "DetectionModuleConfig",
    "DetectionTransformsConfig",
    "GROUPS",
    "RandomSamplingConfig",
    "RootConfig",
    "SequentialSamplingConfig",
    "ShapesSourceConfig",
    "TrainerConfig",
    "VocSourceConfig",
    "WeightedSamplingConfig",
    "WorkersConfig",
    "run_with_hints",
    "validate",
]
