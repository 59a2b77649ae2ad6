"""Models that train out of the box on what the DataModules give."""

from __future__ import annotations

from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.backbone import PyramidBackbone
from lit_loader.recipes.detection import DetectionModule, learning_rate_factor

__all__ = [
    "AveragePrecision",
    "DetectionModule",
    "DetectionScores",
    "PyramidBackbone",
    "learning_rate_factor",
]
