"""Schemas: the keys of every node of the configs in ``conf/``, with their types.

The shipped YAML files hold every key of these classes, so that each can be set without a ``+``; a test
compares both with the signatures that the values go to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

from omegaconf import MISSING

__all__ = [
    "ClassBalancedSamplingConfig",
    "DetectionDataModuleConfig",
    "DetectionModuleConfig",
    "DetectionTransformsConfig",
    "GROUPS",
    "NODES",
    "OPTIONS",
    "RandomSamplingConfig",
    "RootConfig",
    "SequentialSamplingConfig",
    "ShapesSourceConfig",
    "TARGETS",
    "TrainerConfig",
    "VocSourceConfig",
    "WeightedSamplingConfig",
    "WorkersConfig",
]

# OmegaConf reads annotations at run time and knows Optional[int], not int | None written as a string;
# Any stands where a value may be of several kinds.


@dataclass
class RootConfig:
    """Keys of ``conf/train.yaml`` that are in no group."""

    seed: Optional[int] = None
    num_threads: int = 1
    show_progress: bool = True


@dataclass
class ShapesSourceConfig:
    """Keys of ``lit_loader.datasets.ShapesSource``."""

    num_images: dict[str, int] = field(default_factory=dict)
    image_size: int = 96
    objects_per_image: list[int] = field(default_factory=list)
    class_shares: list[float] = field(default_factory=list)
    seed: int = 0
    cache_dir: Optional[str] = None
    progress: bool = True


@dataclass
class VocSourceConfig:
    """Keys of ``lit_loader.datasets.VocSource``."""

    root: str = MISSING
    train: Optional[str] = "train"
    val: Any = "val"
    test: Any = "test"
    predict: Any = None
    class_names: Optional[list[str]] = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    policy: dict[str, Any] = field(default_factory=dict)
    cache_dir: Optional[str] = None
    num_workers: Optional[int] = None
    progress: bool = True


@dataclass
class RandomSamplingConfig:
    """``lit_loader.datamodules.RandomSampling`` has no keys."""


@dataclass
class SequentialSamplingConfig:
    """``lit_loader.datamodules.SequentialSampling`` has no keys."""


@dataclass
class WeightedSamplingConfig:
    """Keys of ``lit_loader.datamodules.WeightedSampling``."""

    exponent: float = 1.0
    reduce: str = "mean"
    num_samples: Optional[int] = None
    replacement: bool = True


@dataclass
class ClassBalancedSamplingConfig:
    """Keys of ``lit_loader.datamodules.ClassBalancedSampling``."""

    temperature: float = 1.0
    num_samples: Optional[int] = None
    empty_share: Optional[float] = None


@dataclass
class WorkersConfig:
    """Keys of the ``workers`` group: worker settings of ``lit_loader.datamodules.LoaderDataModule``."""

    num_workers: int = 0
    prefetch_factor: Optional[int] = None
    persistent_workers: Optional[bool] = None
    multiprocessing_context: Optional[str] = None
    pin_memory: Optional[bool] = None
    timeout: float = 0.0


@dataclass
class DetectionDataModuleConfig(WorkersConfig):
    """Keys of ``lit_loader.datamodules.DetectionDataModule``."""

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
    train_transforms: Any = None
    val_transforms: Any = None
    test_transforms: Any = None
    predict_transforms: Any = None
    images: str = "list"
    size_divisor: int = 1
    collate_fn: Any = None
    batch_transforms: Any = None
    first_label: int = 1
    extra_fields: list[str] = field(default_factory=list)
    size_mismatch: str = "clip"
    exif_orientation: bool = True
    max_pixels: int = 89_478_485
    drop_last: bool = False
    seed: Optional[int] = None


@dataclass
class DetectionTransformsConfig:
    """Keys of ``lit_loader.transforms.detection_transforms``."""

    train: bool = MISSING
    size: Any = None
    max_size: Optional[int] = None
    letterbox: bool = False
    fill: float = 0
    hflip: float = 0.5
    vflip: float = 0.0
    photometric: float = 0.0
    zoom_out: float = 0.0
    iou_crop: float = 0.0
    min_box_size: float = 1.0
    min_box_area: float = 1.0
    per_object: list[str] = field(default_factory=list)
    per_image: list[str] = field(default_factory=list)
    to_float: bool = True


@dataclass
class DetectionModuleConfig:
    """Keys of ``lit_loader.recipes.DetectionModule``."""

    class_names: Any = None
    channels: int = 48
    head_channels: int = 64
    head_convs: int = 1
    strides: list[int] = field(default_factory=list)
    min_size: int = 96
    max_size: int = 192
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    warmup_steps: int = 50
    score_thresh: float = 0.05
    nms_thresh: float = 0.6
    detections_per_img: int = 100


@dataclass
class TrainerConfig:
    """The keys of Lightning's ``Trainer`` that are often set; others may be added with ``+trainer.KEY=``."""

    accelerator: str = "auto"
    devices: Any = "auto"
    strategy: str = "auto"
    num_nodes: int = 1
    precision: Any = None
    max_epochs: Optional[int] = None
    max_steps: int = -1
    limit_train_batches: Optional[Union[int, float]] = None
    limit_val_batches: Optional[Union[int, float]] = None
    limit_test_batches: Optional[Union[int, float]] = None
    val_check_interval: Optional[Union[int, float]] = None
    check_val_every_n_epoch: Optional[int] = 1
    num_sanity_val_steps: Optional[int] = None
    gradient_clip_val: Optional[float] = None
    accumulate_grad_batches: int = 1
    log_every_n_steps: Optional[int] = None
    deterministic: Any = None
    use_distributed_sampler: bool = True


_STAGES = ("train", "val", "test", "predict")

GROUPS: dict[str, dict[str, type]] = {
    "dataset": {
        "lit_loader.datasets.ShapesSource": ShapesSourceConfig,
        "lit_loader.datasets.VocSource": VocSourceConfig,
    },
    "sampler": {
        "lit_loader.datamodules.RandomSampling": RandomSamplingConfig,
        "lit_loader.datamodules.SequentialSampling": SequentialSamplingConfig,
        "lit_loader.datamodules.WeightedSampling": WeightedSamplingConfig,
        "lit_loader.datamodules.ClassBalancedSampling": ClassBalancedSamplingConfig,
    },
    "workers": {"": WorkersConfig},
    "datamodule": {"lit_loader.datamodules.DetectionDataModule": DetectionDataModuleConfig},
    "model": {"lit_loader.recipes.DetectionModule": DetectionModuleConfig},
    "trainer": {"lightning.pytorch.Trainer": TrainerConfig},
}
"""Config groups, and for each ``_target_`` in one the schema of its keys (``""``: a group without target)."""

TARGETS: dict[str, type] = {
    **{target: schema for schemas in GROUPS.values() for target, schema in schemas.items() if target},
    "lit_loader.transforms.detection_transforms": DetectionTransformsConfig,
}
"""The schema of every ``_target_`` that is checked, wherever it stands in a config."""

NODES: dict[str, tuple[type, ...]] = {
    "": (RootConfig,),
    **{group: tuple(schemas.values()) for group, schemas in GROUPS.items()},
    **{f"datamodule.{stage}_transforms": (DetectionTransformsConfig,) for stage in _STAGES},
}
"""Where a node of the configs in ``conf/`` stands, and the schemas that it may have there."""

OPTIONS: dict[type, str] = {
    ShapesSourceConfig: "dataset=shapes",
    VocSourceConfig: "dataset=voc",
    WeightedSamplingConfig: "sampler=weighted",
    ClassBalancedSamplingConfig: "sampler=class_balanced",
}
"""For a schema with keys of its own in a group with several: the choice that brings it."""
