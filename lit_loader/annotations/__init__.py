"""Annotations: one columnar table, its cache, and what follows from it."""

from __future__ import annotations

from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS, KeypointSchema, keypoint_schema, names_without_mirror
from lit_loader.annotations.masks import Masks, RunLengths
from lit_loader.annotations.merge import concatenate, with_same_names
from lit_loader.annotations.places import Place
from lit_loader.annotations.problems import Problem, ReadReport
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.annotations.tiling import Tiling, tile_images, tile_table
from lit_loader.annotations.weights import LabelSets, class_weights, image_labels, image_weights, label_counts

__all__ = [
    "AnnotationTable",
    "Attribute",
    "KEYPOINT_SCHEMAS",
    "KeypointSchema",
    "LabelSets",
    "Masks",
    "Place",
    "Problem",
    "ReadReport",
    "RunLengths",
    "Tiling",
    "class_weights",
    "concatenate",
    "image_labels",
    "image_weights",
    "keypoint_schema",
    "label_counts",
    "names_without_mirror",
    "tile_images",
    "tile_table",
    "with_same_names",
]
