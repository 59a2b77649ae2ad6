"""Models that train out of the box on what the DataModules give."""

from __future__ import annotations

from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.backbone import PyramidBackbone
from lit_loader.recipes.class_scores import ClassificationScores, ClassMetric
from lit_loader.recipes.classification import ClassificationModule
from lit_loader.recipes.detection import DetectionModule
from lit_loader.recipes.landmark_error import LandmarkScores, NormalizedMeanError
from lit_loader.recipes.landmarks import LandmarkModule
from lit_loader.recipes.module import RecipeModule
from lit_loader.recipes.multi_task import MultiTaskModule
from lit_loader.recipes.multi_task_scores import MultiTaskScores
from lit_loader.recipes.names_from_data import names_from_data
from lit_loader.recipes.pictures import draw_predictions
from lit_loader.recipes.schedule import learning_rate_factor
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
    "names_from_data",
]
