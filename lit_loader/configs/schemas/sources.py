"""Schemas of the ``dataset`` group: where the data lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

__all__ = ["FormatSourceConfig", "ShapesSourceConfig", "VocSourceConfig"]


@dataclass
class ShapesSourceConfig:
    """Keys of ``lit_loader.datasets.ShapesSource``."""

    num_images: dict[str, int] = field(default_factory=dict)
    image_size: int = 96
    objects_per_image: list[int] = field(default_factory=list)
    class_shares: list[float] = field(default_factory=list)
    finish_shares: list[float] = field(default_factory=list)
    max_rotation: float = 25.0
    seed: int = 0
    cache_dir: Optional[str] = None
    progress: bool = True


@dataclass
class VocSourceConfig:
    """Keys of ``lit_loader.datasets.VocSource``."""

    options: dict[str, Any] = field(default_factory=dict)
    stage_options: dict[str, Any] = field(default_factory=dict)
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    group_pattern: Optional[str] = None
    seed: int = 0
    root: str = MISSING
    train: Optional[str] = "train"
    val: Any = "val"
    test: Any = "test"
    predict: Any = None
    class_names: Optional[list[str]] = None
    schema: Any = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    policy: dict[str, Any] = field(default_factory=dict)
    cache_dir: Optional[str] = None
    num_workers: Optional[int] = None
    progress: bool = True


@dataclass
class FormatSourceConfig:
    """Keys of ``lit_loader.datasets.FormatSource``."""

    format: str = MISSING
    root: str = MISSING
    train: Optional[str] = None
    val: Any = None
    test: Any = None
    predict: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    stage_options: dict[str, Any] = field(default_factory=dict)
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    group_pattern: Optional[str] = None
    seed: int = 0
    class_names: Optional[list[str]] = None
    policy: dict[str, Any] = field(default_factory=dict)
    cache_dir: Optional[str] = None
    num_workers: Optional[int] = None
    progress: bool = True
