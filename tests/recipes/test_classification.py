"""The classification task: what it accepts, that it learns, and what it reports."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lit_loader.recipes import ClassificationTask, classifier_small
from tests.support.drawn_batches import CLASSES, classification_batch, fit, overfit
from tests.support.toy_task import trainer

NAMES = ("bright", "hollow", "never")

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def task(*, class_names: Any = CLASSES, multi_label: bool = False, **changes: Any) -> ClassificationTask:
    """A task on the small net; changes are those of the net."""
    torch.manual_seed(0)
    model = partial(classifier_small, **{"channels": 16, "head_channels": 16} | changes)
    return ClassificationTask(model, class_names=class_names, multi_label=multi_label)


def test_it_learns_drawn_squares() -> None:
    model, batch = task(), classification_batch(8)
    overfit(model, batch, steps=30, learning_rate=1e-2)
    with torch.no_grad():
        assert model(batch.images).argmax(dim=1).tolist() == batch.labels.tolist()


def test_it_learns_several_labels_of_drawn_squares() -> None:
    model, batch = task(class_names=NAMES, multi_label=True), classification_batch(8, multi_label=True)
    overfit(model, batch, steps=60, learning_rate=1e-2)
    with torch.no_grad():
        torch.testing.assert_close((model.predict_step(batch, 0) > 0.5).float(), batch.labels)


@pytest.mark.parametrize("multi_label", [False, True])
def test_fit_and_test_report_every_class_by_name(tmp_path: Any, multi_label: bool) -> None:
    names = NAMES if multi_label else CLASSES
    model = task(class_names=names, multi_label=multi_label)
    batches = [classification_batch(4, multi_label=multi_label, seed=seed) for seed in range(2)]
    trainer = fit(model, batches, tmp_path)
    assert model.test_scores is not None
    logged = trainer.callback_metrics
    assert float(logged["test/accuracy"]) == pytest.approx(model.test_scores.accuracy)
    assert math.isfinite(float(logged["test/loss"]))
    assert sum(model.test_scores.support.values()) == 2 * sum(
        int(one.labels.sum()) if multi_label else 4 for one in batches
    )
    sections = dict(model.test_report())
    assert sections["test"]["macro-F1"] == model.test_scores.macro_f1
    assert set(sections["recall"]) == set(sections["F1"]) == set(names)
    if multi_label:
        assert math.isnan(sections["F1"]["never"])


def test_the_checkpoint_is_chosen_by_a_metric_that_validation_logs(tmp_path: Any) -> None:
    model = task()
    trainer = fit(model, [classification_batch(2)], tmp_path)
    assert model.val_scores is not None
    assert model.monitor_mode == "max"
    assert model.monitor.split("/")[1] in {name.split("/")[1] for name in trainer.callback_metrics}


def test_a_checkpoint_restores_the_task_from_plain_values_and_a_builder(tmp_path: Any) -> None:
    model = task(class_names=NAMES, multi_label=True, stride=16)
    fit(model, [classification_batch(2, multi_label=True)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    torch.load(tmp_path / "m.ckpt", weights_only=True)
    builder = partial(classifier_small, channels=16, head_channels=16, stride=16)
    again = ClassificationTask.load_from_checkpoint(tmp_path / "m.ckpt", model=builder, weights_only=True).eval()
    images = classification_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(again(images), model.eval()(images))
    assert again.multi_label


def test_probabilities_sum_to_one_or_stand_alone() -> None:
    batch = classification_batch(3)
    with torch.no_grad():
        torch.testing.assert_close(task().eval().predict_step(batch, 0).sum(dim=1), torch.ones(3))
        alone = task(multi_label=True).eval().predict_step(batch, 0)
    assert bool(((alone > 0) & (alone < 1)).all())


def test_sizes_are_free_and_uint8_images_are_scaled_to_the_unit_range() -> None:
    images = torch.randint(0, 256, (2, 3, 50, 70), dtype=torch.uint8)
    model = task().eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model(images.float() / 255))


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_the_class_names_is_refused(label: int) -> None:
    batch = classification_batch(1, labels=torch.tensor([label]))
    with pytest.raises(ValueError, match="must be in 0 to 1"):
        task().training_step(batch, 0)


def test_labels_of_the_other_kind_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="multi_label=True"):
        task().training_step(classification_batch(1, multi_label=True), 0)
    with pytest.raises(ValueError, match="multi_label=True"):
        task(multi_label=True).training_step(classification_batch(1), 0)
    with pytest.raises(ValueError, match=r"float labels \(B, 2\)"):
        task(multi_label=True).training_step(classification_batch(1, multi_label=True), 0)


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_images_that_were_normalised_already_are_refused(tmp_path: Any, stage: str) -> None:
    batch = classification_batch(2)
    loader = torch.utils.data.DataLoader([replace(batch, images=batch.images * 4 - 2)], batch_size=None)
    with pytest.raises(ValueError, match="leave normalisation out"):
        getattr(trainer(tmp_path), stage)(task(), *[loader] * (2 if stage == "fit" else 1))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lower_precision_trains_and_predicts_in_single_precision(tmp_path: Any, precision: Any) -> None:
    model, batch = task(), classification_batch(2)
    running = fit(model, [batch], tmp_path, precision=precision)
    assert model.test_scores is not None
    assert math.isfinite(model.test_scores.loss)
    (found,) = running.predict(model, torch.utils.data.DataLoader([batch], batch_size=None))  # type: ignore[misc]
    assert found.dtype == torch.float32


def test_a_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        task().test_report()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class_names": ()}, "class_names"),
        ({"class_names": ("a", "a")}, "class_names"),
        ({"stride": 6}, "run of neighbours"),
        ({"channels": 12}, "multiple of 8"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        task(**changes)


def test_one_string_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="one string"):
        task(class_names="ab")
