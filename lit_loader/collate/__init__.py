"""Collate functions: samples to a batch."""

from __future__ import annotations

from torch.utils.data import default_convert

from lit_loader.collate.default import default_collate
from lit_loader.collate.detection import (
    DetectionCollate,
    PaddedBatch,
    batch_images,
    batch_targets,
    detection_collate,
)

__all__ = [
    "DetectionCollate",
    "PaddedBatch",
    "batch_images",
    "batch_targets",
    "default_collate",
    "default_convert",
    "detection_collate",
]
