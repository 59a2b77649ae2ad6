"""Points of an object's crop, by heatmaps or by regression, with its class and attributes if asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from torch import Tensor, nn

from lit_loader.collate.landmarks import LandmarkBatch
from lit_loader.errors import SettingError
from lit_loader.inspection.curves import EvaluationCurves
from lit_loader.loader.arguments import check_choice
from lit_loader.recipes.flip_average import average_logits, average_points, average_scores, mirror, mirror_order
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
from lit_loader.recipes.regression_model import regression_model, regression_small
from lit_loader.recipes.task import Metric, Task
from lit_loader.recipes.weights import ModelBuilder, image_mean_std, load_weights, model_builder, takes_argument

__all__ = ["LandmarkMetric", "LandmarkTask"]

Head: TypeAlias = Literal["heatmap", "regression"]

POINT_MODELS: Final[dict[str, ModelBuilder]] = {"heatmaps_small": heatmaps_small, "regression_small": regression_small}
"""This package's models of points by name."""

_HEADS: Final[dict[str, Head]] = {"heatmaps": "heatmap", "points": "regression"}
"""Heads by the name of the model's output."""

_BUILDERS: Final[dict[Head, ModelBuilder]] = {"heatmap": heatmap_model, "regression": regression_model}
"""Builders on a classifier by head."""


class LandmarkMetric(JointMetric):
    """The metrics of points, classes and attributes, updated together.

    Args:
        settings: The hyperparameters of `LandmarkTask`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.points = landmark_metric(settings)
        self.classes = None if settings["class_names"] is None else ClassMetric(settings["class_names"])
        attributes = settings["attributes"] or {}
        self.attribute_names = tuple(attributes)
        self.values = nn.ModuleList(ClassMetric(values) for values in attributes.values())

    def update(
        self,
        points: Tensor,
        target: Tensor,
        mask: Tensor,
        boxes: Tensor,
        logits: Tensor | None,
        labels: Tensor,
        *attributes: Tensor,
    ) -> None:
        """Collect crops.

        Args:
            points: As `NormalizedMeanError` takes them; so are target, mask and boxes.
            target: Annotated points.
            mask: Marks the points that are present.
            boxes: Annotated boxes.
            logits: Logits of the classes, or None of a model without a class head.
            labels: True ids of the classes.
            *attributes: Logits and true ids of each attribute in turn.
        """
        self.points.update(points, target, mask, boxes)
        # A model without a class head predicts no class, and the labels may be unknown.
        if self.classes is not None and logits is not None:
            self.classes.update(logits.argmax(dim=1), labels, logits=logits)
        for metric, values, ids in zip(self._value_metrics(), attributes[::2], attributes[1::2], strict=True):
            metric.update(values.argmax(dim=1), ids, logits=values)

    def compute_scores(self) -> LandmarkScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        classes = None if self.classes is None else self.classes.compute_scores()
        values = [metric.compute_scores() for metric in self._value_metrics()]
        attributes = dict(zip(self.attribute_names, values, strict=True))
        return replace(self.points.compute_scores(), classes=classes, attributes=attributes)

    def record_curves(self, point_names: Sequence[str]) -> None:
        """Record the curves of all metrics."""
        self.points.record_curves(point_names)
        for metric in (self.classes, *self._value_metrics()):
            if metric is not None:
                metric.record_curves()

    def compute_curves(self) -> list[EvaluationCurves]:
        """Return the curves of points, classes and attributes, over all ranks."""
        curves = self.points.compute_curves()
        if self.classes is not None:
            curves += self.classes.compute_curves()
        for name, metric in zip(self.attribute_names, self._value_metrics(), strict=True):
            curves += metric.compute_curves(name)
        return curves

    def _value_metrics(self) -> list[ClassMetric]:
        return cast(list[ClassMetric], list(self.values))


class LandmarkTask(Task):
    """Points of an object by any model that returns heatmaps or coordinates of them.

    A batch is a `LandmarkBatch`: object crops of one size, float in [0, 1] or uint8, with points in pixels of the crop
    and a mask of those that are present. Absent points teach nothing and are not measured. The task normalises the
    images, see `image_mean_std`; the model is called with float ``(B, 3, H, W)`` and returns a dict with one of

    - ``heatmaps``, logits ``(B, K, h, w)``; a point is the expectation of its heatmap, so it is inside of the crop.
      Cells are squares of ``model.stride`` pixels from the upper left corner; heatmaps of a model without that
      attribute cover the crop.
    - ``points`` ``(B, K, 2)``, x and y as shares of the crop's width and height, which may be outside of the crop.
      Such points have no confidence, so the task predicts no ``scores``.

    With classes the dict also has ``class_logits`` ``(B, num_classes)``; with attributes ``attribute_logits``, a dict
    of ``(B, num_values)`` by name.

    The loss is the loss of the points as shares of the crop, by default their mean absolute error times 100, plus the
    divergence of heatmaps from a Gaussian, plus the cross-entropies of the class and of each attribute.

    Whole images (``sample_unit="image"`` of `LandmarkDataModule`) are batches of `MultiTask`; this task refuses them.
    Crops are made around the boxes, or points, of the annotations, in evaluation too: with a detector's boxes the error
    is larger.

    Logs ``train/loss`` and its parts, ``val/nme``, ``val/failure_rate``, ``val/auc``, with classes ``val/accuracy`` and
    ``val/macro_f1``, for each attribute ``val/<attribute>/accuracy`` and ``val/<attribute>/macro_f1``, and the same
    under ``test/``.

    Args:
        model: ``heatmaps_small`` or ``regression_small``; the name of a classifier, such as ``resnet18`` or
            ``timm/resnet50``, for `heatmap_model` or `regression_model` on it; or a builder that is called with
            ``num_keypoints=``, ``num_classes=``, 0 for none, and with attributes ``num_values=``, the number of values
            by name.
        keypoint_names: Names of the K points.
        head: ``"heatmap"`` or ``"regression"``: the kind of model to build on a classifier, and the output that any
            other model must have. None for heatmaps on a classifier, and for what any other model returns.
        class_names: Names for a head that classifies the crop, where id ``i`` is ``class_names[i]``, or None for no
            such head.
        attributes: Names of the values of every attribute by its name, for a head each, or None. Objects without an
            attribute, id -1, are not trained on and not scored.
        normalize_by: Normaliser of the error, see `NormalizedMeanError`. None means ``"pair"`` if
            ``normalization_pair`` is given and ``"box"`` otherwise.
        normalization_pair: Positions of the two points whose distance may normalise the error, if the data has such
            points.
        failure_threshold: Error above which a face counts as failed.
        test_time_flip: Whether predictions in tests and in ``predict`` are the mean of those for the crop and for its
            mirror image, which takes twice the time. Validation stays without. Not for classes and attributes that a
            mirror image changes, such as left and right hands.
        flip_pairs: Positions of points that are mirror images of each other, such as left and right eye; empty if
            every point keeps its name. Needed for ``test_time_flip`` with several points.
        weights: Given to a builder that takes ``weights``, as `heatmap_model` does for its backbone: a name, such as
            ``DEFAULT``, or a file. Of other builders, and those that have their weights already, a file of the whole
            model, see `load_weights`. None for random ones.
        loss: The losses and their weights, or None for `LandmarkLoss()`.
        **training: Arguments of `Task`.

    Attributes:
        test_scores: Error, failure rate and AUC of the last test, with classes and attributes also their accuracy and
            macro-F1; or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
        SettingError: If ``test_time_flip`` is set and ``flip_pairs`` are unknown.
        OSError: If weights cannot be downloaded or read.
    """

    monitor = "val/nme"
    monitor_mode = "min"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        keypoint_names: Sequence[str],
        head: Head | None = None,
        class_names: Sequence[str] | None = None,
        attributes: Mapping[str, Sequence[str]] | None = None,
        normalize_by: NormalizeBy | None = None,
        normalization_pair: Sequence[int] | None = None,
        failure_threshold: float = 0.10,
        test_time_flip: bool = False,
        flip_pairs: Sequence[Sequence[int]] | None = None,
        weights: str | None = None,
        loss: LandmarkLoss | None = None,
        **training: Any,
    ) -> None:
        super().__init__(**training)
        self.keep_arguments()
        self.loss = LandmarkLoss() if loss is None else loss
        if head is not None:
            check_choice("head", head, Head)
        self.head = head
        self.keypoint_names = tuple(check_names("keypoint_names", keypoint_names))
        self.class_names = None if class_names is None else tuple(check_names("class_names", class_names))
        names_by_attribute: Any = attributes or {}  # configs often list attributes without their values
        if not isinstance(names_by_attribute, Mapping):
            rule = "is not a dict from the name of each attribute to the names of its values"
            raise SettingError("attributes", attributes, rule, 'give one such as {"glasses": ["no", "yes"]}')
        self.attributes = {
            str(name): tuple(check_names(f"attributes[{name!r}]", values))
            for name, values in names_by_attribute.items()
        }
        self.test_time_flip = test_time_flip
        # Wrong pairs are an error even without flips; missing pairs only with flips.
        needs_pairs = test_time_flip or flip_pairs is not None
        self._mirror_order = mirror_order(len(self.keypoint_names), flip_pairs) if needs_pairs else ()
        # Before the model: wrong settings of the metric should raise before weights are downloaded.
        self.set_metric(lambda: LandmarkMetric(self.hparams))
        builder = self._builder(model)
        if takes_argument(builder, "weights"):
            network = builder(weights=weights)
        else:
            network = builder()
            if weights is not None:
                load_weights(network, weights)
        # Not of `weights`, which belong to the backbone: `heatmap_model` notes their colours in `pretrained_cfg`.
        self.normalize = NormalizeImages(*image_mean_std(network, builder, None))
        self.set_model(network)

    def _builder(self, model: str | ModelBuilder) -> ModelBuilder:
        """Return the builder of a model with the numbers of points, classes and values."""
        builder = model_builder(model, POINT_MODELS)
        if isinstance(model, str) and model not in POINT_MODELS:
            # A classifier, whose name `model_builder` has checked.
            builder = partial(_BUILDERS[self.head or "heatmap"], backbone=model)
        counts: dict[str, Any] = {"num_keypoints": len(self.keypoint_names), "num_classes": len(self.class_names or ())}
        # Only with attributes: a user's builder need not know of them.
        if self.attributes:
            counts["num_values"] = {name: len(values) for name, values in self.attributes.items()}
        return partial(builder, **counts)

    def forward(self, images: Tensor) -> dict[str, Any]:
        """Return the points of every crop.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            ``keypoints`` float32 ``(B, K, 2)``, x and y in pixels of the crop; of heatmaps ``scores`` float32
            ``(B, K)``, the confidence in each point, in [0, 1]; with a class head ``class_logits`` float32
            ``(B, num_classes)``; with attributes ``attribute_logits``, a dict of float32 ``(B, num_values)`` by name.

        Raises:
            ValueError: If the model returns no points, or points of another ``head``.
        """
        outputs = self._outputs(images)
        predictions: dict[str, Any] = {}
        if "heatmaps" in outputs:
            points, predictions["scores"] = soft_argmax(outputs["heatmaps"])
            # Of the map, which may reach beyond the crop.
            predictions["keypoints"] = points * self._map_size(outputs["heatmaps"], images)
        else:
            # bfloat16 has 8 bits, too few for pixels.
            points = outputs["points"].float()
            predictions["keypoints"] = points * _crop_size(images, like=points)
        if self.class_names is not None:
            predictions["class_logits"] = outputs["class_logits"].float()
        if self.attributes:
            logits = outputs["attribute_logits"]
            predictions["attribute_logits"] = {name: logits[name].float() for name in self.attributes}
        return predictions

    def predict(self, images: Tensor) -> dict[str, Any]:
        """Return what `forward` does, with ``test_time_flip`` its mean over images and mirrored images."""
        predictions = self.forward(images)
        if not self.test_time_flip:
            return predictions
        mirrored = self.forward(mirror(images))
        order = self._mirror_order
        points = (predictions["keypoints"], mirrored["keypoints"])
        predictions["keypoints"] = average_points(*points, width=images.shape[-1], order=order)
        if "scores" in predictions:
            predictions["scores"] = average_scores(predictions["scores"], mirrored["scores"], order=order)
        if "class_logits" in predictions:
            predictions["class_logits"] = average_logits(predictions["class_logits"], mirrored["class_logits"])
        if "attribute_logits" in predictions:
            predictions["attribute_logits"] = {
                name: average_logits(logits, mirrored["attribute_logits"][name])
                for name, logits in predictions["attribute_logits"].items()
            }
        return predictions

    def training_step(self, batch: LandmarkBatch, batch_idx: int) -> Tensor:
        """Return the sum of the losses."""
        batch = self._checked(batch)
        outputs = self._outputs(batch.images)
        losses = self._point_losses(outputs, batch)
        if self.class_names is not None:
            losses["classes"] = self.loss.classes(outputs["class_logits"], batch.labels)
        for name in self.attributes:
            logits = outputs["attribute_logits"][name]
            losses[f"attributes/{name}"] = self.loss.attribute(logits, batch.attributes[name])
        return self.log_sum(losses, batch_size=len(batch.images))

    def _point_losses(self, outputs: Mapping[str, Any], batch: LandmarkBatch) -> dict[str, Tensor]:
        if "points" in outputs:
            # In single precision: under bf16-mixed, points would be rounded to 1/256 of the crop.
            points = outputs["points"].float()
            targets = batch.keypoints / _crop_size(batch.images, like=points)
            return {"points": self.loss.points(points, targets, batch.mask)}
        logits = outputs["heatmaps"]
        size = self._map_size(logits, batch.images)
        crop = _crop_size(batch.images, like=size)
        points, _ = soft_argmax(logits)
        # Points are fractions of the map, whose last cells may reach beyond the crop; the loss is in fractions of the
        # crop, so that it does not depend on the model's stride.
        return {
            "points": self.loss.points(points * (size / crop), batch.keypoints / crop, batch.mask),
            "heatmaps": self.loss.heatmaps(logits, batch.keypoints / size, batch.mask),
        }

    def collect(self, batch: LandmarkBatch, metric: Metric) -> dict[str, Any]:
        """Update a metric with the points and labels of a batch; return the predictions, see `predict`."""
        batch = self._checked(batch)
        # Not in validations, which are many and would take twice the time.
        predictions = self.predict(batch.images) if self.is_testing else self.forward(batch.images)
        points = (predictions["keypoints"], plain(batch.keypoints), batch.mask, plain(batch.boxes))
        # Flat, as `WithoutDuplicates` takes rows of samples.
        attributes: list[Tensor] = []
        for name in self.attributes:
            attributes += [predictions["attribute_logits"][name], batch.attributes[name]]
        logits = predictions.get("class_logits")
        metric.update(*points, logits, batch.labels, *attributes, is_duplicate=batch.is_duplicate)
        return predictions

    def sample_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[float, str]]:
        """Return the normalised error of each crop, NaN of one that cannot be measured."""
        points = (predictions["keypoints"], plain(batch.keypoints), batch.mask, plain(batch.boxes))
        metric: Any = self.test_metric.metric
        return [(error, f"error {error:.3f}") for error in metric.points.errors(*points).tolist()]

    def _start_curves(self, **limits: Any) -> None:
        metric: Any = self.test_metric.metric
        metric.record_curves(self.keypoint_names)

    def predict_step(self, batch: LandmarkBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Return the predictions for a batch, see `predict`, and its ``image_ids``."""
        return {**self.predict(batch.images), "image_ids": batch.image_ids}

    def _outputs(self, images: Tensor) -> Mapping[str, Any]:
        """Return the outputs of the model, with either ``heatmaps`` or ``points``."""
        outputs = self.model(self.normalize(images))
        # A classifier or a detector returns other values; a model for another schema has another number of points.
        values = outputs if isinstance(outputs, Mapping) else {}
        shapes = {name: tuple(values[name].shape) for name in _HEADS if isinstance(values.get(name), Tensor)}
        expected = (len(images), len(self.keypoint_names))
        has_maps = "heatmaps" in shapes and len(shapes["heatmaps"]) == 4 and shapes["heatmaps"][:2] == expected
        has_points = shapes.get("points") == (*expected, 2)
        output = " and ".join(f"{name} {shape}" for name, shape in shapes.items()) or type(outputs).__name__
        if len(shapes) != 1 or not (has_maps or has_points):
            choices = f"heatmaps {(*expected, 'h', 'w')} or points {(*expected, 2)}"
            remedy = "give a model like heatmap_model or regression_model"
            raise ValueError(f"expected a dict with {choices}, got {output}; {remedy}")
        head = _HEADS["heatmaps" if has_maps else "points"]
        if self.head not in (head, None):
            rule = f"is not the head of the model, which returns {output}"
            raise SettingError("head", self.head, rule, "give another model", settings={"head": head})
        missing = self.attributes.keys() - (values.get("attribute_logits") or {}).keys()
        if missing:
            raise ValueError(f"expected attribute_logits of {sorted(missing)} by name; give a model that returns them")
        return values

    def _map_size(self, heatmaps: Tensor, images: Tensor) -> Tensor:
        """Return width and height of the maps in pixels of the crop."""
        # With a stride, maps may reach beyond a crop whose sides are not divisible; without one, they cover it exactly.
        stride = getattr(self.model, "stride", None)
        height, width = images.shape[-2:] if stride is None else (stride * side for side in heatmaps.shape[-2:])
        return filled_pair(width, height, like=heatmaps)

    def check_batch(self, batch: Any) -> None:
        """Raise ValueError for classes and attribute values without a name."""
        if not isinstance(batch, LandmarkBatch):
            return
        if self.class_names is not None:
            check_labels(batch.labels, self.class_names, argument="class_names", first=0)
        for name, values in self.attributes.items():
            # `_checked` names missing attributes; a batch transform may still add them.
            if name in batch.attributes:
                ids = batch.attributes[name]
                check_labels(ids[ids >= 0], values, argument="attributes", first=0, note=f" for {name!r}")

    def _checked(self, batch: LandmarkBatch) -> LandmarkBatch:
        if not isinstance(batch, LandmarkBatch):
            raise TypeError(
                f"expected a LandmarkBatch of object crops, got a {type(batch).__name__}; give the batches of "
                "LandmarkDataModule with sample_unit='object', or train whole images with MultiTask"
            )
        check_keypoints(batch.keypoints, self.keypoint_names)
        missing = [name for name in self.attributes if name not in batch.attributes]
        if missing:
            present = sorted(batch.attributes)
            raise ValueError(f"the batch has no attributes {missing}, only {present}; request them in the data module")
        if self.must_check(batch.labels):
            self.check_batch(batch)
        return batch


def _crop_size(images: Tensor, *, like: Tensor) -> Tensor:
    """Return width and height of the crops in pixels, float32 ``(2,)``."""
    return filled_pair(images.shape[-1], images.shape[-2], like=like)
