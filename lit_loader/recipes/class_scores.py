"""Accuracy, F1 and recall by class, and a macro-F1 that says what it averages over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassRecall,
    MulticlassStatScores,
    MultilabelAccuracy,
    MultilabelF1Score,
    MultilabelRecall,
    MultilabelStatScores,
)

__all__ = ["ClassMetric", "ClassificationScores"]


@dataclass(frozen=True, kw_only=True)
class ClassificationScores:
    """What one evaluation found.

    Args:
        accuracy: Share of right answers; of several labels an image: of right yes-or-no answers. NaN where
            nothing was asked.
        macro_f1: Mean of F1 over the classes that occur; NaN where none does.
        f1: F1 of every class by name; NaN for a class that does not occur.
        recall: Recall of every class by name; NaN for a class that does not occur.
        support: How often every class occurs.
    """

    accuracy: float
    macro_f1: float
    f1: Mapping[str, float]
    recall: Mapping[str, float]
    support: Mapping[str, int]


class ClassMetric(MetricCollection):
    """torchmetrics' accuracy, F1 and recall, by the classes' names.

    NOTE macro-F1. The mean goes over the classes that occur in what was asked for. torchmetrics' own
    ``average="macro"`` also counts, with 0, a class that does not occur but was answered once: one stray
    answer of the rare class in a small set then costs as much as missing a whole class. Here it costs the
    class that it was taken for. Where every class occurs the two are equal.

    Args:
        class_names: Names of the classes; id ``i`` is ``class_names[i]``.
        multi_label: An image has any number of classes.
    """

    def __init__(self, class_names: Sequence[str], *, multi_label: bool = False) -> None:
        count = len(class_names)
        metrics: dict[str, Any]
        if multi_label:
            settings: dict[str, Any] = {"num_labels": count, "ignore_index": -1, "validate_args": False}
            metrics = {
                "accuracy": MultilabelAccuracy(**settings, average="micro"),
                "f1": MultilabelF1Score(**settings, average=None),
                "recall": MultilabelRecall(**settings, average=None),
                "counts": MultilabelStatScores(**settings, average=None),
            }
        else:
            settings = {"num_classes": count, "ignore_index": -1, "validate_args": False}
            metrics = {
                "accuracy": MulticlassAccuracy(**settings, average="micro"),
                "f1": MulticlassF1Score(**settings, average=None),
                "recall": MulticlassRecall(**settings, average=None),
                "counts": MulticlassStatScores(**settings, average=None),
            }
        # Said and not found out: torchmetrics compares states after the first batch, which may hold nothing.
        super().__init__(metrics, compute_groups=[["accuracy"], ["f1", "recall", "counts"]])
        self.class_names, self.multi_label = tuple(class_names), multi_label

    def update(self, predicted: Tensor, wanted: Tensor) -> None:  # type: ignore[override] # of a module's dict
        """Collect answers.

        Args:
            predicted: int64 ``(N,)``, ids; with ``multi_label`` int64 ``(N, num_classes)`` of 0 and 1.
            wanted: The same shape; -1 is not asked, and its answer not counted. N may be 0.
        """
        if not len(wanted):  # torchmetrics cannot take nothing, but takes a row that is not asked
            shape = (1, len(self.class_names)) if self.multi_label else (1,)
            predicted, wanted = predicted.new_zeros(shape), wanted.new_full(shape, -1)
        super().update(predicted, wanted)

    def compute_scores(self) -> ClassificationScores:
        """Return the scores of everything collected since the last reset, over all ranks."""
        found: dict[str, Tensor] = self.compute()
        support = found["counts"].reshape(-1, 5)[:, 4]
        occurs = support > 0
        nan = torch.full_like(found["f1"].reshape(-1), float("nan"))
        f1 = torch.where(occurs, found["f1"].reshape(-1), nan)
        recall = torch.where(occurs, found["recall"].reshape(-1), nan)
        asked = int(found["counts"].reshape(-1, 5)[0, :4].sum()) > 0
        return ClassificationScores(
            accuracy=float(found["accuracy"]) if asked else float("nan"),
            macro_f1=float(f1[occurs].mean()),
            f1=dict(zip(self.class_names, f1.tolist(), strict=True)),
            recall=dict(zip(self.class_names, recall.tolist(), strict=True)),
            support=dict(zip(self.class_names, support.tolist(), strict=True)),
        )
