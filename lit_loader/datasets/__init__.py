"""Datasets, and the sources that say where they lie."""

from __future__ import annotations

from lit_loader.datasets.detection import DetectionDataset, DetectionSample
from lit_loader.datasets.images import MAX_PIXELS, decode_image
from lit_loader.datasets.shapes import draw_shapes, shapes_root
from lit_loader.datasets.sources import DetectionSource, ShapesSource, Stage, VocSource

__all__ = [
    "DetectionDataset",
    "DetectionSample",
    "DetectionSource",
    "MAX_PIXELS",
    "ShapesSource",
    "Stage",
    "VocSource",
    "decode_image",
    "draw_shapes",
    "shapes_root",
]
