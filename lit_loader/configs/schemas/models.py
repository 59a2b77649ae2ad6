"""Schemas of the ``model`` group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

__all__ = [
    "ClassificationModuleConfig",
    "DetectionModuleConfig",
    "LandmarkModuleConfig",
    "MultiTaskModuleConfig",
    "RecipeConfig",
]


@dataclass
class RecipeConfig:
    """Keys of every recipe."""

    channels: int = 48
    head_channels: int = 64
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    warmup_steps: int = 50


@dataclass
class DetectionModuleConfig(RecipeConfig):
    """Keys of ``lit_loader.recipes.DetectionModule``."""

    class_names: Any = None
    head_convs: int = 1
    strides: list[int] = field(default_factory=list)
    min_size: int = 96
    max_size: int = 192
    score_thresh: float = 0.05
    nms_thresh: float = 0.6
    detections_per_img: int = 100


@dataclass
class LandmarkModuleConfig(RecipeConfig):
    """Keys of ``lit_loader.recipes.LandmarkModule``."""

    keypoint_names: Any = None
    class_names: Any = None
    normalize_by: Optional[str] = None
    normalization_pair: Any = None
    failure_threshold: float = 0.10
    stride: int = 4
    heatmap_sigma: float = 1.0
    heatmap_weight: float = 1.0
    class_weight: float = 1.0


@dataclass
class ClassificationModuleConfig(RecipeConfig):
    """Keys of ``lit_loader.recipes.ClassificationModule``."""

    class_names: Any = None
    multi_label: bool = False
    stride: int = 8
    dropout: float = 0.1
    label_smoothing: float = 0.0


@dataclass
class MultiTaskModuleConfig(DetectionModuleConfig):
    """Keys of ``lit_loader.recipes.MultiTaskModule``."""

    keypoint_names: Any = None
    attributes: Any = None
    normalize_by: Optional[str] = None
    normalization_pair: Any = None
    failure_threshold: float = 0.10
    roi_size: int = 8
    box_scale: float = 1.3
    box_jitter: float = 0.1
    heatmap_sigma: float = 1.0
    keypoint_weight: float = 1.0
    attribute_weight: float = 1.0
