"""Class scores: worked out by hand, equal to torchmetrics where every class occurs, and NaN for absent classes."""

from __future__ import annotations

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score, multiclass_recall

from lit_loader.recipes import ClassMetric

NAMES = ("a", "b", "c")


def test_scores_are_equal_to_those_worked_out_by_hand() -> None:
    metric = ClassMetric(NAMES)
    metric.update(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
    metric.update(torch.tensor([2]), torch.tensor([2]))
    scores = metric.compute_scores()
    assert scores.accuracy == pytest.approx(4 / 5)
    assert scores.recall == {"a": pytest.approx(2 / 3), "b": 1.0, "c": 1.0}
    assert scores.f1 == {"a": pytest.approx(4 / 5), "b": pytest.approx(2 / 3), "c": 1.0}
    assert scores.macro_f1 == pytest.approx((4 / 5 + 2 / 3 + 1) / 3)
    assert scores.support == {"a": 3, "b": 1, "c": 1}


def test_scores_equal_torchmetrics_if_every_class_occurs() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, target = (torch.randint(3, (60,), generator=generator) for _ in range(2))
    metric = ClassMetric(NAMES)
    metric.update(predicted, target)
    scores = metric.compute_scores()
    settings = {"preds": predicted, "target": target, "num_classes": 3}
    assert scores.macro_f1 == pytest.approx(float(multiclass_f1_score(**settings, average="macro")))
    assert scores.accuracy == pytest.approx(float(multiclass_accuracy(**settings, average="micro")))
    assert list(scores.recall.values()) == pytest.approx(multiclass_recall(**settings, average=None).tolist())


def test_absent_class_is_nan_and_not_in_the_mean_even_if_predicted() -> None:
    metric = ClassMetric(NAMES)
    metric.update(torch.tensor([0, 0, 2, 1]), torch.tensor([0, 0, 0, 1]))
    scores = metric.compute_scores()
    assert math.isnan(scores.f1["c"])
    assert math.isnan(scores.recall["c"])
    assert scores.macro_f1 == pytest.approx((4 / 5 + 1) / 2)  # torchmetrics' macro would be a third of 9 / 5


def test_targets_of_minus_one_are_not_counted() -> None:
    metric = ClassMetric(NAMES)
    metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, -1, -1]))
    scores = metric.compute_scores()
    assert (scores.accuracy, scores.macro_f1) == (1.0, 1.0)
    assert scores.support == {"a": 1, "b": 0, "c": 0}


@pytest.mark.parametrize("multi_label", [False, True])
def test_empty_update_scores_nan_and_does_not_change_later_scores(multi_label: bool) -> None:
    shape = (0, 3) if multi_label else (0,)
    metric = ClassMetric(NAMES, multi_label=multi_label)
    metric.update(torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))
    scores = metric.compute_scores()
    assert math.isnan(scores.accuracy)
    assert math.isnan(scores.macro_f1)
    answers = torch.eye(3, dtype=torch.int64) if multi_label else torch.arange(3)
    metric.update(answers, answers)
    assert metric.compute_scores().macro_f1 == 1.0


def test_single_class_is_scored() -> None:
    metric = ClassMetric(["face"])
    metric.update(torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64))
    scores = metric.compute_scores()
    assert (scores.accuracy, scores.macro_f1, scores.support) == (1.0, 1.0, {"face": 4})


def test_multiple_labels_are_scored_as_yes_or_no_answers() -> None:
    metric = ClassMetric(NAMES, multi_label=True)
    metric.update(torch.tensor([[1, 0, 0], [1, 1, 0]]), torch.tensor([[1, 1, 0], [0, 1, 0]]))
    scores = metric.compute_scores()
    assert scores.accuracy == pytest.approx(4 / 6)
    assert scores.f1["a"] == pytest.approx(2 / 3)
    assert scores.recall["b"] == pytest.approx(1 / 2)
    assert math.isnan(scores.f1["c"])
    assert scores.macro_f1 == pytest.approx((2 / 3 + 2 / 3) / 2)
    metric.reset()
    metric.update(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0, 1]]))
    assert metric.compute_scores().support == {"a": 0, "b": 0, "c": 1}
