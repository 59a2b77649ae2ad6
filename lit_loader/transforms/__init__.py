"""Transforms on torchvision's v2 that keep boxes, points, labels and every per-object field row-aligned."""

from __future__ import annotations

from lit_loader.transforms.albumentations import AlbumentationsTransform
from lit_loader.transforms.batch_normalize import NormalizeBatch
from lit_loader.transforms.compose import DecodeAwareCompose
from lit_loader.transforms.coordinates import to_image_points
from lit_loader.transforms.copy_paste import CopyPaste
from lit_loader.transforms.crops import CropToObjects
from lit_loader.transforms.description import describe
from lit_loader.transforms.detection import detection_transforms
from lit_loader.transforms.finish import ToFloat32, ToUInt8
from lit_loader.transforms.flips import RandomHorizontalFlip, RandomVerticalFlip
from lit_loader.transforms.geometry import Letterbox, RandomObjectCrop
from lit_loader.transforms.mixup import MixUp
from lit_loader.transforms.mosaic import Mosaic
from lit_loader.transforms.object_presets import classification_transforms, landmark_transforms
from lit_loader.transforms.resized_crop import RandomResizedCrop
from lit_loader.transforms.sanitize import PER_IMAGE_FIELDS, PER_OBJECT_FIELDS, SanitizeObjects
from lit_loader.transforms.scheduled import ScheduledTransform
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = [
    "AlbumentationsTransform",
    "CopyPaste",
    "CropToObjects",
    "DecodeAwareCompose",
    "Letterbox",
    "MixUp",
    "Mosaic",
    "NormalizeBatch",
    "PER_IMAGE_FIELDS",
    "PER_OBJECT_FIELDS",
    "RandomHorizontalFlip",
    "RandomObjectCrop",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "SanitizeObjects",
    "ScheduledTransform",
    "ToFloat32",
    "ToUInt8",
    "UpdateVisibility",
    "classification_transforms",
    "describe",
    "detection_transforms",
    "landmark_transforms",
    "to_image_points",
]
