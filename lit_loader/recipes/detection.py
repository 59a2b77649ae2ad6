"""Detection: torchvision's FCOS on a small backbone, from scratch, on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torchvision.models.detection.fcos import FCOS

from lit_loader.collate import batch_duplicates, batch_images, batch_targets
from lit_loader.recipes.metrics import AveragePrecision
from lit_loader.recipes.module import Metric, RecipeModule
from lit_loader.recipes.network import (
    check_labels,
    check_names,
    plain,
    small_fcos,
    unit_range,
)
from lit_loader.types import FIRST_LABEL

__all__ = ["DetectionModule", "plain_targets", "training_targets"]

Batch: TypeAlias = tuple[Sequence[Tensor] | Tensor, Sequence[Mapping[str, Any]]]


class DetectionModule(RecipeModule):
    """FCOS with a convolutional feature pyramid small enough to learn on two CPU cores.

    A batch is ``(images, targets)``, or a `PaddedBatch`, whose padding the model does not see: images a list
    of tensors of shape ``(3, H, W)`` (or one tensor of shape ``(N, 3, H, W)``), float in [0, 1] or uint8 in
    [0, 255]; targets a list of dicts with ``boxes`` (float32 xyxy pixels) and ``labels`` (int64 from 1; 0 is
    background); in validation and tests also ``is_duplicate``, see `WithoutDuplicates`. Objects marked by ``iscrowd``
    are not trained on, and detections on them count neither for nor against. An image may have no boxes.

    Logs ``train/loss`` and its parts, ``val/map``, ``val/map_50``, ``test/map``, ``test/map_50``.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and head, a multiple of 32 (groups of its normalisation).
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        min_size: Images are resized so that the shorter side has this many pixels...
        max_size: ... unless the longer side would exceed this many.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimizer steps of linear warm-up; after it the rate falls along a cosine to 0 at the
            trainer's last step.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image, at most 100 (what the metric counts).

    Attributes:
        test_scores: mAP, mAP@50 and AP@50 of every class in the last test, or None before a test.
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
        self.model = self.make_model()
        self.set_metric(self.make_metric)

    def make_model(self) -> FCOS:
        """Return the detector that the hyperparameters describe."""
        return small_fcos(len(self.class_names), self.hparams)

    def make_metric(self) -> nn.Module:
        """Return the metric of validation and tests."""
        return AveragePrecision(self.class_names)

    def read_targets(self, batch: Any) -> list[dict[str, Tensor]]:
        """Return the targets of a batch as one dict of plain tensors an image, checked against the names."""
        targets = plain_targets(batch_targets(batch))
        labels = torch.cat([target["labels"] for target in targets])
        check_labels(labels, self.class_names, argument="class_names", first=FIRST_LABEL)
        return targets

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return ``boxes``, ``labels`` and ``scores`` of every image, best first; needs ``eval()``."""
        detections: list[dict[str, Tensor]] = self.model([unit_range(image) for image in images])
        return [{**found, "labels": found["labels"] + FIRST_LABEL} for found in detections]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the sum of the losses."""
        targets = training_targets(self.read_targets(batch))
        boxes = torch.cat([target["boxes"] for target in targets])
        flat = boxes[(boxes[:, 2:] <= boxes[:, :2]).any(dim=1)]
        if len(flat):
            raise ValueError(
                f"the box {flat[0].tolist()} has no area; drop such objects with lit_loader.transforms.SanitizeObjects"
            )
        images = [unit_range(image) for image in batch_images(batch)]
        return self.log_sum(self.model(images, targets), batch_size=len(targets))

    def collect(self, batch: Batch, metric: Metric) -> None:
        """Update a metric with all that is found in a batch."""
        found, wanted = self.forward(batch_images(batch)), self.read_targets(batch)
        metric.update(found, wanted, is_duplicate=batch_duplicates(batch))

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> list[dict[str, Tensor]]:
        """Return the detections of each image of a batch as `forward` does, and its ``image_id``."""
        found, targets = self.forward(batch_images(batch)), batch_targets(batch)
        return [
            each | {name: torch.tensor(target[name]) for name in ("image_id",) if name in target}
            for each, target in zip(found, targets, strict=True)
        ]


def plain_targets(targets: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
    """Return the fields of targets that the detector and the metric read, as plain tensors."""
    kept = ("boxes", "labels", "iscrowd")
    return [{key: plain(target[key]) for key in kept if key in target} for target in targets]


def training_targets(targets: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return targets without crowd regions, with labels from 0, as torchvision's FCOS counts them.

    Args:
        targets: One dict an image, whose tensors have a row for each object; ``iscrowd`` may be absent.
    """
    found = []
    for target in targets:
        single = target["iscrowd"] == 0 if "iscrowd" in target else slice(None)
        rows = {name: values[single] for name, values in target.items()}
        found.append({**rows, "labels": rows["labels"] - FIRST_LABEL})
    return found
