"""Lightning data modules in front of the loader."""

from __future__ import annotations

from lit_loader.datamodules.base import LoaderDataModule
from lit_loader.datamodules.detection import DetectionDataModule
from lit_loader.datamodules.pictures import draw_boxes
from lit_loader.datamodules.sampling import (
    ClassBalancedSampling,
    RandomSampling,
    Sampling,
    SequentialSampling,
    WeightedSampling,
)
from lit_loader.datamodules.summary import SetSummary, expected_class_mix, summary_table

__all__ = [
    "ClassBalancedSampling",
    "DetectionDataModule",
    "LoaderDataModule",
    "RandomSampling",
    "Sampling",
    "SequentialSampling",
    "SetSummary",
    "WeightedSampling",
    "draw_boxes",
    "expected_class_mix",
    "summary_table",
]
