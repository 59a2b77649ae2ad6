"""A LightningModule that trains a torchvision detector on a small backbone, from scratch, on any device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS, FCOSHead

from lit_loader.collate import batch_images, batch_targets
from lit_loader.recipes.average_precision import AveragePrecision, DetectionScores
from lit_loader.recipes.backbone import PyramidBackbone

__all__ = ["DetectionModule", "learning_rate_factor"]

Batch: TypeAlias = tuple[Sequence[Tensor] | Tensor, Sequence[Mapping[str, Any]]]


class DetectionModule(LightningModule):
    """FCOS with a convolutional feature pyramid small enough to learn on two CPU cores.

    A batch is ``(images, targets)``, or a `PaddedBatch`, whose padding the model does not see: images a list
    of tensors of shape ``(3, H, W)`` (or one tensor of shape ``(N, 3, H, W)``), float in [0, 1] or uint8 in
    [0, 255]; targets a list of dicts with ``boxes`` (float32 xyxy pixels) and ``labels`` (int64 from 1; 0 is
    background). Images without boxes are welcome.

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
        super().__init__()
        if not class_names or len(set(class_names)) != len(class_names):
            raise ValueError(f"class_names={list(class_names)} must be different names, at least one")
        if head_channels <= 0 or head_channels % 32:
            raise ValueError(f"head_channels={head_channels} must be a multiple of 32, its groups; give 64")
        if not 1 <= detections_per_img <= 100:
            raise ValueError(
                f"detections_per_img={detections_per_img} must be 1 to 100, what the metric counts"
            )
        for name, count in (("head_convs", head_convs), ("warmup_steps", warmup_steps)):
            if count < 0:
                raise ValueError(f"{name}={count} is negative; give 0 or more")
        class_names, strides = [str(name) for name in class_names], [int(stride) for stride in strides]
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.class_names = tuple(class_names)
        self.learning_rate, self.weight_decay, self.warmup_steps = learning_rate, weight_decay, warmup_steps
        self.model = FCOS(
            PyramidBackbone(channels=channels, out_channels=head_channels, strides=tuple(strides)),
            num_classes=len(class_names),  # none for background: one sigmoid for each class
            min_size=min_size,
            max_size=max_size,
            image_mean=[0.5, 0.5, 0.5],
            image_std=[0.25, 0.25, 0.25],
            anchor_generator=AnchorGenerator(tuple((s,) for s in strides), ((1.0,),) * len(strides)),
            head=FCOSHead(head_channels, 1, len(class_names), head_convs),
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            detections_per_img=detections_per_img,
            topk_candidates=300,
        )
        self.val_metric, self.test_metric = AveragePrecision(class_names), AveragePrecision(class_names)
        self.val_scores: DetectionScores | None = None
        self.test_scores: DetectionScores | None = None

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return ``boxes``, ``labels`` and ``scores`` of every image, best first; needs ``eval()``."""
        detections: list[dict[str, Tensor]] = self.model([_unit_range(image) for image in images])
        return [{**found, "labels": found["labels"] + 1} for found in detections]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the detector's losses."""
        targets = batch_targets(batch)
        losses: dict[str, Tensor] = self.model(
            [_unit_range(image) for image in batch_images(batch)], self._from_zero(targets)
        )
        total = torch.stack(list(losses.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=len(targets))
        return total

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metric; several validation sets are scored as one."""
        self.val_metric.update(self.forward(batch_images(batch)), _plain_targets(batch_targets(batch)))

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metric; several test sets are scored as one."""
        self.test_metric.update(self.forward(batch_images(batch)), _plain_targets(batch_targets(batch)))

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return the detections of a batch."""
        return self.forward(batch_images(batch))

    def on_validation_epoch_end(self) -> None:
        """Score what the validation collected."""
        self.val_scores = self._score("val", self.val_metric)

    def on_test_epoch_end(self) -> None:
        """Score what the test collected."""
        self.test_scores = self._score("test", self.test_metric)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW, without weight decay on biases and normalisation, and a warm-up and cosine by step.

        The trainer's ``estimated_stepping_batches`` is not asked: it would set the loaders up before a
        checkpoint is read, and their state would then never be loaded.
        """
        weights = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": weights, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self.learning_rate,
        )
        schedule = LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _factor(self, step: int) -> float:
        # Step 0 is asked for before the trainer knows how long an epoch is; the first step needs no total.
        total = None if step == 0 else self._total_steps()
        return learning_rate_factor(step, warmup_steps=self.warmup_steps, total_steps=total)

    def _total_steps(self) -> int | None:
        """Optimiser steps of the whole fit, None where the trainer has no end."""
        trainer = self.trainer
        ends = [trainer.max_steps] if trainer.max_steps > 0 else []
        batches = trainer.num_training_batches
        if trainer.max_epochs is not None and trainer.max_epochs > 0 and math.isfinite(batches):
            ends.append(trainer.max_epochs * math.ceil(batches / trainer.accumulate_grad_batches))
        return min(ends, default=None)

    def _from_zero(self, targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
        """Return targets whose labels count from 0, as the head's outputs do."""
        labels = torch.cat([_plain(target["labels"]) for target in targets])
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (1, 1)
        if low < 1 or high > len(self.class_names):
            raise ValueError(
                f"labels {low} to {high} must lie in 1 to {len(self.class_names)} (0 is background) "
                f"for class_names={list(self.class_names)}; give the data set's own class names"
            )
        return [{**target, "labels": target["labels"] - 1} for target in _plain_targets(targets)]

    def _score(self, stage: str, metric: AveragePrecision) -> DetectionScores:
        scores = metric.compute_scores()
        metric.reset()
        # Every rank has the scores of all ranks; their mean changes nothing and spares Lightning's warning.
        values = {f"{stage}/map": scores.map, f"{stage}/map_50": scores.map_50}
        self.log_dict(values, prog_bar=stage == "val", sync_dist=True)
        return scores


def learning_rate_factor(step: int, *, warmup_steps: int, total_steps: int | None) -> float:
    """Return the learning rate of a step as a share of its peak.

    Linear from ``1 / (warmup_steps + 1)`` to 1 over the warm-up, then half a cosine from 1 to 0 at
    ``total_steps``; 1 throughout where ``total_steps`` is None.

    Args:
        step: Optimiser steps done, from 0.
        warmup_steps: Steps of the warm-up, 0 for none.
        total_steps: Steps of the whole fit, or None where they are not known.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if total_steps is None or total_steps <= warmup_steps:
        return 1.0
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _plain(value: Tensor) -> Tensor:
    # A tv_tensor's class would be looked at in every operation of the model.
    return value.as_subclass(Tensor)


def _unit_range(image: Tensor) -> Tensor:
    # Images may come as uint8, a quarter of the bytes to move, and are made float where the model is.
    image = _plain(image)
    return image if image.is_floating_point() else image.float() / 255


def _plain_targets(targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
    """Return what the detector and the metric use of the targets, as plain tensors."""
    kept = ("boxes", "labels", "iscrowd")
    return [{key: _plain(target[key]) for key in kept if key in target} for target in targets]
