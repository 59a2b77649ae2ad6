"""Collate functions, which turn a list of samples into a batch, and accessors for the contents of a batch."""

from __future__ import annotations

from torch.utils.data import default_convert

from lit_loader.collate.batch_mixing import BatchMixing
from lit_loader.collate.batches import batch_duplicates, batch_images, batch_labels, batch_targets
from lit_loader.collate.classification import ClassificationBatch, ClassificationCollate
from lit_loader.collate.default import default_collate
from lit_loader.collate.detection import DetectionCollate, PaddedBatch, detection_collate
from lit_loader.collate.landmarks import LandmarkBatch, LandmarkCollate
from lit_loader.collate.multi_task import MultiTaskBatch, MultiTaskCollate

__all__ = [
    "BatchMixing",
    "ClassificationBatch",
    "ClassificationCollate",
    "DetectionCollate",
    "LandmarkBatch",
    "LandmarkCollate",
    "MultiTaskBatch",
    "MultiTaskCollate",
    "PaddedBatch",
    "batch_duplicates",
    "batch_images",
    "batch_labels",
    "batch_targets",
    "default_collate",
    "default_convert",
    "detection_collate",
]
