"""Classification of images, with one label each or several, from scratch, on any device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from lit_loader.collate.classification import ClassificationBatch
from lit_loader.recipes.metrics import ClassMetric
from lit_loader.recipes.module import Metric, RecipeModule
from lit_loader.recipes.network import (
    PyramidBackbone,
    check_labels,
    check_names,
    finest_map,
)

__all__ = ["ClassificationModule"]


class ClassificationModule(RecipeModule):
    """A small convolutional pyramid whose finest map is averaged and classified.

    A batch is a `ClassificationBatch`: images of one size, any size (padded inside to multiples of 32);
    labels int64 from 0, or with ``multi_label`` a float vector of 0 and 1 an image.

    Logs ``train/loss``, ``val/loss``, ``val/accuracy``, ``val/macro_f1``, and the same under ``test/``.

    Args:
        class_names: Names of the classes; label ``i`` is ``class_names[i]``.
        multi_label: An image has any number of the classes: one sigmoid each in the place of a softmax.
        channels: Width of the backbone, a positive multiple of 8.
        head_channels: Width of the map that is averaged.
        stride: Stride of that map, 4, 8, 16 or 32.
        learning_rate: Peak learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        warmup_steps: Optimizer steps of linear warm-up, see `RecipeModule`.

    Attributes:
        test_scores: Accuracy, macro-F1, F1 and recall by class of the last test, or None before a test.
        val_scores: The same of the last validation.

    Raises:
        ValueError: If an argument is out of range.
    """

    monitor = "val/macro_f1"
    monitor_mode = "max"

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        multi_label: bool = False,
        channels: int = 48,
        head_channels: int = 64,
        stride: int = 8,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-2,
        warmup_steps: int = 50,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, warmup_steps=warmup_steps)
        class_names = check_names("class_names", class_names)
        self.save_hyperparameters()  # plain values: a checkpoint loads under weights_only=True
        self.class_names, self.multi_label = tuple(class_names), multi_label
        self.backbone = PyramidBackbone(channels=channels, out_channels=head_channels, strides=(stride,))
        self.classify = nn.Sequential(nn.Dropout(0.1), nn.Linear(head_channels, len(class_names)))
        self.set_metric(lambda: ClassMetric(class_names, multi_label=multi_label))

    def forward(self, images: Tensor) -> Tensor:
        """Return the classes' logits.

        Args:
            images: float in [0, 1] or uint8, shape ``(B, 3, H, W)``.

        Returns:
            float ``(B, num_classes)``; probabilities are its softmax, with ``multi_label`` its sigmoid.
        """
        logits: Tensor = self.classify(finest_map(self.backbone, images).mean(dim=(-2, -1)))
        return logits

    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        """Return the loss."""
        logits = self.forward(batch.images)
        loss = self._losses(logits, self._labels(batch)).mean()
        self.log("train/loss", loss.detach(), batch_size=len(batch.images))
        return loss

    def collect(self, batch: ClassificationBatch, metric: Metric) -> None:
        """Update a metric with the answers and losses of a batch."""
        logits, labels = self.forward(batch.images), self._labels(batch)
        answers = (logits > 0).long() if self.multi_label else logits.argmax(dim=1)
        metric.update(answers, labels.long(), self._losses(logits, labels), is_duplicate=batch.is_duplicate)

    def predict_step(self, batch: ClassificationBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return the probabilities of a batch, ``(B, num_classes)``."""
        logits = self.forward(batch.images)
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)

    def _labels(self, batch: ClassificationBatch) -> Tensor:
        labels, count = batch.labels, len(self.class_names)
        wanted = f"float labels (B, {count}) of 0 and 1" if self.multi_label else "int64 labels (B,)"
        is_vectors = labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] == count
        is_ids = not labels.is_floating_point() and labels.ndim == 1
        if not (is_vectors if self.multi_label else is_ids):
            raise ValueError(
                f"multi_label={self.multi_label} needs {wanted}, got {labels.dtype} {tuple(labels.shape)}; give "
                "multi_label=True to the module and to ClassificationDataModule, or to none of them"
            )
        if is_ids:
            check_labels(labels, self.class_names, argument="class_names", first=0)
        return labels

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each image, ``(B,)``."""
        if not self.multi_label:
            return functional.cross_entropy(logits, labels, reduction="none")
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
