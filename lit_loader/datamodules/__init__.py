"""Lightning data modules in front of the loader."""

from __future__ import annotations

from lit_loader.datamodules.base import LoaderDataModule
from lit_loader.datamodules.batching import AspectRatioBatching, Batching, PlainBatching, SizeBatching
from lit_loader.datamodules.classification import ClassificationDataModule
from lit_loader.datamodules.datasets_module import DatasetsDataModule
from lit_loader.datamodules.detection import DetectionDataModule
from lit_loader.datamodules.keypoints import KeypointDataModule
from lit_loader.datamodules.landmarks import LandmarkDataModule
from lit_loader.datamodules.multi_task import MultiTaskDataModule
from lit_loader.datamodules.pictures import (
    ClassReport,
    draw_boxes,
    draw_class_report,
    draw_labels,
    draw_points,
    label_texts,
)
from lit_loader.datamodules.predictions import draw_found
from lit_loader.datamodules.sampling import (
    BlockShuffleSamplerConfig,
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SamplerConfig,
    SequentialSamplerConfig,
    WeightedSamplerConfig,
)
from lit_loader.datamodules.summary import SetSummary, expected_class_mix, summary_table
from lit_loader.datamodules.table_module import TableDataModule
from lit_loader.datamodules.workers import WorkerSettings

__all__ = [
    "AspectRatioBatching",
    "Batching",
    "BlockShuffleSamplerConfig",
    "ClassAwareSamplerConfig",
    "ClassBalancedSamplerConfig",
    "ClassReport",
    "ClassificationDataModule",
    "DatasetsDataModule",
    "DetectionDataModule",
    "EffectiveNumberSamplerConfig",
    "KeypointDataModule",
    "LandmarkDataModule",
    "LoaderDataModule",
    "MultiTaskDataModule",
    "PlainBatching",
    "RandomSamplerConfig",
    "RepeatFactorSamplerConfig",
    "SamplerConfig",
    "SequentialSamplerConfig",
    "SetSummary",
    "SizeBatching",
    "TableDataModule",
    "WeightedSamplerConfig",
    "WorkerSettings",
    "draw_boxes",
    "draw_class_report",
    "draw_found",
    "draw_labels",
    "draw_points",
    "expected_class_mix",
    "label_texts",
    "summary_table",
]
