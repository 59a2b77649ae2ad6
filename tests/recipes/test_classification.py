"""The classification task on a small net: training, scores, probabilities, and labels of the wrong kind."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.drawn_batches import CLASSES, classification_batch, fit, overfit
from tests.support.small_tasks import small_task

NAMES = ("bright", "hollow", "never")

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

task = partial(small_task, "classification")


def test_single_labels_of_drawn_squares_are_learned() -> None:
    model = task()
    batch = classification_batch(8)
    overfit(model, batch, steps=30, learning_rate=1e-2)
    with torch.no_grad():
        assert model(batch.images).argmax(dim=1).tolist() == batch.labels.tolist()


def test_several_labels_of_drawn_squares_are_learned() -> None:
    model = task(class_names=NAMES, multi_label=True)
    batch = classification_batch(8, multi_label=True)
    overfit(model, batch, steps=60, learning_rate=1e-2)
    with torch.no_grad():
        torch.testing.assert_close((model.predict_step(batch, 0) > 0.5).float(), batch.labels)


@pytest.mark.parametrize("multi_label", [False, True])
def test_fit_and_test_report_every_class_by_name(tmp_path: Any, multi_label: bool) -> None:
    names = NAMES if multi_label else CLASSES
    model = task(class_names=names, multi_label=multi_label)
    batches = [classification_batch(4, multi_label=multi_label, seed=seed) for seed in range(2)]
    logged = fit(model, batches, tmp_path).callback_metrics
    assert float(logged["test/accuracy"]) == pytest.approx(model.test_scores.accuracy)
    assert math.isfinite(float(logged["test/loss"]))
    num_labels = sum(int(batch.labels.sum()) if multi_label else 4 for batch in batches)
    assert sum(model.test_scores.support.values()) == 2 * num_labels  # two loaders
    sections = dict(model.test_report())
    assert sections["test"]["macro-F1"] == model.test_scores.macro_f1
    assert set(sections["recall"]) == set(sections["F1"]) == set(names)
    if multi_label:
        assert math.isnan(sections["F1"]["never"])


def test_probabilities_sum_to_one_unless_an_image_has_several_labels() -> None:
    batch = classification_batch(3)
    with torch.no_grad():
        torch.testing.assert_close(task().eval().predict_step(batch, 0).sum(dim=1), torch.ones(3))
        probabilities = task(multi_label=True).eval().predict_step(batch, 0)
    assert bool(((probabilities > 0) & (probabilities < 1)).all())


@pytest.mark.parametrize(
    ("task_multi_label", "batch_multi_label", "match"),
    [(False, True, "multi_label=True"), (True, False, "multi_label=True"), (True, True, r"float labels \(B, 2\)")],
)
def test_labels_of_another_kind_or_number_are_refused(
    task_multi_label: bool, batch_multi_label: bool, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        task(multi_label=task_multi_label).training_step(classification_batch(1, multi_label=batch_multi_label), 0)
