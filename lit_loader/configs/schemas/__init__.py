"""Schemas: the keys of every node of the configs in ``conf/``, with their types.

The shipped YAML files hold every key of these classes, so that each can be set without a ``+``; a test
compares both with the signatures that the values go to.
"""

from __future__ import annotations

from lit_loader.configs.schemas.batching import (
    AspectRatioBatchingConfig,
    PlainBatchingConfig,
    SizeBatchingConfig,
)
from lit_loader.configs.schemas.datamodules import (
    ClassificationDataModuleConfig,
    DetectionDataModuleConfig,
    LandmarkDataModuleConfig,
    MultiTaskDataModuleConfig,
)
from lit_loader.configs.schemas.models import (
    ClassificationModuleConfig,
    DetectionModuleConfig,
    LandmarkModuleConfig,
    MultiTaskModuleConfig,
)
from lit_loader.configs.schemas.run import RootConfig, TrainerConfig, WorkersConfig
from lit_loader.configs.schemas.sampling import (
    ClassAwareSamplingConfig,
    ClassBalancedSamplingConfig,
    EffectiveNumberSamplingConfig,
    RandomSamplingConfig,
    RepeatFactorSamplingConfig,
    SequentialSamplingConfig,
    WeightedSamplingConfig,
)
from lit_loader.configs.schemas.sources import FormatSourceConfig, ShapesSourceConfig, VocSourceConfig
from lit_loader.configs.schemas.transforms import (
    ClassificationPresetConfig,
    ClassificationTransformsConfig,
    DetectionPresetConfig,
    DetectionTransformsConfig,
    LandmarkPresetConfig,
    LandmarkTransformsConfig,
)

__all__ = ["GROUPS", "NODES", "OPTIONS", "PRESETS", "RootConfig", "TARGETS", "TrainerConfig", "WorkersConfig"]

# OmegaConf reads annotations at run time and knows Optional[int], not int | None written as a string;
# Any stands where a value may be of several kinds.

_STAGES = ("train", "val", "test", "predict")

GROUPS: dict[str, dict[str, type]] = {
    "dataset": {
        "lit_loader.datasets.FormatSource": FormatSourceConfig,
        "lit_loader.datasets.ShapesSource": ShapesSourceConfig,
        "lit_loader.datasets.VocSource": VocSourceConfig,
    },
    "sampler": {
        "lit_loader.datamodules.RandomSamplerConfig": RandomSamplingConfig,
        "lit_loader.datamodules.SequentialSamplerConfig": SequentialSamplingConfig,
        "lit_loader.datamodules.WeightedSamplerConfig": WeightedSamplingConfig,
        "lit_loader.datamodules.ClassBalancedSamplerConfig": ClassBalancedSamplingConfig,
        "lit_loader.datamodules.ClassAwareSamplerConfig": ClassAwareSamplingConfig,
        "lit_loader.datamodules.RepeatFactorSamplerConfig": RepeatFactorSamplingConfig,
        "lit_loader.datamodules.EffectiveNumberSamplerConfig": EffectiveNumberSamplingConfig,
    },
    "batching": {
        "lit_loader.datamodules.PlainBatching": PlainBatchingConfig,
        "lit_loader.datamodules.AspectRatioBatching": AspectRatioBatchingConfig,
        "lit_loader.datamodules.SizeBatching": SizeBatchingConfig,
    },
    "workers": {"": WorkersConfig},
    "datamodule": {
        "lit_loader.datamodules.ClassificationDataModule": ClassificationDataModuleConfig,
        "lit_loader.datamodules.DetectionDataModule": DetectionDataModuleConfig,
        "lit_loader.datamodules.LandmarkDataModule": LandmarkDataModuleConfig,
        "lit_loader.datamodules.MultiTaskDataModule": MultiTaskDataModuleConfig,
    },
    "model": {
        "lit_loader.recipes.ClassificationModule": ClassificationModuleConfig,
        "lit_loader.recipes.DetectionModule": DetectionModuleConfig,
        "lit_loader.recipes.LandmarkModule": LandmarkModuleConfig,
        "lit_loader.recipes.MultiTaskModule": MultiTaskModuleConfig,
    },
    "trainer": {"lightning.pytorch.Trainer": TrainerConfig},
}
"""Config groups, and for each ``_target_`` in one the schema of its keys (``""``: a group without target)."""

TARGETS: dict[str, type] = {
    **{target: schema for schemas in GROUPS.values() for target, schema in schemas.items() if target},
    "lit_loader.transforms.classification_transforms": ClassificationTransformsConfig,
    "lit_loader.transforms.detection_transforms": DetectionTransformsConfig,
    "lit_loader.transforms.landmark_transforms": LandmarkTransformsConfig,
}
"""The schema of every ``_target_`` that is checked, wherever it stands in a config."""

PRESETS: dict[tuple[str, str | None], type] = {
    ("lit_loader.datamodules.ClassificationDataModule", None): ClassificationPresetConfig,
    ("lit_loader.datamodules.DetectionDataModule", None): DetectionPresetConfig,
    ("lit_loader.datamodules.LandmarkDataModule", "object"): LandmarkPresetConfig,
    ("lit_loader.datamodules.LandmarkDataModule", "image"): DetectionPresetConfig,
    ("lit_loader.datamodules.MultiTaskDataModule", None): DetectionPresetConfig,
}
"""The schema of a stage's transforms given as keywords, by data module and, where it decides, ``objects``."""

NODES: dict[str, tuple[type, ...]] = {
    "": (RootConfig,),
    **{group: tuple(schemas.values()) for group, schemas in GROUPS.items()},
    **{f"datamodule.{stage}_transforms": tuple(dict.fromkeys(PRESETS.values())) for stage in _STAGES},
}
"""Where a node of the configs in ``conf/`` stands, and the schemas that it may have there."""

OPTIONS: dict[type, str] = {
    ShapesSourceConfig: "dataset=shapes",
    VocSourceConfig: "dataset=voc",
    FormatSourceConfig: "dataset=files",
    WeightedSamplingConfig: "sampler=weighted",
    ClassBalancedSamplingConfig: "sampler=class_balanced",
    ClassAwareSamplingConfig: "sampler=class_aware",
    RepeatFactorSamplingConfig: "sampler=repeat_factor",
    EffectiveNumberSamplingConfig: "sampler=effective_number",
    AspectRatioBatchingConfig: "batching=aspect_ratio",
    SizeBatchingConfig: "batching=size",
    ClassificationDataModuleConfig: "datamodule=classification",
    DetectionDataModuleConfig: "datamodule=detection",
    LandmarkDataModuleConfig: "datamodule=landmarks",
    MultiTaskDataModuleConfig: "datamodule=multi_task",
    ClassificationModuleConfig: "model=classifier_small",
    DetectionModuleConfig: "model=fcos_small",
    LandmarkModuleConfig: "model=heatmaps_small",
    MultiTaskModuleConfig: "model=multi_task_small",
    ClassificationPresetConfig: "datamodule=classification",
    DetectionPresetConfig: "datamodule=detection",
    LandmarkPresetConfig: "datamodule=landmarks",
}
"""For a schema with keys of its own in a group with several: the choice that brings it."""
