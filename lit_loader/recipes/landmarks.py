"""Landmarks of an object's crop by heatmaps, and its class if asked to, from scratch, on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import Conv2dNormActivation

from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.recipes.metrics import ClassMetric, JointMetric, LandmarkScores, NormalizeBy, landmark_metric
from lit_loader.recipes.module import Metric, RecipeModule
from lit_loader.recipes.network import (
    PyramidBackbone,
    check_keypoints,
    check_labels,
    check_names,
    finest_map,
    heatmap_loss,
    plain,
    point_loss,
    soft_argmax,
)

__all__ = ["LandmarkMetric", "LandmarkModule"]


class LandmarkMetric(JointMetric):
    """The metrics of points and of classes, updated together.

    Args:
        settings: The hyperparameters of `LandmarkModule`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.points = landmark_metric(settings)
        self.classes = None if settings["class_names"] is None else ClassMetric(settings["class_names"])

    def update(
        self, points: Tensor, wanted: Tensor, mask: Tensor, boxes: Tensor, ids: Tensor | None, labels: Tensor
    ) -> None:
        """Collect crops: points as `NormalizedMeanError` takes them, ids of classes found, and the true ones."""
        self.points.update(points, wanted, mask, boxes)
        if self.classes is not None and ids is not None:
            self.classes.update(ids, labels)

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        classes = None if self.classes is None else self.classes.compute_scores()
        return replace(self.points.compute_scores(), classes=classes)


class LandmarkModule(RecipeModule):
    """A small convolutional pyramid with one heatmap a point, whose expectation is the point.

    A batch is a `LandmarkBatch`: object crops of one size, any size (padded inside to multiples of 32), with
    points in pixels of the crop and a mask of those that are present. Absent points teach nothing and are
    not measured. The loss is the mean absolute error of the points as shares of the crop, times 100, plus
    the divergence of the heatmaps from a Gaussian, plus the cross-entropy of the class.

    Logs ``train/loss`` and its parts, ``val/nme``, ``val/failure_rate``, with a class head ``val/accuracy``
    and ``val/macro_f1``, and the same under ``test/``.

    Args:
        keypoint_names: Names of the K points.
        class_names: Names for a head that tells the crop's class, id ``i`` being ``class_names[i]``, or None
            for no such head.
        normalize_by: What the error is divided by, see `NormalizedMeanError`, or None for ``"pair"``
            where ``normalization_pair`` is given and ``"box"`` where it is not.
        normalization_pair: Positions of the two points whose distance may normalise the error, where the data has
            such points.
        failure_threshold: Error above which a face counts as failed.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head.
        stride: Pixels between the cells of a heatmap, 4, 8, 16 or 32.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimizer steps of linear warm-up, see `RecipeModule`.

    Attributes:
        test_scores: Error and failure rate of the last test, with a class head also accuracy and macro-F1; or None
            before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor = "val/nme"
    monitor_mode = "min"

    def __init__(
        self,
        *,
        keypoint_names: Sequence[str],
        class_names: Sequence[str] | None = None,
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        channels: int = 48,
        head_channels: int = 64,
        stride: int = 4,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        warmup_steps: int = 50,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=warmup_steps)
        keypoint_names = check_names("keypoint_names", keypoint_names)
        class_names = None if class_names is None else check_names("class_names", class_names)
        normalization_pair = None if normalization_pair is None else list(normalization_pair)
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.keypoint_names = tuple(keypoint_names)
        self.class_names = None if class_names is None else tuple(class_names)
        self.stride = stride
        self.backbone = PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,))
        self.heatmaps = nn.Sequential(
            Conv2dNormActivation(head_channels, head_channels),
            nn.Conv2d(head_channels, len(keypoint_names), 1),
        )
        self.classify = None if class_names is None else nn.Linear(head_channels, len(class_names))
        self.set_metric(lambda: LandmarkMetric(self.hparams))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the points of every crop.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            ``keypoints`` float32 ``(B, K, 2)``, x and y in pixels of the crop; ``scores`` float32 ``(B, K)``, how
            sure each is, in [0, 1]; with a class head ``class_logits`` ``(B, num_classes)``.
        """
        logits, class_logits = self._network(images)
        points, scores = soft_argmax(logits)
        found = {"keypoints": points * self._map_size(logits), "scores": scores}
        return found if class_logits is None else {**found, "class_logits": class_logits}

    def training_step(self, batch: LandmarkBatch, batch_idx: int) -> Tensor:
        """Return the sum of the losses."""
        batch = self._checked(batch)
        logits, class_logits = self._network(batch.images)
        size = self._map_size(logits)
        crop = size.new_tensor([batch.images.shape[-1], batch.images.shape[-2]])
        points, _ = soft_argmax(logits)
        losses = {"points": 100 * point_loss(points * (size / crop), batch.keypoints / crop, batch.mask)}
        losses["heatmaps"] = heatmap_loss(logits, batch.keypoints / size, batch.mask)
        if class_logits is not None:
            losses["classes"] = functional.cross_entropy(class_logits, batch.labels)
        return self.log_sum(losses, batch_size=len(batch.images))

    def collect(self, batch: LandmarkBatch, metric: Metric) -> None:
        """Update a metric with the points and classes of a batch."""
        batch = self._checked(batch)
        found = self.forward(batch.images)
        ids = found["class_logits"].argmax(dim=1) if "class_logits" in found else None
        points, boxes = plain(batch.keypoints), plain(batch.boxes)
        metric.update(
            found["keypoints"], points, batch.mask, boxes, ids, batch.labels, is_duplicate=batch.is_duplicate
        )

    def predict_step(
        self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Tensor]:
        """Return the points of a batch, see `forward`, and its ``image_ids``."""
        return {**self.forward(batch.images), "image_ids": batch.image_ids}

    def _network(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        features = finest_map(self.backbone, images)
        logits: Tensor = self.heatmaps(features)
        return logits, None if self.classify is None else self.classify(features.mean(dim=(-2, -1)))

    def _map_size(self, logits: Tensor) -> Tensor:
        """Return width and height of the maps in pixels of the crop."""
        height, width = logits.shape[-2:]
        return self.stride * torch.tensor([width, height], dtype=torch.float32, device=logits.device)

    def _checked(self, batch: LandmarkBatch) -> LandmarkBatch:
        if not isinstance(batch, LandmarkBatch):
            raise TypeError(
                f"expected a LandmarkBatch of object crops, got a {type(batch).__name__}; give the batches of "
                "LandmarkDataModule"
            )
        check_keypoints(batch.keypoints, self.keypoint_names)
        if self.class_names is not None:
            check_labels(batch.labels, self.class_names, argument="class_names", first=0)
        return batch
