"""Metrics without duplicates: equal to metrics of the other samples alone, with states that ranks can gather."""

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


def predictions(metric: str, count: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, 3, generator=generator).softmax(dim=1)
    labels = torch.randint(3, (count,), generator=generator)
    return (scores.argmax(dim=1) if metric == "names" else scores), labels


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
def test_duplicates_do_not_count_also_after_a_reset(metric: str, batches: list[list[int]]) -> None:
    wrapped = WithoutDuplicates(METRICS[metric]())
    expected = METRICS[metric]()
    for seed, marks in enumerate(batches):
        values = predictions(metric, seed=seed)
        is_duplicate = torch.tensor(marks, dtype=torch.bool)
        wrapped.update(*values, is_duplicate=is_duplicate)
        if not is_duplicate.all():
            expected.update(*(value[~is_duplicate] for value in values))
    torch.testing.assert_close(wrapped.compute(), expected.compute(), equal_nan=True)
    wrapped.reset()
    expected.reset()
    values = predictions(metric, seed=9)
    wrapped.update(*values, is_duplicate=[False] * 8)
    expected.update(*values)
    torch.testing.assert_close(wrapped.compute(), expected.compute(), equal_nan=True)


def test_list_state_has_one_entry_per_batch_also_for_duplicates_alone() -> None:
    # torchmetrics gathers entry by entry, so their number and dtypes have to be equal on all ranks.
    metric = WithoutDuplicates(MulticlassAUROC(3))
    for marks in ([True] * 8, [False] * 7 + [True], [True] * 8):
        metric.update(*predictions("lists"), is_duplicate=marks)
    states = metric.metric.metric_state
    assert [tuple(entry.shape) for entry in states["preds"]] == [(0, 3), (7, 3), (0, 3)]
    assert [(entry.shape[0], entry.dtype) for entry in states["target"]] == [(rows, torch.int64) for rows in (0, 7, 0)]


def one_image(seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30 + seed]])
    scores = torch.tensor([0.9, 0.5 + seed / 100])
    detection = {"boxes": boxes + seed % 3, "scores": scores, "labels": torch.tensor([1, 2])}
    return detection, {"boxes": boxes, "labels": torch.tensor([1, 1 + seed % 2])}


def test_duplicate_image_counts_as_an_empty_image() -> None:
    wrapped = WithoutDuplicates(AveragePrecision(("x", "y")))
    expected = AveragePrecision(("x", "y"))
    for marks in ([False, False, False], [False, True, True], [True, True, True]):
        detections, targets = map(list, zip(*(one_image(seed) for seed in range(3)), strict=True))
        wrapped.update(detections, targets, is_duplicate=torch.tensor(marks))
        rows = [row for row in range(3) if not marks[row]]
        if rows:
            expected.update([detections[row] for row in rows], [targets[row] for row in rows])
        assert all(len(fields["boxes"]) == 2 for fields in (*detections, *targets))  # the caller's lists are unchanged
    assert repr(wrapped.metric.compute_scores()) == repr(expected.compute_scores())  # NaN is not equal to NaN
    assert 0 < expected.compute_scores().map < 1
    assert [len(entry) for entry in wrapped.metric.detection_scores] == [2, 2, 2, 2, 0, 0, 0, 0, 0]


def test_mean_of_losses_ignores_duplicates() -> None:
    mean = WithoutDuplicates(MeanMetric())
    mean.update(torch.tensor([1.0, 2.0, 100.0]), is_duplicate=[False, False, True])
    mean.update(torch.tensor([100.0]), is_duplicate=torch.tensor([True]))
    mean.update(torch.tensor([6.0]), weight=2.0, is_duplicate=[False])
    assert float(mean.compute()) == pytest.approx((1 + 2 + 2 * 6) / 4)
    mean.reset()
    mean.update(torch.tensor([math.inf]), is_duplicate=[True])  # leaves no trace
    mean.update(torch.tensor([3.0]), is_duplicate=[False])
    assert float(mean.compute()) == 3.0


def test_positional_and_keyword_arguments_are_filtered() -> None:
    metric = WithoutDuplicates(NormalizedMeanError())
    mask = torch.ones(3, 2, dtype=torch.bool)
    boxes = torch.tensor([[0.0, 0, 4, 4]]).expand(3, 4)
    predicted = torch.tensor([4.0, 100.0, 8.0]).reshape(3, 1, 1).expand(3, 2, 2) / math.sqrt(2)
    metric.update(predicted, torch.zeros(3, 2, 2), boxes=boxes, mask=mask, is_duplicate=[False, True, False])
    scores = metric.metric.compute_scores()
    assert (scores.num_faces, scores.nme) == (2, pytest.approx(1.5))


class Words(Metric):
    """Counts the words of strings."""

    num_words: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("num_words", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, texts: list[str], *, real: bool) -> None:
        assert real is True
        self.num_words += sum(len(text.split()) for text in texts)

    def compute(self) -> torch.Tensor:
        return self.num_words


def test_strings_are_filtered_and_options_are_passed_on() -> None:
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
def test_values_without_one_entry_per_sample_are_refused(values: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        WithoutDuplicates(MeanMetric()).update(*values, is_duplicate=[True, False, False])


def test_modules_other_than_metrics_are_refused() -> None:
    with pytest.raises(TypeError, match="is not a metric; give one of torchmetrics"):
        WithoutDuplicates(torch.nn.Linear(1, 1))


def test_docstring_example_runs() -> None:
    assert doctest.testmod(without_duplicates) == (0, 6)
