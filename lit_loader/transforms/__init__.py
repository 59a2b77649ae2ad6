"""Transforms on torchvision's v2 that keep boxes, labels and every per-object field row-aligned."""

from __future__ import annotations

from lit_loader.transforms.detection import detection_transforms
from lit_loader.transforms.geometry import Letterbox, RandomObjectCrop
from lit_loader.transforms.sanitize import PER_IMAGE_FIELDS, PER_OBJECT_FIELDS, ObjectFields, SanitizeObjects

__all__ = [
    "Letterbox",
    "ObjectFields",
    "PER_IMAGE_FIELDS",
    "PER_OBJECT_FIELDS",
    "RandomObjectCrop",
    "SanitizeObjects",
    "detection_transforms",
]
