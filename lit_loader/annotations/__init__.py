"""Annotations: one columnar table, its cache, and what follows from it."""

from __future__ import annotations

from lit_loader.annotations.paths import resolve_under
from lit_loader.annotations.report import Problem, ReadReport
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.annotations.weights import LabelSets, class_weights, image_labels, image_weights

__all__ = [
    "AnnotationTable",
    "Attribute",
    "LabelSets",
    "Problem",
    "ReadReport",
    "class_weights",
    "image_labels",
    "image_weights",
    "resolve_under",
]
