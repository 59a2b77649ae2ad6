"""Data loading for detection, landmark and classification training: balanced, seeded, exact."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# A module is imported when one of its names is first used, so `import lit_loader` imports no torch and starts nothing.
# Type checkers read `__init__.pyi`, which imports the same names; a test compares the two.
_NAMES_BY_MODULE: dict[str, tuple[str, ...]] = {
    "lit_loader.annotations": (
        "AnnotationTable",
        "KeypointSchema",
        "Tiling",
        "class_weights",
        "concatenate",
        "image_weights",
        "keypoint_schema",
        "tile_table",
    ),
    "lit_loader.annotations.formats": (
        "ReadOptions",
        "ReadPolicy",
        "Reader",
        "Writer",
        "read_annotations",
        "readers",
        "register_format",
        "write_annotations",
        "writers",
    ),
    "lit_loader.callbacks": (
        "BadSampleReport",
        "ClassMixMonitor",
        "DataMonitor",
        "ResumeLoaders",
        "ReweightClasses",
        "recall_weights",
    ),
    "lit_loader.collate": (
        "BatchMixing",
        "ClassificationBatch",
        "ClassificationCollate",
        "DetectionCollate",
        "LandmarkBatch",
        "LandmarkCollate",
        "MultiTaskBatch",
        "MultiTaskCollate",
        "PaddedBatch",
        "default_collate",
        "default_convert",
        "detection_collate",
    ),
    "lit_loader.datamodules": (
        "AspectRatioBatching",
        "BlockShuffleSamplerConfig",
        "ClassAwareSamplerConfig",
        "ClassBalancedSamplerConfig",
        "ClassificationDataModule",
        "DatasetsDataModule",
        "DetectionDataModule",
        "EffectiveNumberSamplerConfig",
        "KeypointDataModule",
        "LandmarkDataModule",
        "MultiTaskDataModule",
        "PlainBatching",
        "RandomSamplerConfig",
        "RepeatFactorSamplerConfig",
        "SamplerConfig",
        "SequentialSamplerConfig",
        "SizeBatching",
        "TableDataModule",
        "WeightedSamplerConfig",
        "WorkerSettings",
        "draw_boxes",
        "draw_labels",
        "draw_points",
    ),
    "lit_loader.datasets": (
        "AutoSource",
        "ClassificationDataset",
        "DetectionDataset",
        "FiguresSource",
        "FormatSource",
        "LandmarkDataset",
        "MixedSource",
        "MixingDataset",
        "PackedSource",
        "RowsSource",
        "ShapesSource",
        "TableSource",
        "VocSource",
        "open_source",
    ),
    "lit_loader.engine": ("BadSample", "append_bad_samples"),
    "lit_loader.images": ("CacheSettings", "ImageReading"),
    "lit_loader.inspection.shuffle_quality": ("ShuffleQuality", "shuffle_quality"),
    "lit_loader.inspection.statistics": ("DatasetStatistics", "statistics_of"),
    "lit_loader.inspection.statistics_plots": ("draw_sampling", "draw_statistics"),
    "lit_loader.inspection.statistics_sampling": ("BatchShape", "SamplingStatistics", "sampling_statistics"),
    "lit_loader.loader": ("DataLoader",),
    "lit_loader.loader.forkserver": ("start_forkserver",),
    "lit_loader.mixing": ("Mix", "MixSample"),
    "lit_loader.monitoring": ("LoopMonitor",),
    "lit_loader.samplers": (
        "BlockShuffleSampler",
        "ClassAwareSampler",
        "ClassBalancedSampler",
        "GroupedSampler",
        "MixedSourceSampler",
        "OrderSampler",
        "RandomSampler",
        "RepeatFactorSampler",
        "SequentialSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
    ),
    "lit_loader.schedules": ("BatchChoice", "EpochRange", "FunctionSchedule", "LinearSchedule", "Schedule"),
    "lit_loader.seeding": (
        "current_batch",
        "current_epoch",
        "get_worker_info",
        "is_duplicate",
        "sample_key",
        "sample_rng",
    ),
    "lit_loader.transforms": (
        "CopyPaste",
        "MixUp",
        "Mosaic",
        "ScheduledTransform",
        "classification_transforms",
        "detection_transforms",
        "landmark_transforms",
    ),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULE_BY_NAME)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value  # later uses of the name do not call `__getattr__`
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
