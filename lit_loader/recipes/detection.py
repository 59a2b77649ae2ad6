"""A LightningModule that trains a torchvision detector on a small backbone, from scratch, on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lit_loader.collate import batch_duplicates, batch_images, batch_targets
from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.detector import labels_from_zero, plain_targets, small_fcos
from lit_loader.recipes.module import RecipeModule, Report, tested
from lit_loader.recipes.names import check_names
from lit_loader.recipes.pixels import unit_range
from lit_loader.recipes.without_duplicates import WithoutDuplicates

__all__ = ["DetectionModule"]

Batch: TypeAlias = tuple[Sequence[Tensor] | Tensor, Sequence[Mapping[str, Any]]]


class DetectionModule(RecipeModule):
    """FCOS with a convolutional feature pyramid small enough to learn on two CPU cores.

    A batch is ``(images, targets)``, or a `PaddedBatch`, whose padding the model does not see: images a list
    of tensors of shape ``(3, H, W)`` (or one tensor of shape ``(N, 3, H, W)``), float in [0, 1] or uint8 in
    [0, 255]; targets a list of dicts with ``boxes`` (float32 xyxy pixels) and ``labels`` (int64 from 1; 0 is
    background); in validation and tests also ``is_duplicate``, see `WithoutDuplicates`. Images without boxes are
    welcome.

    Logs ``train/loss`` and its parts, ``val/map``, ``val/map_50``, ``test/map``, ``test/map_50``.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head, a multiple of 32 (groups of its normalisation).
        head_convs: Convolutions in each of the head's two branches before the last.
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        min_size: Images are resized so that the shorter side has this many pixels...
        max_size: ... unless the longer side would exceed this many.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimiser steps of linear warm-up; after it the rate falls along a cosine to 0 at the
            trainer's last step.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image, at most 100 (what the metric counts).

    Attributes:
        test_scores: What the last test found: mAP, mAP@50, AP@50 of every class; None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor = "val/map_50"
    monitor_mode = "max"

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        channels: int = 48,
        head_channels: int = 64,
        head_convs: int = 1,
        strides: Sequence[int] = (8,),
        min_size: int = 96,
        max_size: int = 192,
        learning_rate: float = 1e-2,
        weight_decay: float = 1e-2,
        warmup_steps: int = 50,
        score_thresh: float = 0.05,
        nms_thresh: float = 0.6,
        detections_per_img: int = 100,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=warmup_steps)
        class_names = check_names("class_names", class_names)
        strides = [int(stride) for stride in strides]
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.class_names = tuple(class_names)
        self.model = small_fcos(
            num_classes=len(class_names),
            channels=channels,
            head_channels=head_channels,
            head_convs=head_convs,
            strides=strides,
            min_size=min_size,
            max_size=max_size,
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            detections_per_img=detections_per_img,
        )
        self.val_metric = WithoutDuplicates(AveragePrecision(class_names))
        self.test_metric = WithoutDuplicates(AveragePrecision(class_names))
        self.val_scores: DetectionScores | None = None
        self.test_scores: DetectionScores | None = None

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return ``boxes``, ``labels`` and ``scores`` of every image, best first; needs ``eval()``."""
        detections: list[dict[str, Tensor]] = self.model([unit_range(image) for image in images])
        return [{**found, "labels": found["labels"] + 1} for found in detections]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the detector's losses."""
        targets = batch_targets(batch)
        losses: dict[str, Tensor] = self.model(
            [unit_range(image) for image in batch_images(batch)], self._from_zero(targets)
        )
        total = torch.stack(list(losses.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=len(targets))
        return total

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metric; several validation sets are scored as one."""
        self._collect(batch, self.val_metric)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metric; several test sets are scored as one."""
        self._collect(batch, self.test_metric)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return the detections of each image of a batch as `forward` does, and its ``image_id``."""
        found, targets = self.forward(batch_images(batch)), batch_targets(batch)
        return [
            each | {name: torch.tensor(target[name]) for name in ("image_id",) if name in target}
            for each, target in zip(found, targets, strict=True)
        ]

    def on_validation_epoch_end(self) -> None:
        """Score what the validation collected."""
        self.val_scores = self._score("val", self.val_metric)

    def on_test_epoch_end(self) -> None:
        """Score what the test collected."""
        self.test_scores = self._score("test", self.test_metric)

    def test_report(self) -> Report:
        """Return mAP and mAP@50 of the last test, and AP@50 by class."""
        scores = tested(self.test_scores)
        return [("test", {"mAP@50": scores.map_50, "mAP": scores.map}), ("AP@50", dict(scores.ap_50))]

    def _from_zero(self, targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
        return labels_from_zero(targets, self.class_names)

    def _collect(self, batch: Batch, metric: WithoutDuplicates[AveragePrecision]) -> None:
        found, wanted = self.forward(batch_images(batch)), plain_targets(batch_targets(batch))
        metric.update(found, wanted, is_duplicate=batch_duplicates(batch))

    def _score(self, stage: str, metric: WithoutDuplicates[AveragePrecision]) -> DetectionScores:
        scores = metric.metric.compute_scores()
        metric.reset()
        self.log_scores(stage, {"map": scores.map, "map_50": scores.map_50})
        return scores
