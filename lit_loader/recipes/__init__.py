"""Models that train on the batches of the data modules, their metrics, and pictures of predictions."""

from __future__ import annotations

from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.classification import ClassificationTask, replace_classifier
from lit_loader.recipes.detection import DetectionTask, replace_detection_heads
from lit_loader.recipes.heatmap_model import HeatmapModel, heatmap_model, heatmaps_small
from lit_loader.recipes.keypoint_metric import KeypointScores
from lit_loader.recipes.keypoints import KeypointTask
from lit_loader.recipes.landmarks import LandmarkTask
from lit_loader.recipes.losses import ClassificationLoss, LandmarkLoss, WingLoss
from lit_loader.recipes.metrics import ClassificationScores, ClassMetric, LandmarkScores, NormalizedMeanError
from lit_loader.recipes.multi_task import MultiTask
from lit_loader.recipes.multi_task_metric import MultiTaskScores
from lit_loader.recipes.multi_task_model import MultiTaskModel
from lit_loader.recipes.network import PyramidBackbone, classifier_small, fcos_small
from lit_loader.recipes.regression_model import RegressionModel, regression_model, regression_small
from lit_loader.recipes.rfdetr_detector import RFDETRDetector, rfdetr_detector
from lit_loader.recipes.small_rcnn import keypointrcnn_small, maskrcnn_small
from lit_loader.recipes.task import Task, WarmupCosineLR
from lit_loader.recipes.transformers_detector import TransformersDetector, transformers_detector
from lit_loader.recipes.with_datamodule import check_model_fits, draw_predictions, model_kwargs_from_datamodule, task_of
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = [
    "AveragePrecision",
    "ClassMetric",
    "ClassificationLoss",
    "ClassificationScores",
    "ClassificationTask",
    "DetectionScores",
    "DetectionTask",
    "HeatmapModel",
    "KeypointScores",
    "KeypointTask",
    "LandmarkLoss",
    "LandmarkScores",
    "LandmarkTask",
    "MultiTask",
    "MultiTaskModel",
    "MultiTaskScores",
    "NormalizedMeanError",
    "PyramidBackbone",
    "RFDETRDetector",
    "RegressionModel",
    "Task",
    "TransformersDetector",
    "WarmupCosineLR",
    "WingLoss",
    "WithoutDuplicates",
    "check_model_fits",
    "classifier_small",
    "draw_predictions",
    "fcos_small",
    "heatmap_model",
    "heatmaps_small",
    "keypointrcnn_small",
    "maskrcnn_small",
    "model_kwargs_from_datamodule",
    "regression_model",
    "regression_small",
    "replace_classifier",
    "replace_detection_heads",
    "rfdetr_detector",
    "task_of",
    "transformers_detector",
]
