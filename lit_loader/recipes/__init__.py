"""Models that train from scratch on the batches of the data modules, their metrics, and pictures of predictions."""

from __future__ import annotations

from lit_loader.recipes.classification import ClassificationModule
from lit_loader.recipes.detection import DetectionModule
from lit_loader.recipes.landmarks import LandmarkModule
from lit_loader.recipes.metrics import (
    AveragePrecision,
    ClassificationScores,
    ClassMetric,
    DetectionScores,
    LandmarkScores,
    NormalizedMeanError,
)
from lit_loader.recipes.module import RecipeModule, learning_rate_factor
from lit_loader.recipes.multi_task import MultiTaskModule
from lit_loader.recipes.multi_task_metric import MultiTaskScores
from lit_loader.recipes.network import PyramidBackbone
from lit_loader.recipes.with_datamodule import draw_predictions, model_kwargs_from_datamodule
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = [
    "AveragePrecision",
    "ClassMetric",
    "ClassificationModule",
    "ClassificationScores",
    "DetectionModule",
    "DetectionScores",
    "LandmarkModule",
    "LandmarkScores",
    "MultiTaskModule",
    "MultiTaskScores",
    "NormalizedMeanError",
    "PyramidBackbone",
    "RecipeModule",
    "WithoutDuplicates",
    "draw_predictions",
    "learning_rate_factor",
    "model_kwargs_from_datamodule",
]
