"""Schemas of the ``datamodule`` group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from lit_loader.configs.schemas.run import WorkersConfig

__all__ = [
    "ClassificationDataModuleConfig",
    "DetectionDataModuleConfig",
    "LandmarkDataModuleConfig",
    "MultiTaskDataModuleConfig",
    "TableDataModuleConfig",
]


@dataclass
class TableDataModuleConfig(WorkersConfig):
    """Keys of every data module over a source."""

    source: Any = MISSING
    batch_size: int = 8
    train_batch_size: Optional[int] = None
    val_batch_size: Optional[int] = None
    test_batch_size: Optional[int] = None
    predict_batch_size: Optional[int] = None
    train_sampler: Any = None
    val_sampler: Any = None
    test_sampler: Any = None
    predict_sampler: Any = None
    train_batching: Any = None
    eval_batching: Any = None
    train_transforms: Any = None
    val_transforms: Any = None
    test_transforms: Any = None
    predict_transforms: Any = None
    batch_transforms: Any = None
    eval_batch_transforms: Any = None
    size_mismatch: str = "clip"
    exif_orientation: bool = True
    max_pixels: int = 89_478_485
    decode: str = "exact"
    cache: Optional[str] = field(default=None, metadata={"words": ("ram", "disk")})
    cache_size: Optional[int] = None
    cache_budget: Any = None
    on_bad_sample: str = field(default="raise", metadata={"words": ("raise", "skip", "substitute")})
    max_bad_samples: Optional[int] = None
    drop_last: bool = False
    resume: str = field(default="exact", metadata={"words": ("exact", "same_sample", "restart")})
    seed: Optional[int] = None


@dataclass
class DetectionDataModuleConfig(TableDataModuleConfig):
    """Keys of ``lit_loader.datamodules.DetectionDataModule``."""

    images: str = "list"
    size_divisor: int = 1
    collate_fn: Any = None
    first_label: int = 1
    extra_fields: list[str] = field(default_factory=list)
    masks: bool = False


@dataclass
class LandmarkDataModuleConfig(TableDataModuleConfig):
    """Keys of ``lit_loader.datamodules.LandmarkDataModule``."""

    sample_unit: str = "object"
    min_points: int = 1
    attributes: Any = field(default_factory=list)
    size_divisor: int = 1


@dataclass
class ClassificationDataModuleConfig(TableDataModuleConfig):
    """Keys of ``lit_loader.datamodules.ClassificationDataModule``."""

    label_attribute: Optional[str] = None
    multi_label: bool = False
    sample_unit: str = "image"


@dataclass
class MultiTaskDataModuleConfig(TableDataModuleConfig):
    """Keys of ``lit_loader.datamodules.MultiTaskDataModule``."""

    keypoints: bool = True
    attributes: Any = "all"
    size_divisor: int = 1
    pad_value: float = 0
    first_label: int = 1
