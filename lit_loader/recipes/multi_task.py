"""All tasks at once: one backbone with heads for boxes and classes, points, and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from lit_loader.collate.multi_task import MultiTaskBatch
from lit_loader.recipes.average_precision import AveragePrecision
from lit_loader.recipes.detection import DetectionTask
from lit_loader.recipes.metrics import NormalizeBy, landmark_metric
from lit_loader.recipes.multi_task_metric import MultiTaskMetric
from lit_loader.recipes.multi_task_model import MultiTaskModel
from lit_loader.recipes.network import check_keypoints, check_labels, check_names, plain
from lit_loader.recipes.weights import ModelBuilder

__all__ = ["MultiTask"]

# Fields of targets and predictions.
_RESERVED: Final = (
    "boxes",
    "labels",
    "scores",
    "keypoints",
    "keypoint_scores",
    "keypoint_mask",
    "iscrowd",
    "unlabelled",
)


class MultiTask(DetectionTask):
    """Any detector of torchvision's whose backbone also serves points and attributes of its objects.

    A batch is a `MultiTaskBatch`, whose padding the model does not see. The model is a `MultiTaskModel`, with
    parameters ``detector.*``, such as ``detector.backbone.*``, and ``heads.*``. Objects marked by ``iscrowd`` are not
    trained on.

    `forward` returns, besides ``boxes`` (n, 4), ``labels`` (n,) from 1 and ``scores`` (n,) of the n detections of an
    image, with points ``keypoints`` (n, K, 2), in pixels of the image, and ``keypoint_scores`` (n, K); for every
    attribute its ids by its name (n,), and ``<name>_probabilities`` (n, num_values).

    Logs ``train/loss`` and its parts; ``val/mean``, `MultiTaskScores.mean`; ``val/map``, ``val/map_50``, ``val/nme``,
    ``val/failure_rate``, ``val/matched`` (the share of objects that were found) and, for each attribute,
    ``val/<attribute>/macro_f1``; the same under ``test/``.

    Args:
        model: The detector, as `DetectionTask` takes it: Faster R-CNN, RetinaNet, FCOS or `fcos_small`.
        class_names: Names of the classes; label ``i + 1`` is ``class_names[i]``.
        keypoint_names: Names of the K points of an object; may be empty.
        attributes: Names of the values of every attribute by its name; may be empty.
        normalize_by: Normaliser of the points' error, see `NormalizedMeanError`. None means ``"pair"`` if
            ``normalization_pair`` is given and ``"box"`` otherwise.
        normalization_pair: Positions of the two points whose distance normalises the error.
        failure_threshold: Error above which an object's points count as failed.
        weights: Weights of the detector, see `DetectionTask`; the heads are initialized randomly.
        **training: Arguments of `Task`.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor = "val/mean"
    monitor_mode = "max"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        class_names: Sequence[str],
        keypoint_names: Sequence[str] = (),
        attributes: Mapping[str, Sequence[str]] | None = None,
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        weights: str | None = None,
        **training: Any,
    ) -> None:
        keypoint_names = check_names("keypoint_names", keypoint_names) if len(keypoint_names) else []
        attributes = {str(name): check_names(f"attributes[{name!r}]", v) for name, v in (attributes or {}).items()}
        # `forward` returns attributes and their probabilities next to these fields.
        reserved = sorted(set(attributes) & {*_RESERVED, *(f"{name}_probabilities" for name in attributes)})
        if reserved:
            raise ValueError(f"attributes has {reserved}, names of other fields; rename them in the data")
        if not keypoint_names and not attributes:
            raise ValueError("keypoint_names and attributes are both empty; give one, or use DetectionTask")
        # A data module without points gives no pair, so a pair alone is a mistake in a config.
        if not keypoint_names and normalization_pair is not None:
            raise ValueError(f"normalization_pair={normalization_pair} has no effect without keypoint_names; omit it")
        # `keep_arguments` saves the values that the parameters have now: the checked lists of names.
        super().__init__(model, class_names=class_names, weights=weights, **training)
        self.keypoint_names = tuple(keypoint_names)
        self.attributes = {name: tuple(values) for name, values in attributes.items()}

    def set_model(self, model: nn.Module) -> None:
        """Set the detector, with heads added to it."""
        # Called by the constructor of `DetectionTask`, before the attributes of this class are set.
        num_keypoints = len(self.hparams["keypoint_names"])
        attributes = self.hparams["attributes"]
        super().set_model(MultiTaskModel(model, num_keypoints=num_keypoints, attributes=attributes))

    def make_metric(self) -> nn.Module:
        """Return the metric of validation and tests."""
        return MultiTaskMetric(
            boxes=AveragePrecision(self.class_names, max_detections=self.max_detections),
            points=landmark_metric(self.hparams) if self.hparams["keypoint_names"] else None,
            attributes=self.hparams["attributes"],
        )

    def _start_curves(self, **limits: Any) -> None:
        metric: Any = self.test_metric.metric
        metric.record_curves(point_names=self.keypoint_names, **limits)

    def read_targets(self, batch: Any) -> list[dict[str, Tensor]]:
        """Return the targets of a `MultiTaskBatch` as `DetectionTask` does, with points and attributes."""
        if not isinstance(batch, MultiTaskBatch):
            raise TypeError(f"expected a MultiTaskBatch of MultiTaskDataModule, got a {type(batch).__name__}")
        if self.keypoint_names:
            check_keypoints(batch.keypoints, self.keypoint_names)
        missing = [name for name in self.attributes if name not in batch.attributes]
        if missing:
            present = sorted(batch.attributes)
            raise ValueError(f"the batch has no attributes {missing}, only {present}; request them in the data module")
        targets = super().read_targets(batch)
        for target, fields in zip(targets, batch.target_list(), strict=True):
            target |= {name: plain(fields[name]) for name in ("keypoints", *self.attributes)}
            # Visibility 1 is an annotated but hidden point, which is trained and measured as well.
            target["keypoint_mask"] = fields["visibility"] > 0
        return targets

    def mark_errors(
        self, batch: Any, predictions: Any, *, min_score: float
    ) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Mark false detections and missed objects as `DetectionTask` does; absent points are not to be drawn."""
        marked = super().mark_errors(batch, predictions, min_score=min_score)
        for _, target in marked:
            target["visibility"] = 2 * target.pop("keypoint_mask").to(torch.uint8)
        return marked

    def check_batch(self, batch: Any) -> None:
        """Raise ValueError for labels and attribute values without a name."""
        if isinstance(batch, MultiTaskBatch):
            for name, values in self.attributes.items():
                # `read_targets` names missing attributes; a batch transform may still add them.
                if name in batch.attributes:
                    ids = batch.attributes[name][batch.attribute_masks[name]]
                    check_labels(ids, values, argument="attributes", first=0, note=f" for {name!r}")
            super().check_batch(batch)
