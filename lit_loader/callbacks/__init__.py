"""Lightning callbacks."""

from __future__ import annotations

from lit_loader.callbacks.bad_samples import BadSampleReport
from lit_loader.callbacks.data_monitor import DataMonitor
from lit_loader.callbacks.ema_weights import EmaWeights
from lit_loader.callbacks.evaluation_curves import EvaluationCurves
from lit_loader.callbacks.monitors import ClassMix, ClassMixMonitor
from lit_loader.callbacks.pictures import PictureLogger, class_reports
from lit_loader.callbacks.prediction_writer import PredictionWriter
from lit_loader.callbacks.progress import EpochLines, TrainingProgressBar
from lit_loader.callbacks.resume_loaders import ResumeLoaders
from lit_loader.callbacks.reweight import ReweightClasses, recall_weights
from lit_loader.callbacks.sigterm import SigtermCheckpoint
from lit_loader.callbacks.tile_merging import MergedBoxes, merge_boxes

__all__ = [
    "BadSampleReport",
    "ClassMix",
    "ClassMixMonitor",
    "DataMonitor",
    "EmaWeights",
    "EpochLines",
    "EvaluationCurves",
    "MergedBoxes",
    "PictureLogger",
    "PredictionWriter",
    "ResumeLoaders",
    "ReweightClasses",
    "SigtermCheckpoint",
    "TrainingProgressBar",
    "class_reports",
    "merge_boxes",
    "recall_weights",
]
