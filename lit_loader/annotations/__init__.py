"""Annotations: one columnar table, its readers and writers, its cache, and what follows from it."""

from __future__ import annotations

from lit_loader.annotations.paths import resolve_under
from lit_loader.annotations.report import Problem, ReadReport
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.annotations.voc import read_voc
from lit_loader.annotations.voc_policy import VocPolicy
from lit_loader.annotations.voc_writer import write_voc, write_voc_xml
from lit_loader.annotations.weights import LabelSets, class_weights, image_labels, image_weights

__all__ = [
    "AnnotationTable",
    "Attribute",
    "LabelSets",
    "Problem",
    "ReadReport",
    "VocPolicy",
    "class_weights",
    "image_labels",
    "image_weights",
    "read_voc",
    "resolve_under",
    "write_voc",
    "write_voc_xml",
]
