"""Models that train on the batches of the data modules, their metrics, and pictures of predictions."""

from __future__ import annotations

from lit_loader.recipes.detection import DetectionTask, replace_detection_heads
from lit_loader.recipes.metrics import (
    AveragePrecision,
    ClassificationScores,
    ClassMetric,
    DetectionScores,
    LandmarkScores,
    NormalizedMeanError,
)
from lit_loader.recipes.network import PyramidBackbone, fcos_small
from lit_loader.recipes.task import Task, WarmupCosineLR
from lit_loader.recipes.with_datamodule import draw_predictions, model_kwargs_from_datamodule
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = [
    "AveragePrecision",
    "ClassMetric",
    "ClassificationScores",
    "DetectionScores",
    "DetectionTask",
    "LandmarkScores",
    "NormalizedMeanError",
    "PyramidBackbone",
    "Task",
    "WarmupCosineLR",
    "WithoutDuplicates",
    "draw_predictions",
    "fcos_small",
    "model_kwargs_from_datamodule",
    "replace_detection_heads",
]
