"""Several labels an image: classes that it does not label count neither in the loss nor in the scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lit_loader.recipes import ClassificationLoss
from tests.support.drawn_batches import classification_batch
from tests.support.small_tasks import small_task
from tests.support.toy_task import trainer

CLASSES = ("bright", "hollow", "never")
LABELS = torch.tensor([[1.0, -1, 0], [-1, 0, 1], [1, 0, 0], [-1, -1, -1]])
LOGITS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_dataloader`")


@pytest.mark.parametrize("settings", [{}, {"focal_gamma": 2.0}, {"label_smoothing": 0.1, "class_weights": [1, 2, 3]}])
def test_loss_is_the_mean_over_labelled_classes(settings: dict[str, Any]) -> None:
    loss = ClassificationLoss(**settings)
    loss.set_class_names(CLASSES)
    logits = LOGITS.clone().requires_grad_()
    losses = loss(logits, LABELS)
    losses.sum().backward()
    assert torch.equal(logits.grad != 0, LABELS >= 0)  # type: ignore[operator]
    for row, (values, labels) in enumerate(zip(LOGITS, LABELS, strict=True)):
        columns = (labels >= 0).nonzero().flatten().tolist()
        if "class_weights" in settings:
            settings = settings | {"class_weights": [[1, 2, 3][column] for column in columns]}
        part = ClassificationLoss(**settings)
        if columns:
            part.set_class_names([CLASSES[column] for column in columns])
            torch.testing.assert_close(losses[row], part(values[None, columns], labels[None, columns])[0])
        else:
            assert losses[row] == 0


def task(**settings: Any) -> Any:
    model = small_task("classification", class_names=CLASSES, multi_label=True, **settings)
    model.log = lambda *_, **__: None
    return model.eval()  # without dropout, which would draw for each step


def batch(labels: Tensor = LABELS) -> Any:
    return replace(classification_batch(len(labels), multi_label=True), labels=labels)


def without_column(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of each class, whose gradient at other labels than 0 and 1 is not finite."""
    assert ((labels == 0) | (labels == 1)).all()
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


@pytest.mark.parametrize("loss", [None, without_column, nn.BCEWithLogitsLoss(reduction="none")])
def test_task_trains_no_score_of_an_unlabelled_class(loss: Any) -> None:
    model = task(loss=loss)
    all_unlabelled = LABELS.clone()
    all_unlabelled[:, 1] = -1
    model.training_step(batch(all_unlabelled), 0).backward()
    gradient = model.model.classify[-1].weight.grad
    assert not gradient[1].any()
    assert gradient[0].any()
    assert gradient[2].any()
    expected = task().training_step(batch(all_unlabelled), 0)
    torch.testing.assert_close(model.training_step(batch(all_unlabelled), 0), expected)


def per_image(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)


def test_loss_of_an_image_is_refused_where_classes_are_unlabelled() -> None:
    model = task(loss=per_image)
    model.training_step(batch(LABELS.clamp(min=0)), 0)
    with pytest.raises(ValueError, match=r"expected one loss a class \(4, 3\), .* got \(4,\); give a loss of each"):
        model.training_step(batch(), 0)


def test_scores_count_no_prediction_of_an_unlabelled_class(tmp_path: Path) -> None:
    model = task()
    del model.log
    values = batch()
    trainer(tmp_path).test(model, DataLoader([values], batch_size=None), verbose=False)
    scores = model.test_scores
    # The last image labels no class.
    losses = ClassificationLoss()(model(values.images).detach(), LABELS)
    assert scores.loss == pytest.approx(float(losses[:3].mean()))
    assert list(scores.support.values()) == [2, 0, 1]
    with torch.no_grad():
        predicted = (model(values.images) > 0).float()
    is_labelled = LABELS >= 0
    assert scores.accuracy == pytest.approx(float((predicted == LABELS)[is_labelled].float().mean()))


@pytest.mark.parametrize(("loss", "num_reads"), [(None, 0), (per_image, 1)])
def test_labels_are_searched_for_unlabelled_classes_only_for_a_loss_that_needs_it(loss: Any, num_reads: int) -> None:
    class Watched(Tensor):
        num_reads = 0

        def any(self, *args: Any, **kwargs: Any) -> Any:
            Watched.num_reads += 1
            return super().any(*args, **kwargs)

    task(loss=loss).check_batch(batch(LABELS.clamp(min=0).as_subclass(Watched)))
    assert Watched.num_reads == num_reads
