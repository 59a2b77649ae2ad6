"""Datasets, and the sources that provide their annotation tables."""

from __future__ import annotations

from lit_loader.datasets.auto_source import AutoSource, dataset_overrides, open_source
from lit_loader.datasets.classification import ClassificationDataset, ClassificationSample
from lit_loader.datasets.detection import DetectionDataset, DetectionSample
from lit_loader.datasets.figures import draw_figures
from lit_loader.datasets.format_source import FiguresSource, FormatSource, ShapesSource, VocSource
from lit_loader.datasets.image_files import ImageFilesSource
from lit_loader.datasets.joined import JoinedDataset
from lit_loader.datasets.landmarks import LandmarkDataset
from lit_loader.datasets.mixed_source import MixedSource
from lit_loader.datasets.mixing import MixingDataset
from lit_loader.datasets.packed_source import PackedSource
from lit_loader.datasets.rows_source import RowsSource
from lit_loader.datasets.samples import SampleTable, every_sample, keypoint_samples, labelled_samples, landmark_samples
from lit_loader.datasets.shapes import draw_shapes
from lit_loader.datasets.sources import Stage, TableSource

__all__ = [
    "AutoSource",
    "ClassificationDataset",
    "ClassificationSample",
    "DetectionDataset",
    "DetectionSample",
    "FiguresSource",
    "FormatSource",
    "ImageFilesSource",
    "JoinedDataset",
    "LandmarkDataset",
    "MixedSource",
    "MixingDataset",
    "PackedSource",
    "RowsSource",
    "SampleTable",
    "ShapesSource",
    "Stage",
    "TableSource",
    "VocSource",
    "dataset_overrides",
    "draw_figures",
    "draw_shapes",
    "every_sample",
    "keypoint_samples",
    "labelled_samples",
    "landmark_samples",
    "open_source",
]
