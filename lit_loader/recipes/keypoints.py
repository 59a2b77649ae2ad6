"""Keypoints of several objects: boxes and their points by any model with the signature of torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from lit_loader.annotations import KeypointSchema
from lit_loader.collate import batch_targets
from lit_loader.errors import SettingError
from lit_loader.recipes.average_precision import AveragePrecision
from lit_loader.recipes.detection import DetectionTask, replace_detection_heads
from lit_loader.recipes.keypoint_metric import DEFAULT_SIGMA, CorrectKeypoints, KeypointMetric, KeypointPrecision
from lit_loader.recipes.metrics import NormalizeBy, landmark_metric
from lit_loader.recipes.network import check_keypoints, check_names, plain
from lit_loader.recipes.small_rcnn import keypointrcnn_small
from lit_loader.recipes.weights import ModelBuilder, build_model, model_builder
from lit_loader.types import FIRST_LABEL

__all__ = ["KeypointTask"]

KEYPOINT_MODELS: Final[dict[str, ModelBuilder]] = {"keypointrcnn_small": keypointrcnn_small}
"""This package's builders of keypoint detectors by name."""


class KeypointTask(DetectionTask):
    """Boxes and points of several objects by any model with the signature of ``keypointrcnn_resnet50_fpn``.

    The model is called as `DetectionTask` calls it. Its targets also have ``keypoints`` float32 ``(N, K, 3)``: x and y
    in pixels of the image, and the visibility, 0 for absent points, which are not trained on. Objects without points
    train boxes alone. In evaluation the model also returns ``keypoints`` ``(n, K, 2)`` or ``(n, K, 3)`` and
    ``keypoints_scores`` ``(n, K)``, the value of each point's heatmap.

    `KeypointDataModule` gives the batches: targets have ``keypoints`` ``(N, K, 2)`` and ``visibility`` ``(N, K)``, and
    the fields that `DetectionTask` reads. Crowds are not trained on.

    `forward` returns, besides ``boxes`` (n, 4), ``labels`` (n,) from 1 and ``scores`` (n,), ``keypoints`` float32
    (n, K, 2) in pixels of the image and ``keypoint_scores`` float32 (n, K) in [0, 1]: the sigmoid of the heatmap's
    value, which ranks points; it is not a probability.

    Logs ``train/loss`` and its parts; ``val/keypoint_map`` and ``val/keypoint_map_50``, see `KeypointPrecision`;
    ``val/pck`` and ``val/nme`` of matched objects; ``val/matched``, the share of objects that were found; ``val/map``
    and ``val/map_50`` of boxes; the same under ``test/``.

    Args:
        model: ``keypointrcnn_small``, ``keypointrcnn_resnet50_fpn``, or a builder that is called with ``num_classes=``,
            the classes and the background, and ``num_keypoints=``. See `model_builder`.
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        keypoint_names: Names of the K points of an object.
        sigmas: Sigma of each point for OKS, see `KeypointPrecision`; empty for 0.05 each.
        normalize_by: Normaliser of ``nme``, see `NormalizedMeanError`. None means ``"pair"`` if ``normalization_pair``
            is given and ``"box"`` otherwise.
        normalization_pair: Positions of the two points whose distance may normalise the error.
        failure_threshold: Error at which the curve of errors ends.
        pck_threshold: Largest distance of a correct point, as a share of the larger side of the annotated box.
        weights: Name of weights, such as ``DEFAULT``, or a file, or None for random ones. Heads for other classes or
            another number of points are replaced, see `replace_detection_heads`.
        max_detections: Number of detections per image that the metric of boxes counts, see `DetectionTask`.
        max_keypoint_detections: The same for ``keypoint_map``, by class; COCO counts 20.
        **training: Arguments of `Task`.

    Attributes:
        test_scores: `KeypointScores` of the last test, or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range, or the model predicts no points.
        TypeError: If ``sigmas`` are not numbers.
        OSError: If weights cannot be downloaded or read.
    """

    monitor = "val/keypoint_map"
    monitor_mode = "max"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        class_names: Sequence[str],
        keypoint_names: Sequence[str],
        sigmas: Sequence[float] = (),
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        pck_threshold: float = 0.2,
        weights: str | None = None,
        max_detections: int = 100,
        max_keypoint_detections: int = 20,
        **training: Any,
    ) -> None:
        keypoint_names = check_names("keypoint_names", keypoint_names)
        schema_fields: dict[str, Any] = {"names": keypoint_names, "sigmas": sigmas}  # any sequences become tuples
        sigmas = list(KeypointSchema(**schema_fields).sigmas)
        # `keep_arguments` saves the values that the parameters have now.
        super().__init__(model, class_names=class_names, weights=weights, max_detections=max_detections, **training)
        self.keypoint_names = tuple(keypoint_names)

    def build_detector(self, model: str | ModelBuilder, weights: str | None) -> nn.Module:
        """Return the detector with heads for the classes and points."""
        # Called by the constructor of `DetectionTask`, before the attributes of this class are set.
        num_keypoints = len(self.hparams["keypoint_names"])
        return build_model(
            model_builder(model, KEYPOINT_MODELS),
            num_classes=len(self.class_names) + FIRST_LABEL,
            weights=weights,
            replace_heads=partial(replace_detection_heads, num_keypoints=num_keypoints),
            counts={"num_keypoints": num_keypoints},
        )

    def check_detector(self, detector: nn.Module) -> None:
        """Raise ValueError for a detector of torchvision's without points, or with masks."""
        if self.masks:
            rule = "has no effect on points: keypoint models train on boxes and points"
            raise SettingError("masks", True, rule, settings={"masks": False})
        if isinstance(detector, FasterRCNN) and (
            detector.roi_heads.has_mask() or not detector.roi_heads.has_keypoint()
        ):
            name = type(detector).__name__
            raise ValueError(f"{name} does not predict boxes and points alone; take keypointrcnn_resnet50_fpn")

    def make_metric(self) -> nn.Module:
        """Return the metric of validation and tests."""
        settings = self.hparams
        point_names = settings["keypoint_names"]
        sigmas = settings["sigmas"] or [DEFAULT_SIGMA] * len(point_names)
        return KeypointMetric(
            boxes=AveragePrecision(self.class_names, max_detections=self.max_detections),
            precision=KeypointPrecision(
                self.class_names, sigmas=sigmas, max_detections=settings["max_keypoint_detections"]
            ),
            correct=CorrectKeypoints(len(point_names), threshold=settings["pck_threshold"]),
            errors=landmark_metric(settings),
            point_names=point_names,
        )

    def read_targets(self, batch: Any) -> list[dict[str, Tensor]]:
        """Return the targets of a batch as `DetectionTask` does, with ``keypoints`` float32 ``(N, K, 3)``."""
        targets = super().read_targets(batch)
        for target, fields in zip(targets, batch_targets(batch), strict=True):
            missing = sorted({"keypoints", "visibility"} - fields.keys())
            if missing:
                raise ValueError(f"the targets have no {' and no '.join(missing)}; give batches of KeypointDataModule")
            check_keypoints(fields["keypoints"], self.keypoint_names)
            target["keypoints"] = _with_visibility(plain(fields["keypoints"]), plain(fields["visibility"]))
        return targets

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return ``boxes``, ``labels``, ``scores``, ``keypoints`` and ``keypoint_scores`` of every image.

        Needs ``eval()``.
        """
        detections = super().forward(images)
        for output in detections:
            missing = sorted({"keypoints", "keypoints_scores"} - output.keys())
            if missing:
                name = type(self.model).__name__
                raise ValueError(f"{name} gives no {' and no '.join(missing)}; give a model like Keypoint R-CNN")
            check_keypoints(output["keypoints"], self.keypoint_names)
            # torchvision adds a visibility, which is always 1.
            output["keypoints"] = output["keypoints"][..., :2]
            output["keypoint_scores"] = output.pop("keypoints_scores").sigmoid()
        return detections

    def mark_errors(
        self, batch: Any, predictions: Any, *, min_score: float
    ) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Mark false detections and missed objects as `DetectionTask` does; absent points are not to be drawn."""
        marked = super().mark_errors(batch, predictions, min_score=min_score)
        for _, target in marked:
            points = target["keypoints"]
            target["keypoints"] = points[..., :2]
            target["visibility"] = points[..., 2].to(torch.uint8)
        return marked


def _with_visibility(points: Tensor, visibility: Tensor) -> Tensor:
    """Return points with their visibility as third coordinate, float32 ``(N, K, 3)``; absent ones are zeros."""
    # Their coordinates may be anything, even NaN, which no mask removes from a sum.
    present_points = torch.where(visibility[..., None] > 0, points.float(), 0.0)
    return torch.cat([present_points, visibility[..., None].float()], dim=-1)
