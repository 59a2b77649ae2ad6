"""Schemas of the transforms' presets: as keywords of a data module, or called by ``_target_``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

__all__ = [
    "ClassificationPresetConfig",
    "ClassificationTransformsConfig",
    "DetectionPresetConfig",
    "DetectionTransformsConfig",
    "LandmarkPresetConfig",
    "LandmarkTransformsConfig",
]

# A data module calls its preset with what a stage and its table say (train, flip_pairs, names of fields); the
# keys of a preset are the others. By _target_ all keywords of the function are given.


@dataclass
class DetectionPresetConfig:
    """Keywords of ``detection_transforms`` that a data module leaves to the config."""

    size: Any = None
    max_size: Optional[int] = None
    shorter_sides: Optional[list[int]] = None
    letterbox: bool = False
    fill: float = 0
    hflip: float = 0.5
    vflip: float = 0.0
    photometric: float = 0.0
    zoom_out: float = 0.0
    iou_crop: float = 0.0
    rotation: float = 0.0
    min_box_size: float = 1.0
    min_box_area: float = 1.0
    to_float: bool = True


@dataclass
class DetectionTransformsConfig(DetectionPresetConfig):
    """Keys of ``lit_loader.transforms.detection_transforms``."""

    train: bool = MISSING
    flip_pairs: Optional[list[Any]] = None
    per_object: list[str] = field(default_factory=list)
    per_image: list[str] = field(default_factory=list)


@dataclass
class LandmarkPresetConfig:
    """Keywords of ``landmark_transforms`` that a data module leaves to the config."""

    size: int = MISSING
    margin: float = 0.25
    around: str = "box"
    shift: float = 0.0
    scale: list[float] = field(default_factory=list)
    rotation: float = 0.0
    hflip: float = 0.5
    photometric: float = 0.0
    fill: float = 0
    to_float: bool = True


@dataclass
class LandmarkTransformsConfig(LandmarkPresetConfig):
    """Keys of ``lit_loader.transforms.landmark_transforms``."""

    train: bool = MISSING
    flip_pairs: Optional[list[Any]] = None


@dataclass
class ClassificationPresetConfig:
    """Keywords of ``classification_transforms`` that a data module leaves to the config."""

    size: Any = MISSING
    area: Optional[list[float]] = None
    resize: Optional[str] = None
    margin: float = 0.0
    shift: float = 0.0
    scale: list[float] = field(default_factory=list)
    rotation: float = 0.0
    hflip: float = 0.5
    vflip: float = 0.0
    photometric: float = 0.0
    fill: float = 0
    to_float: bool = True


@dataclass
class ClassificationTransformsConfig(ClassificationPresetConfig):
    """Keys of ``lit_loader.transforms.classification_transforms``."""

    train: bool = MISSING
    crop: bool = False
    flip_pairs: Optional[list[Any]] = None
