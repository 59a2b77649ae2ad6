"""Collate functions: samples to a batch."""

from __future__ import annotations

from torch.utils.data import default_convert

from lit_loader.collate.default import default_collate
from lit_loader.collate.detection import DetectionCollate, PaddedBatch, detection_collate

__all__ = ["DetectionCollate", "PaddedBatch", "default_collate", "default_convert", "detection_collate"]
