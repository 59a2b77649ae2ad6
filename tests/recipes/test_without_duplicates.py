"""Metrics without duplicates: equal to those of the others alone, with states that ranks can gather."""

from __future__ import annotations

import doctest
import math
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from lit_loader.recipes import AveragePrecision, ClassMetric, NormalizedMeanError, WithoutDuplicates, without_duplicates

CLASSES = ("a", "b", "c")
METRICS: dict[str, Any] = {
    "accuracy": lambda: MulticlassAccuracy(3),
    "lists": lambda: MulticlassAUROC(3),
    "collection": lambda: MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3), MulticlassAUROC(3)]),
    "names": lambda: ClassMetric(CLASSES),
}


def answers(metric: str, count: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, 3, generator=generator).softmax(dim=1)
    wanted = torch.randint(3, (count,), generator=generator)
    return (scores.argmax(dim=1) if metric == "names" else scores), wanted


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "batches",
    [
        [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]],
        [[0, 0, 0, 0, 0, 0, 0, 1], [1] * 8],
        [[1] * 8, [0, 1, 0, 1, 0, 0, 1, 1], [1] * 8, [0] * 8],
    ],
    ids=["some", "all of the last", "all of some"],
)
def test_only_the_others_count(metric: str, batches: list[list[int]]) -> None:
    without, others = WithoutDuplicates(METRICS[metric]()), METRICS[metric]()
    for seed, marks in enumerate(batches):
        given, is_duplicate = answers(metric, seed=seed), torch.tensor(marks, dtype=torch.bool)
        without.update(*given, is_duplicate=is_duplicate)
        if not is_duplicate.all():
            others.update(*(value[~is_duplicate] for value in given))
    torch.testing.assert_close(without.compute(), others.compute(), equal_nan=True)
    without.reset()
    others.reset()
    given = answers(metric, seed=9)
    without.update(*given, is_duplicate=[False] * 8)
    others.update(*given)
    torch.testing.assert_close(without.compute(), others.compute(), equal_nan=True)


def test_a_list_has_an_entry_for_each_batch_whatever_was_dropped() -> None:
    """What torchmetrics gathers one by one must be as many, and alike, on all ranks."""
    metric = WithoutDuplicates(MulticlassAUROC(3))
    for marks in ([True] * 8, [False] * 7 + [True], [True] * 8):
        metric.update(*answers("lists"), is_duplicate=marks)
    states = metric.metric.metric_state
    assert [tuple(entry.shape) for entry in states["preds"]] == [(0, 3), (7, 3), (0, 3)]
    assert [(entry.shape[0], entry.dtype) for entry in states["target"]] == [(rows, torch.int64) for rows in (0, 7, 0)]


def one_image(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30 + seed]])
    found = {"boxes": boxes + seed % 3, "scores": torch.tensor([0.9, 0.5 + seed / 100]), "labels": torch.tensor([1, 2])}
    return found, {"boxes": boxes, "labels": torch.tensor([1, 1 + seed % 2])}


def test_a_duplicate_image_counts_as_one_in_which_there_is_nothing() -> None:
    without, others = WithoutDuplicates(AveragePrecision(("x", "y"))), AveragePrecision(("x", "y"))
    for marks in ([False, False, False], [False, True, True], [True, True, True]):
        found, wanted = map(list, zip(*(one_image(seed) for seed in range(3)), strict=True))
        without.update(found, wanted, is_duplicate=torch.tensor(marks))
        kept = [row for row in range(3) if not marks[row]]
        if kept:
            others.update([found[row] for row in kept], [wanted[row] for row in kept])
        assert all(len(one["boxes"]) == 2 for one in (*found, *wanted))  # nothing of the caller's is changed
    assert repr(without.metric.compute_scores()) == repr(others.compute_scores())  # NaN is not equal to NaN
    assert 0 < others.compute_scores().map < 1
    assert [len(entry) for entry in without.metric.detection_scores] == [2, 2, 2, 2, 0, 0, 0, 0, 0]


def test_a_mean_of_losses_is_of_the_others() -> None:
    mean = WithoutDuplicates(MeanMetric())
    mean.update(torch.tensor([1.0, 2.0, 100.0]), is_duplicate=[False, False, True])
    mean.update(torch.tensor([100.0]), is_duplicate=torch.tensor([True]))
    mean.update(torch.tensor([6.0]), weight=2.0, is_duplicate=[False])
    assert float(mean.compute()) == pytest.approx((1 + 2 + 2 * 6) / 4)
    mean.reset()
    mean.update(torch.tensor([math.inf]), is_duplicate=[True])  # leaves no trace
    mean.update(torch.tensor([3.0]), is_duplicate=[False])
    assert float(mean.compute()) == 3.0


def test_every_argument_by_place_and_by_name_is_of_samples() -> None:
    metric = WithoutDuplicates(NormalizedMeanError())
    wanted, mask = torch.zeros(3, 2, 2), torch.ones(3, 2, dtype=torch.bool)
    boxes = torch.tensor([[0.0, 0, 4, 4]]).expand(3, 4)
    predicted = torch.tensor([4.0, 100.0, 8.0]).reshape(3, 1, 1).expand(3, 2, 2) / math.sqrt(2)
    metric.update(predicted, wanted, boxes=boxes, mask=mask, is_duplicate=[False, True, False])
    scores = metric.metric.compute_scores()
    assert (scores.num_faces, scores.nme) == (2, pytest.approx(1.5))


class Words(Metric):
    """Counts words, one list a state, of strings."""

    num_words: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("num_words", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, texts: list[str], *, real: bool) -> None:
        assert real is True
        self.num_words += sum(len(text.split()) for text in texts)

    def compute(self) -> torch.Tensor:
        return self.num_words


def test_strings_are_samples_and_options_are_passed_on() -> None:
    words = WithoutDuplicates(Words())
    words.update(["a b", "c d e", "f"], real=True, is_duplicate=[False, True, False])
    assert int(words.compute()) == 3


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ((torch.zeros(2), torch.zeros(3)), ValueError, "2 samples and is_duplicate 3"),
        (([1, 2], torch.zeros(3)), ValueError, "2 samples and is_duplicate 3"),
        ((torch.tensor(0.5),), TypeError, 'reduction="none"'),
        (({"boxes": torch.zeros(3)},), TypeError, "got a dict"),
        (([{}, {}, {}], torch.zeros(3)), TypeError, "one dict per sample in every argument"),
    ],
)
def test_what_is_not_of_samples_is_refused(values: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        WithoutDuplicates(MeanMetric()).update(*values, is_duplicate=[True, False, False])


def test_something_else_is_no_metric() -> None:
    with pytest.raises(TypeError, match="is not a metric; give one of torchmetrics"):
        WithoutDuplicates(torch.nn.Linear(1, 1))


def test_its_example_is_true() -> None:
    assert doctest.testmod(without_duplicates) == (0, 6)
