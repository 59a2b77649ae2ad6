"""A LightningModule that finds the points of an object's crop by heatmaps, and its class if asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.recipes.backbone import PyramidBackbone
from lit_loader.recipes.class_scores import ClassificationScores, ClassMetric
from lit_loader.recipes.heatmaps import heatmap_loss, point_loss, soft_argmax
from lit_loader.recipes.landmark_error import (
    LandmarkScores,
    NormalizeBy,
    NormalizedMeanError,
    choose_normalizer,
)
from lit_loader.recipes.module import RecipeModule, Report, tested
from lit_loader.recipes.names import check_labels, check_names
from lit_loader.recipes.pixels import network_input, plain
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = ["LandmarkModule"]


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
        class_names: Names for a head that tells the crop's class, id ``i`` being ``class_names[i]``; None
            for no such head.
        normalize_by: What the error is divided by, see `NormalizedMeanError`; None takes ``"pair"``
            where ``normalization_pair`` is given and ``"box"`` where it is not.
        normalization_pair: Positions of the two points whose distance may normalise the error, where the data has
            such points.
        failure_threshold: Error above which a face counts as failed.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head.
        stride: Pixels between the cells of a heatmap, 4, 8, 16 or 32.
        heatmap_sigma: Width of the Gaussian in cells.
        heatmap_weight: Weight of the divergence, 0 for none.
        class_weight: Weight of the class's cross-entropy.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimiser steps of linear warm-up, see `RecipeModule`.

    Attributes:
        test_scores: Error and failure rate of the last test; None before a test.
        val_scores: The same of the last validation.
        test_class_scores: Accuracy and macro-F1 of the last test; None before a test or without class head.
        val_class_scores: The same of the last validation.

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
        heatmap_sigma: float = 1.0,
        heatmap_weight: float = 1.0,
        class_weight: float = 1.0,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        warmup_steps: int = 50,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=warmup_steps)
        keypoint_names = check_names("keypoint_names", keypoint_names)
        class_names = None if class_names is None else check_names("class_names", class_names)
        normalization_pair = (
            None if normalization_pair is None else [int(position) for position in normalization_pair]
        )
        by, pair = choose_normalizer(normalize_by, normalization_pair, num_points=len(keypoint_names))
        if not heatmap_sigma > 0:
            raise ValueError(f"heatmap_sigma={heatmap_sigma} must be above 0 cells; give 1")
        for name, weight in (("heatmap_weight", heatmap_weight), ("class_weight", class_weight)):
            if not weight >= 0:
                raise ValueError(f"{name}={weight} is no weight; give 0 or more")
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.keypoint_names = tuple(keypoint_names)
        self.class_names = None if class_names is None else tuple(class_names)
        self.stride, self.heatmap_sigma = stride, heatmap_sigma
        self.heatmap_weight, self.class_weight = heatmap_weight, class_weight
        self.backbone = PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,))
        self.heatmaps = nn.Sequential(
            nn.Conv2d(head_channels, head_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(head_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(head_channels, len(keypoint_names), 1),
        )
        self.classify = None if class_names is None else nn.Linear(head_channels, len(class_names))
        measure: dict[str, Any] = {
            "normalize_by": by,
            "normalization_pair": pair,
            "failure_threshold": failure_threshold,
        }
        self.val_metric = WithoutDuplicates(NormalizedMeanError(**measure))
        self.test_metric = WithoutDuplicates(NormalizedMeanError(**measure))
        self.val_class_metric, self.test_class_metric = (
            None if class_names is None else WithoutDuplicates(ClassMetric(class_names)) for _ in range(2)
        )
        self.val_scores: LandmarkScores | None = None
        self.test_scores: LandmarkScores | None = None
        self.val_class_scores: ClassificationScores | None = None
        self.test_class_scores: ClassificationScores | None = None

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
        wanted = batch.keypoints / size
        crop = size.new_tensor([batch.images.shape[-1], batch.images.shape[-2]])
        points, _ = soft_argmax(logits)
        losses = {"points": 100 * point_loss(points * (size / crop), batch.keypoints / crop, batch.mask)}
        if self.heatmap_weight:
            divergence = heatmap_loss(logits, wanted, batch.mask, sigma=self.heatmap_sigma)
            losses["heatmaps"] = self.heatmap_weight * divergence
        if class_logits is not None:
            losses["classes"] = self.class_weight * functional.cross_entropy(class_logits, batch.labels)
        total = torch.stack(list(losses.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=len(batch.images))
        return total

    def validation_step(self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect points and classes for the metrics; several validation sets are scored as one."""
        self._collect(batch, self.val_metric, self.val_class_metric)

    def test_step(self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect points and classes for the metrics; several test sets are scored as one."""
        self._collect(batch, self.test_metric, self.test_class_metric)

    def predict_step(
        self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Tensor]:
        """Return the points of a batch, see `forward`, and its ``image_ids``."""
        return {**self.forward(batch.images), "image_ids": batch.image_ids}

    def on_validation_epoch_end(self) -> None:
        """Score what the validation collected."""
        self.val_scores, self.val_class_scores = self._score("val", self.val_metric, self.val_class_metric)

    def on_test_epoch_end(self) -> None:
        """Score what the test collected."""
        self.test_scores, self.test_class_scores = self._score(
            "test", self.test_metric, self.test_class_metric
        )

    def test_report(self) -> Report:
        """Return error and failure rate of the last test; with a class head also recall and F1 by class."""
        scores, classes = tested(self.test_scores), self.test_class_scores
        figures: dict[str, float] = {
            "NME": scores.nme,
            f"failures above {self.test_metric.metric.failure_threshold:g}": scores.failure_rate,
            "objects measured": scores.num_faces,
            "objects not measured": scores.num_excluded,
        }
        if classes is None:
            return [("test", figures)]
        figures |= {"accuracy": classes.accuracy, "macro-F1": classes.macro_f1}
        return [("test", figures), ("recall", dict(classes.recall)), ("F1", dict(classes.f1))]

    def _network(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        features: Tensor = self.backbone(network_input(images))[str(self.stride)]
        rows, columns = (-(-side // self.stride) for side in images.shape[-2:])
        features = features[..., :rows, :columns]  # without the padding
        logits: Tensor = self.heatmaps(features)
        return logits, None if self.classify is None else self.classify(features.mean(dim=(-2, -1)))

    def _map_size(self, logits: Tensor) -> Tensor:
        """Return width and height of the maps in pixels of the crop."""
        height, width = logits.shape[-2:]
        return torch.tensor(
            [width * self.stride, height * self.stride], dtype=torch.float32, device=logits.device
        )

    def _checked(self, batch: LandmarkBatch) -> LandmarkBatch:
        if not isinstance(batch, LandmarkBatch):
            raise TypeError(
                f"a batch is a {type(batch).__name__}; LandmarkModule takes the LandmarkBatch of object crops that "
                'LandmarkDataModule(sample_unit="object") gives'
            )
        if batch.keypoints.shape[1] != len(self.keypoint_names):
            raise ValueError(
                f"objects have {batch.keypoints.shape[1]} points, keypoint_names has {len(self.keypoint_names)}; "
                "give the data set's own keypoint names"
            )
        if self.class_names is not None:
            check_labels(batch.labels, self.class_names, argument="class_names", first=0)
        return batch

    def _collect(
        self,
        batch: LandmarkBatch,
        metric: WithoutDuplicates[NormalizedMeanError],
        class_metric: WithoutDuplicates[ClassMetric] | None,
    ) -> None:
        batch = self._checked(batch)
        found, marks = self.forward(batch.images), batch.is_duplicate
        points, boxes = plain(batch.keypoints), plain(batch.boxes)
        metric.update(found["keypoints"], points, batch.mask, boxes, is_duplicate=marks)
        if class_metric is not None:
            class_metric.update(found["class_logits"].argmax(dim=1), batch.labels, is_duplicate=marks)

    def _score(
        self,
        stage: str,
        metric: WithoutDuplicates[NormalizedMeanError],
        class_metric: WithoutDuplicates[ClassMetric] | None,
    ) -> tuple[LandmarkScores, ClassificationScores | None]:
        scores = metric.metric.compute_scores()
        metric.reset()
        self.log_scores(stage, {"nme": scores.nme, "failure_rate": scores.failure_rate})
        if class_metric is None:
            return scores, None
        classes = class_metric.metric.compute_scores()
        class_metric.reset()
        self.log_scores(stage, {"accuracy": classes.accuracy, "macro_f1": classes.macro_f1})
        return scores, classes
