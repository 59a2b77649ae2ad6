"""Landmarks of an object's crop by heatmaps, and its class if asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from torch import Tensor

from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.inspection.curves import EvaluationCurves
from lit_loader.recipes.heatmap_model import heatmap_model, heatmaps_small
from lit_loader.recipes.losses import LandmarkLoss
from lit_loader.recipes.metrics import ClassMetric, JointMetric, LandmarkScores, NormalizeBy, landmark_metric
from lit_loader.recipes.network import (
    NormalizeImages,
    check_keypoints,
    check_labels,
    check_names,
    filled_pair,
    plain,
    soft_argmax,
)
from lit_loader.recipes.task import Metric, Task
from lit_loader.recipes.weights import ModelBuilder, image_mean_std, load_weights, model_builder, takes_argument

__all__ = ["LandmarkMetric", "LandmarkTask"]

HEATMAP_MODELS: Final[dict[str, ModelBuilder]] = {"heatmaps_small": heatmaps_small}
"""This package's models of heatmaps by name."""


class LandmarkMetric(JointMetric):
    """The metrics of points and of classes, updated together.

    Args:
        settings: The hyperparameters of `LandmarkTask`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.points = landmark_metric(settings)
        self.classes = None if settings["class_names"] is None else ClassMetric(settings["class_names"])

    def update(
        self, points: Tensor, target: Tensor, mask: Tensor, boxes: Tensor, logits: Tensor | None, labels: Tensor
    ) -> None:
        """Collect crops: points as `NormalizedMeanError` takes them, logits and true ids of classes."""
        self.points.update(points, target, mask, boxes)
        # A model without a class head predicts no class, and the labels may be unknown.
        if self.classes is not None and logits is not None:
            self.classes.update(logits.argmax(dim=1), labels, logits=logits)

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        classes = None if self.classes is None else self.classes.compute_scores()
        return replace(self.points.compute_scores(), classes=classes)

    def record_curves(self, point_names: Sequence[str]) -> None:
        """Record the curves of both metrics."""
        self.points.record_curves(point_names)
        if self.classes is not None:
            self.classes.record_curves()

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the curves of points and of classes, over all ranks."""
        return self.points.compute_curves() + ([] if self.classes is None else self.classes.compute_curves())


class LandmarkTask(Task):
    """One heatmap a point by any model that returns some; the point is the heatmap's expectation.

    A batch is a `LandmarkBatch`: object crops of one size, float in [0, 1] or uint8, with points in pixels of the crop
    and a mask of those that are present. Absent points teach nothing and are not measured. The task normalises the
    images, see `image_mean_std`; the model is called with float ``(B, 3, H, W)`` and returns a dict: ``heatmaps``,
    logits ``(B, K, h, w)``, and with classes ``class_logits`` ``(B, num_classes)``. The cells of a heatmap are squares
    of ``model.stride`` pixels from the upper left corner; heatmaps of a model without that attribute cover the crop.

    The loss is the loss of the points as shares of the crop, by default their mean absolute error times 100, plus the
    divergence of the heatmaps from a Gaussian, plus the cross-entropy of the class.

    Whole images (``sample_unit="image"`` of `LandmarkDataModule`) are batches of `MultiTask`; this task refuses them.
    Crops are made around the boxes, or points, of the annotations, in evaluation too: with a detector's boxes the error
    is larger.

    Logs ``train/loss`` and its parts, ``val/nme``, ``val/failure_rate``, ``val/auc``, with classes ``val/accuracy`` and
    ``val/macro_f1``, and the same under ``test/``.

    Args:
        model: ``heatmaps_small``; the name of a classifier, such as ``resnet18`` or ``timm/resnet50``, for
            `heatmap_model` on it; or a builder that is called with ``num_keypoints=`` and ``num_classes=``, 0 for none.
        keypoint_names: Names of the K points.
        class_names: Names for a head that classifies the crop, where id ``i`` is ``class_names[i]``, or None for no
            such head.
        normalize_by: Normaliser of the error, see `NormalizedMeanError`. None means ``"pair"`` if
            ``normalization_pair`` is given and ``"box"`` otherwise.
        normalization_pair: Positions of the two points whose distance may normalise the error, if the data has such
            points.
        failure_threshold: Error above which a face counts as failed.
        weights: Given to a builder that takes ``weights``, as `heatmap_model` does for its backbone: a name, such as
            ``DEFAULT``, or a file. Of other builders, and those that have their weights already, a file of the whole
            model, see `load_weights`. None for random ones.
        loss: The losses and their weights, or None for `LandmarkLoss()`.
        **training: Arguments of `Task`.

    Attributes:
        test_scores: Error, failure rate and AUC of the last test, with classes also accuracy and macro-F1; or None
            before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
        OSError: If weights cannot be downloaded or read.
    """

    monitor = "val/nme"
    monitor_mode = "min"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        keypoint_names: Sequence[str],
        class_names: Sequence[str] | None = None,
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        weights: str | None = None,
        loss: LandmarkLoss | None = None,
        **training: Any,
    ) -> None:
        super().__init__(**training)
        self.keep_arguments()
        self.loss = LandmarkLoss() if loss is None else loss
        self.keypoint_names = tuple(check_names("keypoint_names", keypoint_names))
        self.class_names = None if class_names is None else tuple(check_names("class_names", class_names))
        # Before the model: wrong settings of the metric should raise before weights are downloaded.
        self.set_metric(lambda: LandmarkMetric(self.hparams))
        counts = {"num_keypoints": len(self.keypoint_names), "num_classes": len(self.class_names or ())}
        builder = model_builder(model, HEATMAP_MODELS)
        if isinstance(model, str) and model not in HEATMAP_MODELS:
            builder = partial(heatmap_model, backbone=model)  # a classifier, whose name `model_builder` has checked
        builder = partial(builder, **counts)
        if takes_argument(builder, "weights"):
            network = builder(weights=weights)
        else:
            network = builder()
            if weights is not None:
                load_weights(network, weights)
        # Not of `weights`, which belong to the backbone: `heatmap_model` notes their colours in `pretrained_cfg`.
        self.normalize = NormalizeImages(*image_mean_std(network, builder, None))
        self.set_model(network)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the points of every crop.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            ``keypoints`` float32 ``(B, K, 2)``, x and y in pixels of the crop; ``scores`` float32 ``(B, K)``, the
            confidence in each, in [0, 1]; with a class head ``class_logits`` float32 ``(B, num_classes)``.

        Raises:
            ValueError: If the model does not return heatmaps of the points.
        """
        outputs = self._outputs(images)
        points, scores = soft_argmax(outputs["heatmaps"])
        predictions = {"keypoints": points * self._map_size(outputs["heatmaps"], images), "scores": scores}
        if self.class_names is not None:
            predictions["class_logits"] = outputs["class_logits"].float()
        return predictions

    def training_step(self, batch: LandmarkBatch, batch_idx: int) -> Tensor:
        """Return the sum of the losses."""
        batch = self._checked(batch)
        outputs = self._outputs(batch.images)
        logits = outputs["heatmaps"]
        size = self._map_size(logits, batch.images)
        crop = filled_pair(batch.images.shape[-1], batch.images.shape[-2], like=size)
        points, _ = soft_argmax(logits)
        # Points are fractions of the map, whose last cells may reach beyond the crop; the loss is in fractions of the
        # crop, so that it does not depend on the model's stride.
        losses = {"points": self.loss.points(points * (size / crop), batch.keypoints / crop, batch.mask)}
        losses["heatmaps"] = self.loss.heatmaps(logits, batch.keypoints / size, batch.mask)
        if self.class_names is not None:
            losses["classes"] = self.loss.classes(outputs["class_logits"], batch.labels)
        return self.log_sum(losses, batch_size=len(batch.images))

    def collect(self, batch: LandmarkBatch, metric: Metric) -> dict[str, Tensor]:
        """Update a metric with the points and classes of a batch; return the predictions, see `forward`."""
        batch = self._checked(batch)
        predictions = self.forward(batch.images)
        points = (predictions["keypoints"], plain(batch.keypoints), batch.mask, plain(batch.boxes))
        metric.update(*points, predictions.get("class_logits"), batch.labels, is_duplicate=batch.is_duplicate)
        return predictions

    def sample_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[float, str]]:
        """Return the normalised error of each crop, NaN of one that cannot be measured."""
        points = (predictions["keypoints"], plain(batch.keypoints), batch.mask, plain(batch.boxes))
        metric: Any = self.test_metric.metric
        return [(error, f"error {error:.3f}") for error in metric.points.errors(*points).tolist()]

    def _start_curves(self, **limits: Any) -> None:
        metric: Any = self.test_metric.metric
        metric.record_curves(self.keypoint_names)

    def predict_step(self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return the points of a batch, see `forward`, and its ``image_ids``."""
        return {**self.forward(batch.images), "image_ids": batch.image_ids}

    def _outputs(self, images: Tensor) -> Mapping[str, Tensor]:
        outputs = self.model(self.normalize(images))
        # A classifier or a detector returns other values; a model for another schema has another number of maps.
        maps = outputs.get("heatmaps") if isinstance(outputs, Mapping) else None
        expected = (len(images), len(self.keypoint_names))
        if maps is None or maps.ndim != 4 or maps.shape[:2] != expected:
            output = type(outputs).__name__ if maps is None else f"heatmaps {tuple(maps.shape)}"
            shape = (*expected, "h", "w")
            raise ValueError(f"expected a dict with heatmaps {shape}, got {output}; give a model like heatmap_model")
        return cast(Mapping[str, Tensor], outputs)

    def _map_size(self, heatmaps: Tensor, images: Tensor) -> Tensor:
        """Return width and height of the maps in pixels of the crop."""
        # With a stride, maps may reach beyond a crop whose sides are not divisible; without one, they cover it exactly.
        stride = getattr(self.model, "stride", None)
        height, width = images.shape[-2:] if stride is None else (stride * side for side in heatmaps.shape[-2:])
        return filled_pair(width, height, like=heatmaps)

    def check_batch(self, batch: Any) -> None:
        """Raise ValueError for classes without a name."""
        if isinstance(batch, LandmarkBatch) and self.class_names is not None:
            check_labels(batch.labels, self.class_names, argument="class_names", first=0)

    def _checked(self, batch: LandmarkBatch) -> LandmarkBatch:
        if not isinstance(batch, LandmarkBatch):
            raise TypeError(
                f"expected a LandmarkBatch of object crops, got a {type(batch).__name__}; give the batches of "
                "LandmarkDataModule with sample_unit='object', or train whole images with MultiTask"
            )
        check_keypoints(batch.keypoints, self.keypoint_names)
        if self.must_check(batch.labels):
            self.check_batch(batch)
        return batch
