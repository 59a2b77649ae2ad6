"""A LightningModule with one backbone and three heads: boxes and classes, points, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from lit_loader.collate.multi_task import MultiTaskBatch
from lit_loader.recipes.detector import small_fcos
from lit_loader.recipes.landmark_error import NormalizeBy, choose_normalizer
from lit_loader.recipes.module import RecipeModule, Report, tested
from lit_loader.recipes.multi_task_net import MultiTaskNet
from lit_loader.recipes.multi_task_scores import MultiTaskMetric, MultiTaskScores
from lit_loader.recipes.names import check_labels, check_names
from lit_loader.recipes.object_heads import ObjectHeads
from lit_loader.recipes.pixels import plain, unit_range
from lit_loader.recipes.without_duplicates import WithoutDuplicates
from lit_loader.types import FIRST_LABEL

__all__ = ["MultiTaskModule"]

_TAKEN: Final = ("boxes", "labels", "scores", "keypoints", "keypoint_scores", "keypoint_mask", "iscrowd")


class MultiTaskModule(RecipeModule):
    """FCOS whose backbone also serves points and attributes of its objects, looked at through RoIAlign.

    A batch is a `MultiTaskBatch`, whose padding the model does not see: boxes in pixels, labels from 1 (0 is
    background), points with a mask, attributes with -1 for none. The heads of points and attributes learn
    on annotated boxes, moved a little, and answer on detected ones; the backbone runs once a batch.

    Logs ``train/loss`` and its parts; ``val/mean``, `MultiTaskScores.mean`; ``val/map``, ``val/map_50``, ``val/nme``,
    ``val/failure_rate``, ``val/matched`` (the share of objects that were found) and, for each attribute,
    ``val/<attribute>/macro_f1``; the same under ``test/``.

    Args:
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        keypoint_names: Names of the K points of an object; may be none.
        attributes: Names of the values of every attribute by its name; may be none.
        normalize_by: What the error of points is divided by, see `NormalizedMeanError`; None takes
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
        warmup_steps: Optimiser steps of linear warm-up, see `RecipeModule`.
        score_thresh: Detections below this score are dropped.
        nms_thresh: Of two boxes of one class that overlap by more than this IoU the weaker is dropped.
        detections_per_img: Most detections of one image, at most 100 (what the metric counts).

    Attributes:
        test_scores: What the last test found; None before a test.
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
        if normalize_by is None:
            normalize_by = "box" if normalization_pair is None else "pair"
        normalization_pair = (
            None if normalization_pair is None else [int(position) for position in normalization_pair]
        )
        by, pair = choose_normalizer(normalize_by, normalization_pair, num_points=len(keypoint_names))
        if not 0 <= box_jitter < 0.5:
            raise ValueError(f"box_jitter={box_jitter} must lie in [0, 0.5), or boxes turn inside out")
        if not heatmap_sigma > 0:
            raise ValueError(f"heatmap_sigma={heatmap_sigma} must be above 0 cells; give 1")
        for name, weight in (("keypoint_weight", keypoint_weight), ("attribute_weight", attribute_weight)):
            if not weight >= 0:
                raise ValueError(f"{name}={weight} is no weight; give 0 or more")
        strides = [int(stride) for stride in strides]
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.class_names, self.keypoint_names = tuple(class_names), tuple(keypoint_names)
        self.attributes = {name: tuple(values) for name, values in attributes.items()}
        self.keypoint_weight, self.attribute_weight = keypoint_weight, attribute_weight
        detector = small_fcos(
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
        heads = ObjectHeads(
            in_channels=head_channels,
            strides=strides,
            num_keypoints=len(keypoint_names),
            attributes=attributes,
            roi_size=roi_size,
            box_scale=box_scale,
        )
        self.model = MultiTaskNet(detector, heads, box_jitter=box_jitter, heatmap_sigma=heatmap_sigma)
        measure: dict[str, Any] = {
            "class_names": class_names,
            "num_keypoints": len(keypoint_names),
            "attributes": attributes,
            "normalize_by": by,
            "normalization_pair": pair,
            "failure_threshold": failure_threshold,
        }
        self.val_metric = WithoutDuplicates(MultiTaskMetric(**measure))
        self.test_metric = WithoutDuplicates(MultiTaskMetric(**measure))
        self.val_scores: MultiTaskScores | None = None
        self.test_scores: MultiTaskScores | None = None

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
        return [{**one, "labels": one["labels"] + 1} for one in found]

    def training_step(self, batch: MultiTaskBatch, batch_idx: int) -> Tensor:
        """Return the weighted sum of the losses."""
        targets = [{**target, "labels": target["labels"] - 1} for target in self._targets(batch)]
        for target in targets:
            if (target["boxes"][:, 2:] <= target["boxes"][:, :2]).any():
                raise ValueError(
                    f"a box of {target['boxes'].tolist()} has no area; drop such objects with "
                    "lit_loader.transforms.SanitizeObjects"
                )
        losses = self.model([unit_range(image) for image in batch.image_list()], targets)
        weighted = {name: self._weight(name) * loss for name, loss in losses.items()}
        total = torch.stack(list(weighted.values())).sum()
        values = {f"train/{name}": loss.detach() for name, loss in weighted.items()}
        self.log_dict({"train/loss": total.detach(), **values}, batch_size=len(targets))
        return total

    def validation_step(self, batch: MultiTaskBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metrics; several validation sets are scored as one."""
        self._collect(batch, self.val_metric)

    def test_step(self, batch: MultiTaskBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect detections for the metrics; several test sets are scored as one."""
        self._collect(batch, self.test_metric)

    def predict_step(
        self, batch: MultiTaskBatch, batch_idx: int, dataloader_idx: int = 0
    ) -> list[dict[str, Tensor]]:
        """Return what is found in each image of a batch, see `forward`, and its ``image_id``."""
        found = self.forward(batch.image_list())
        return [{**each, "image_id": number} for each, number in zip(found, batch.image_ids, strict=True)]

    def on_validation_epoch_end(self) -> None:
        """Score what the validation collected."""
        self.val_scores = self._score("val", self.val_metric)

    def on_test_epoch_end(self) -> None:
        """Score what the test collected."""
        self.test_scores = self._score("test", self.test_metric)

    def test_report(self) -> Report:
        """Return the figures of the last test, AP@50 by class, and recall of each attribute by value."""
        scores = tested(self.test_scores)
        figures: dict[str, float] = {"mAP@50": scores.detection.map_50, "mAP": scores.detection.map}
        points = self.test_metric.metric.points
        if scores.landmarks is not None and points is not None:
            figures["NME"] = scores.landmarks.nme
            threshold = points.failure_threshold
            figures[f"failures above {threshold:g}"] = scores.landmarks.failure_rate
            figures["objects not measured"] = scores.landmarks.num_excluded
        figures |= {f"{name} macro-F1": one.macro_f1 for name, one in scores.attributes.items()}
        figures |= {"objects matched": scores.num_matched, "objects missed": scores.num_missed}
        recalls = [(f"{name}: recall", dict(one.recall)) for name, one in scores.attributes.items()]
        return [("test", figures), ("AP@50", dict(scores.detection.ap_50)), *recalls]

    def _weight(self, loss: str) -> float:
        if loss == "keypoints":
            return self.keypoint_weight
        return self.attribute_weight if loss.startswith("attributes/") else 1.0

    def _targets(self, batch: MultiTaskBatch) -> list[dict[str, Tensor]]:
        """Return one dict of plain tensors an image, checked against the names."""
        if not isinstance(batch, MultiTaskBatch):
            raise TypeError(
                f"a batch is a {type(batch).__name__}; MultiTaskModule takes the MultiTaskBatch of MultiTaskDataModule"
            )
        if self.keypoint_names and batch.keypoints.shape[2] != len(self.keypoint_names):
            raise ValueError(
                f"objects have {batch.keypoints.shape[2]} points, keypoint_names has {len(self.keypoint_names)}; "
                "give the data set's own keypoint names"
            )
        missing = [name for name in self.attributes if name not in batch.attributes]
        if missing:
            raise ValueError(
                f"the batch has no attributes {missing}, only {sorted(batch.attributes)}; ask the data module for "
                "them, or leave them out of attributes"
            )
        real = batch.object_mask
        check_labels(
            batch.labels[real],
            self.class_names,
            argument="class_names",
            first=FIRST_LABEL,
            note=" (0 is background)",
        )
        for name, values in self.attributes.items():
            ids = batch.attributes[name][real]
            check_labels(ids[ids >= 0], values, argument="attributes", first=0, note=f" for {name!r}")
        kept = ("boxes", "labels", "keypoints", "iscrowd", *self.attributes)
        return [
            {**{key: plain(target[key]) for key in kept}, "keypoint_mask": target["visibility"] > 0}
            for target in batch.target_list()
        ]

    def _collect(self, batch: MultiTaskBatch, metric: WithoutDuplicates[MultiTaskMetric]) -> None:
        found, wanted = self.forward(batch.image_list()), self._targets(batch)
        metric.update(found, wanted, is_duplicate=batch.is_duplicate)

    def _score(self, stage: str, metric: WithoutDuplicates[MultiTaskMetric]) -> MultiTaskScores:
        scores = metric.metric.compute_scores()
        metric.reset()
        values = {"mean": scores.mean, "map": scores.detection.map, "map_50": scores.detection.map_50}
        if scores.landmarks is not None:
            values |= {"nme": scores.landmarks.nme, "failure_rate": scores.landmarks.failure_rate}
        values |= {f"{name}/macro_f1": one.macro_f1 for name, one in scores.attributes.items()}
        values["matched"] = scores.num_matched / max(1, scores.num_matched + scores.num_missed)
        self.log_scores(stage, values)
        return scores


def _check_attributes(attributes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    taken = sorted(set(attributes) & {*_TAKEN, *(f"{name}_probabilities" for name in attributes)})
    if taken:
        raise ValueError(f"attributes has {taken}, names of other fields; rename them in the data")
    return {str(name): check_names(f"attributes[{name!r}]", values) for name, values in attributes.items()}
