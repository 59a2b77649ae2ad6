"""Classification of images, with one label each or several, by any model of torchvision's, timm's or one's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from lit_loader.collate.classification import ClassificationBatch
from lit_loader.errors import SettingError
from lit_loader.recipes.flip_average import average_answers, average_logits, mirror
from lit_loader.recipes.losses import ClassificationLoss, may_have_unlabelled, mean_of_labelled
from lit_loader.recipes.metrics import ClassMetric
from lit_loader.recipes.network import NormalizeImages, check_labels, check_names, classifier_small
from lit_loader.recipes.task import Metric, Task
from lit_loader.recipes.weights import ModelBuilder, build_model, image_mean_std, model_builder

__all__ = ["ClassificationTask", "replace_classifier"]

CLASSIFIERS: Final[dict[str, ModelBuilder]] = {"classifier_small": classifier_small}
"""This package's builders of classifiers by name."""


class ClassificationTask(Task):
    """The class of an image, or several labels, by any model that returns one logit a class.

    A batch is a `ClassificationBatch`: images of one size, float in [0, 1] or uint8; labels int64 from 0, or with
    ``multi_label`` a float vector of 0 and 1 an image, and of -1 for a class that the image does not label, which is
    neither trained nor scored. In training, labels may also be the proportions of the classes of mixed images, float
    ``(B, num_classes)``; see `lit_loader.BatchMixing`. The task normalises the images, see `image_mean_std`; the
    model is called with float ``(B, 3, H, W)`` and returns float ``(B, num_classes)``.

    Logs ``train/loss``, ``val/loss``, ``val/accuracy``, ``val/macro_f1``, and the same under ``test/``.

    Args:
        model: Name of a classifier, such as ``classifier_small``, ``resnet50`` or ``timm/resnet50``, or a builder that
            is called with ``num_classes=``. See `model_builder`.
        class_names: Names of the classes; label ``i`` is ``class_names[i]``.
        multi_label: Whether an image has any number of classes, with a sigmoid per class instead of a softmax.
        weights: Name of weights, such as ``DEFAULT``, or a file, or None for random ones. See `build_model`. The last
            layer is replaced if it is for another number of classes, see `replace_classifier`.
        loss: Called with logits ``(B, num_classes)`` and labels; returns the loss of each image, float ``(B,)``, or of
            each class ``(B, num_classes)``, in training, validation and tests; for images with unlabelled classes, the
            loss of each class. Examples are `ClassificationLoss` with
            label smoothing, class weights or the focal factor, and ``torch.nn.CrossEntropyLoss(reduction="none")``.
            None means cross-entropy. With mixed batches it must also take the labels of mixed images.
        test_time_flip: Whether probabilities in tests and in ``predict`` are the mean of those for the image and for
            its mirror image, which takes twice the time. Validation stays without. Not for classes that a mirror image
            changes, such as left and right turns.
        **training: Arguments of `Task`.

    Attributes:
        test_scores: Accuracy, macro-F1, F1 and recall by class of the last test, or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range, or the model has auxiliary outputs.
        OSError: If weights cannot be downloaded or read.
    """

    monitor = "val/macro_f1"
    monitor_mode = "max"

    def __init__(
        self,
        model: str | ModelBuilder,
        *,
        class_names: Sequence[str],
        multi_label: bool = False,
        weights: str | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        test_time_flip: bool = False,
        **training: Any,
    ) -> None:
        super().__init__(**training)
        self.keep_arguments()
        self.test_time_flip = test_time_flip
        self.class_names = tuple(check_names("class_names", class_names))
        self.multi_label = multi_label
        self.loss = ClassificationLoss() if loss is None else loss
        self._has_unlabelled = False
        # True if the loss skips labels of -1, or there are none.
        self._knows_unlabelled = isinstance(self.loss, ClassificationLoss) or not multi_label
        # Weights by class name become a tensor in the order of the names.
        if isinstance(self.loss, ClassificationLoss):
            self.loss.set_class_names(self.class_names)
        builder = model_builder(model, CLASSIFIERS)
        classifier = build_model(
            builder, num_classes=len(self.class_names), weights=weights, replace_heads=replace_classifier
        )
        # GoogLeNet and Inception return a tuple of outputs in training, and a tensor in evaluation.
        if getattr(classifier, "aux_logits", False):
            name = type(classifier).__name__
            raise ValueError(f"{name} has auxiliary outputs, which the loss does not take; pass aux_logits=False")
        self.normalize = NormalizeImages(*image_mean_std(classifier, builder, weights))
        self.set_model(classifier)
        self.set_metric(lambda: ClassMetric(self.class_names, multi_label=multi_label))

    def forward(self, images: Tensor) -> Tensor:
        """Return the classes' logits.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            float ``(B, num_classes)``; probabilities are its softmax, with ``multi_label`` its sigmoid.

        Raises:
            ValueError: If the model returns something else.
        """
        # A segmentation model returns a dict, and a backbone without its head a map.
        logits = self.model(self.normalize(images))
        expected = (len(images), len(self.class_names))
        if not isinstance(logits, Tensor) or logits.shape != expected:
            output = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            name = type(self.model).__name__
            raise ValueError(f"expected logits {expected} of a {name}, got {output}; give a model of one logit a class")
        return logits

    def predict(self, images: Tensor) -> Tensor:
        """Return what `forward` does, with ``test_time_flip`` logits of the mean probabilities with mirrored images."""
        logits = self.forward(images)
        if not self.test_time_flip:
            return logits
        mirrored = self.forward(mirror(images))
        return average_answers(logits, mirrored) if self.multi_label else average_logits(logits, mirrored)

    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        """Return the loss."""
        logits = self.forward(batch.images)
        loss = self._losses(logits, self._labels(batch, may_be_mixed=True)).mean()
        self.log("train/loss", loss.detach(), batch_size=len(batch.images))
        return loss

    def collect(self, batch: ClassificationBatch, metric: Metric) -> Tensor:
        """Update a metric with the predictions and losses of a batch; return the losses, float32 ``(B,)``."""
        logits = self.predict(batch.images) if self.is_testing else self.forward(batch.images)
        labels = self._labels(batch)
        # A logit above 0 is a probability above one half.
        predicted = (logits > 0).long() if self.multi_label else logits.argmax(dim=1)
        losses = self._losses(logits, labels)
        metric.update(predicted, labels.long(), losses, logits, is_duplicate=batch.is_duplicate)
        return losses

    def sample_errors(self, batch: Any, predictions: Any, *, min_score: float) -> list[tuple[float, str]]:
        """Return the loss of each image."""
        is_labelled = (batch.labels >= 0).reshape(len(batch.labels), -1).any(dim=1)
        losses = predictions.masked_fill(~is_labelled, math.nan)
        return [(loss, f"loss {loss:.3f}") for loss in losses.tolist()]

    def predict_step(self, batch: ClassificationBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return the probabilities of a batch, float32 ``(B, num_classes)``."""
        logits = self.predict(batch.images).float()
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)

    def setup(self, stage: str) -> None:
        """Compile the model if ``compile`` is set, and check that the loss takes the labels of mixed batches.

        Raises:
            SettingError: The data module mixes batches, and the loss does not take their labels.
        """
        super().setup(stage)
        datamodule = getattr(self.trainer, "datamodule", None)
        mixes_ids = getattr(datamodule, "batch_mixing", None) is not None and not self.multi_label
        if stage == "fit" and mixes_ids and not isinstance(self.loss, ClassificationLoss):
            self._try_mixed_labels()

    @torch.no_grad()
    def _try_mixed_labels(self) -> None:
        num_classes = len(self.class_names)
        logits = torch.zeros(2, num_classes, device=self.device)
        try:
            # A copy, since a loss may count its calls or average over them.
            loss = copy.deepcopy(self.loss)
            loss(logits, torch.zeros(2, dtype=torch.int64, device=self.device))
        except Exception:
            # For another reason, such as weights on another device; the first step tells whether it is an error.
            return
        try:
            loss(logits, torch.full_like(logits, 1 / num_classes))
        except Exception as error:
            name = getattr(self.loss, "__qualname__", type(self.loss).__name__)
            rule = f"does not take the labels of mixed batches, float32 (B, {num_classes}): {error}"
            remedy = "give ClassificationLoss() or torch.nn.CrossEntropyLoss(reduction='none'), or train without mixing"
            raise SettingError("loss", name, rule, remedy) from error

    def _labels(self, batch: ClassificationBatch, *, may_be_mixed: bool = False) -> Tensor:
        # The dtype tells which kind of labels a data module gives: indices are integers, answers are floats.
        labels = batch.labels
        num_classes = len(self.class_names)
        if self.multi_label:
            expected = f"float labels (B, {num_classes}) of 0 and 1"
            is_valid = labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] == num_classes
        else:
            expected = "int64 labels (B,)"
            is_valid = not labels.is_floating_point() and labels.ndim == 1
            if may_be_mixed:
                is_valid = is_valid or (labels.is_floating_point() and labels.shape[1:] == (num_classes,))
        if not is_valid:
            raise ValueError(
                f"multi_label={self.multi_label} needs {expected}, got {labels.dtype} {tuple(labels.shape)}; give "
                "multi_label=True to both the task and ClassificationDataModule, or to neither"
            )
        if self.must_check(labels):
            self.check_batch(batch)
        return labels

    def check_batch(self, batch: Any) -> None:
        """Raise ValueError for labels without a name, and note whether images have unlabelled classes."""
        if not isinstance(batch, ClassificationBatch):
            return
        if not batch.labels.is_floating_point():
            check_labels(batch.labels, self.class_names, argument="class_names", first=0)
        elif not self.multi_label:
            _check_proportions(batch.labels)
        # Of all batches so far: a loader checks batches before the step that trains on them. Only a loss of the user's
        # needs it, and in a step the check waits for the device.
        elif not (self._has_unlabelled or self._knows_unlabelled):
            self._has_unlabelled = bool((batch.labels < 0).any())

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each image, float32 ``(B,)``."""
        # In single precision: half precision overflows in the exponentials of a loss written by hand.
        logits = logits.float()
        if labels.ndim == 2 and not self.multi_label and isinstance(self.loss, ClassificationLoss):
            return self.loss.mixed(logits, labels)
        # Other losses may be undefined for the label -1, and a gradient of NaN survives the mean below.
        losses = self.loss(logits, labels if self._knows_unlabelled else labels.clamp(min=0))
        if losses.shape == logits.shape:  # torch's losses for several labels return one value per class
            some_unlabelled = self.multi_label and may_have_unlabelled(labels)
            return mean_of_labelled(losses, labels) if some_unlabelled else losses.mean(dim=1)
        if self._has_unlabelled:
            raise ValueError(
                f"expected one loss a class {tuple(logits.shape)}, because images have classes that they do not label "
                f"(label -1), got {tuple(losses.shape)}; give a loss of each class, or ClassificationLoss"
            )
        if losses.shape != logits.shape[:1]:
            expected = tuple(logits.shape[:1])
            got = tuple(losses.shape)
            raise ValueError(f"expected one loss an image {expected}, got {got}; give one with reduction='none'")
        return losses


def _check_proportions(labels: Tensor) -> None:
    """Raise ValueError unless the proportions of each image's classes add up to 1."""
    sums = labels.float().sum(dim=-1)
    # Labels may be in half precision.
    is_valid = (labels >= 0).all(dim=-1) & ((sums - 1).abs() < 0.01)
    if not is_valid.all():
        row = int((~is_valid).nonzero()[0])
        raise ValueError(
            f"expected the proportions of an image's classes, which add up to 1, got {labels[row].tolist()}; for "
            "several labels an image give multi_label=True to both the task and ClassificationDataModule"
        )


def replace_classifier(model: nn.Module, num_classes: int) -> None:
    """Replace the last layer of a classifier by one for another number of classes.

    This is the last linear layer, or the last convolution of SqueezeNet; the new layer has torch's default
    initialization. timm's models replace their own layer.

    Args:
        model: The model, modified in place.
        num_classes: Number of classes.

    Raises:
        ValueError: If the model does not end with such a layer.
    """
    if callable(getattr(model, "reset_classifier", None)):  # timm's
        cast(Any, model).reset_classifier(num_classes)
        return
    # The last of all modules, because classifiers of torchvision name it differently: fc, classifier.6, heads.head.
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    name, last = layers[-1] if layers else ("", model)
    has_bias = getattr(last, "bias", None) is not None
    new: nn.Module
    if name and isinstance(last, nn.Linear):
        new = nn.Linear(last.in_features, num_classes, bias=has_bias)
    elif name and isinstance(last, nn.Conv2d) and last.kernel_size == (1, 1):
        new = nn.Conv2d(last.in_channels, num_classes, 1, bias=has_bias)
    else:
        raise ValueError(
            f"a {type(model).__name__} does not end with a layer of its classes; give a builder that takes num_classes "
            "and loads the weights itself, with weights=null"
        )
    model.set_submodule(name, new)
