"""All tasks at once: one backbone with heads for boxes and classes, points, and attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from lit_loader.collate.multi_task import MultiTaskBatch
from lit_loader.recipes.detection import training_targets
from lit_loader.recipes.metrics import AveragePrecision, NormalizeBy, landmark_metric
from lit_loader.recipes.module import Metric, RecipeModule
from lit_loader.recipes.multi_task_metric import MultiTaskMetric
from lit_loader.recipes.multi_task_net import MultiTaskNet, ObjectHeads
from lit_loader.recipes.network import (
    check_keypoints,
    check_labels,
    check_names,
    check_range,
    plain,
    small_fcos,
    unit_range,
)
from lit_loader.types import FIRST_LABEL

__all__ = ["MultiTaskModule"]

_TAKEN: Final = ("boxes", "labels", "scores", "keypoints", "keypoint_scores", "keypoint_mask", "iscrowd")


class MultiTaskModule(RecipeModule):
    """FCOS whose backbone also serves points and attributes of its objects, looked at through RoIAlign.

    A batch is a `MultiTaskBatch`, whose padding the model does not see: boxes in pixels, labels from 1 (0 is
    background), points with a mask, attributes with -1 for none. The heads of points and attributes learn
    on annotated boxes, moved a little, and answer on detected ones; the backbone runs once a batch. Objects marked by
    ``iscrowd`` are not trained on.

    Logs ``train/loss`` and its parts; ``val/mean``, `MultiTaskScores.mean`; ``val/map``, ``val/map_50``, ``val/nme``,
    ``val/failure_rate``, ``val/matched`` (the share of objects that were found) and, for each attribute,
    ``val/<attribute>/macro_f1``; the same under ``test/``.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        keypoint_names: Names of the K points of an object; may be none.
        attributes: Names of the values of every attribute by its name; may be none.
        normalize_by: What the error of points is divided by, see `NormalizedMeanError`, or None for
            ``"pair"`` where ``normalization_pair`` is given and ``"box"`` where it is not.
        normalization_pair: Positions of the two points whose distance normalises the error.
        failure_threshold: Error above which an object's points count as failed.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of pyramid and heads, a multiple of 32 (groups of their normalisation).
        head_convs: Convolutions in each of the detector's two branches before the last.
        strides: Strides of the pyramid's maps, a run of neighbours from (4, 8, 16, 32).
        min_size: Images are resized so that the shorter side has this many pixels...
        max_size: ... unless the longer side would exceed this many.
        roi_size: Cells of an object's region along either side.
        box_scale: Sides of an object's region over those of its box, in [1, 3].
        box_jitter: Largest move of an annotated box's edge in training, as a share of its side, in [0, 0.5).
        heatmap_sigma: Width of the heatmaps' Gaussian in cells.
        keypoint_weight: Weight of the points' loss.
        attribute_weight: Weight of each attribute's loss.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimizer steps of linear warm-up, see `RecipeModule`.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image, at most 100 (what the metric counts).

    Attributes:
        test_scores: The scores of the last test, or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor = "val/mean"
    monitor_mode = "max"

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        keypoint_names: Sequence[str] = (),
        attributes: Mapping[str, Sequence[str]] | None = None,
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        channels: int = 48,
        head_channels: int = 64,
        head_convs: int = 1,
        strides: Sequence[int] = (4, 8),
        min_size: int = 96,
        max_size: int = 192,
        roi_size: int = 8,
        box_scale: float = 1.3,
        box_jitter: float = 0.1,
        heatmap_sigma: float = 1.0,
        keypoint_weight: float = 1.0,
        attribute_weight: float = 1.0,
        learning_rate: float = 1e-2,
        weight_decay: float = 1e-2,
        warmup_steps: int = 50,
        score_thresh: float = 0.05,
        nms_thresh: float = 0.6,
        detections_per_img: int = 100,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=warmup_steps)
        class_names = check_names("class_names", class_names)
        keypoint_names = check_names("keypoint_names", keypoint_names) if len(keypoint_names) else []
        attributes = _check_attributes(attributes or {})
        if not keypoint_names and not attributes:
            raise ValueError("keypoint_names and attributes are both empty; give one, or use DetectionModule")
        if not keypoint_names and normalization_pair is not None:
            raise ValueError(
                f"normalization_pair={tuple(normalization_pair)} has no effect without keypoint_names; leave it out"
            )
        normalization_pair = None if normalization_pair is None else list(normalization_pair)
        check_range(0, 0.5, box_jitter=box_jitter)  # a box whose edges move further turns inside out
        check_range(0.1, math.inf, heatmap_sigma=heatmap_sigma)
        check_range(0, math.inf, keypoint_weight=keypoint_weight, attribute_weight=attribute_weight)
        strides = [int(stride) for stride in strides]
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.class_names, self.keypoint_names = tuple(class_names), tuple(keypoint_names)
        self.attributes = {name: tuple(values) for name, values in attributes.items()}
        self.keypoint_weight, self.attribute_weight = keypoint_weight, attribute_weight
        detector = small_fcos(len(class_names), self.hparams)
        heads = ObjectHeads(
            in_channels=head_channels,
            strides=strides,
            num_keypoints=len(keypoint_names),
            attributes=attributes,
            roi_size=roi_size,
            box_scale=box_scale,
        )
        self.model = MultiTaskNet(detector, heads, box_jitter=box_jitter, heatmap_sigma=heatmap_sigma)
        self.set_metric(
            lambda: MultiTaskMetric(
                boxes=AveragePrecision(class_names),
                points=landmark_metric(self.hparams) if keypoint_names else None,
                attributes=attributes,
            )
        )

    def forward(self, images: Sequence[Tensor] | Tensor) -> list[dict[str, Tensor]]:
        """Return what is found in every image, best first; needs ``eval()``.

        Args:
            images: float ``(3, H, W)`` in [0, 1], or uint8, of any sizes; or one tensor of a batch.

        Returns:
            One dict an image of n detections, in pixels of the image: ``boxes`` (n, 4), ``labels`` (n,) from 1,
            ``scores`` (n,); with points ``keypoints`` (n, K, 2) and ``keypoint_scores`` (n, K); for every attribute
            its ids by its name (n,), and ``<name>_probabilities`` (n, num_values).
        """
        found = self.model([unit_range(image) for image in images])
        return [{**one, "labels": one["labels"] + FIRST_LABEL} for one in found]

    def training_step(self, batch: MultiTaskBatch, batch_idx: int) -> Tensor:
        """Return the weighted sum of the losses."""
        targets = training_targets(self._targets(batch))
        boxes = torch.cat([target["boxes"] for target in targets])
        flat = boxes[(boxes[:, 2:] <= boxes[:, :2]).any(dim=1)]
        if len(flat):
            raise ValueError(
                f"the box {flat[0].tolist()} has no area; drop such objects with lit_loader.transforms.SanitizeObjects"
            )
        losses = self.model([unit_range(image) for image in batch.image_list()], targets)
        weights = {"keypoints": self.keypoint_weight}
        weights |= {f"attributes/{name}": self.attribute_weight for name in self.attributes}
        weighted = {name: weights.get(name, 1.0) * loss for name, loss in losses.items()}
        return self.log_sum(weighted, batch_size=len(targets))

    def collect(self, batch: MultiTaskBatch, metric: Metric) -> None:
        """Update a metric with all that is found in a batch."""
        found, wanted = self.forward(batch.image_list()), self._targets(batch)
        metric.update(found, wanted, is_duplicate=batch.is_duplicate)

    def predict_step(
        self, batch: MultiTaskBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> list[dict[str, Tensor]]:
        """Return what is found in each image of a batch, see `forward`, and its ``image_id``."""
        found = self.forward(batch.image_list())
        return [{**each, "image_id": number} for each, number in zip(found, batch.image_ids, strict=True)]

    def _targets(self, batch: MultiTaskBatch) -> list[dict[str, Tensor]]:
        """Return one dict of plain tensors an image, checked against the names."""
        if not isinstance(batch, MultiTaskBatch):
            raise TypeError(
                f"expected a MultiTaskBatch, got a {type(batch).__name__}; give the batches of MultiTaskDataModule"
            )
        if self.keypoint_names:
            check_keypoints(batch.keypoints, self.keypoint_names)
        missing = [name for name in self.attributes if name not in batch.attributes]
        if missing:
            raise ValueError(
                f"the batch has no attributes {missing}, only {sorted(batch.attributes)}; ask the data module for "
                "them, or leave them out of attributes"
            )
        real = batch.object_mask
        check_labels(batch.labels[real], self.class_names, argument="class_names", first=FIRST_LABEL)
        for name, values in self.attributes.items():
            ids = batch.attributes[name][real]
            check_labels(ids[ids >= 0], values, argument="attributes", first=0, note=f" for {name!r}")
        kept = ("boxes", "labels", "keypoints", "iscrowd", *self.attributes)
        return [
            {**{key: plain(target[key]) for key in kept}, "keypoint_mask": target["visibility"] > 0}
            for target in batch.target_list()
        ]


def _check_attributes(attributes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    taken = sorted(set(attributes) & {*_TAKEN, *(f"{name}_probabilities" for name in attributes)})
    if taken:
        raise ValueError(f"attributes has {taken}, names of other fields; rename them in the data")
    return {str(name): check_names(f"attributes[{name!r}]", values) for name, values in attributes.items()}
