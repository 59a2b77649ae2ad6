"""Mixed batches in the classification task: losses of proportions, and labels and losses that are refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from lit_loader import BatchMixing, ClassificationDataModule
from lit_loader.errors import SettingError
from lit_loader.recipes import ClassificationLoss
from tests.support.drawn_batches import classification_batch, overfit
from tests.support.drawn_set import CLASSES, DrawnSource, draw_set
from tests.support.small_tasks import small_task
from tests.support.tiny_trainer import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-3.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
PROPORTIONS = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]])
SETTINGS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"class_weights": [2.0, 1.0, 5.0]},
    {"focal_gamma": 2.0},
    {"label_smoothing": 0.1, "class_weights": [2.0, 1.0, 5.0], "focal_gamma": 1.5},
]

task = partial(small_task, "classification")


def loss_of(settings: dict[str, Any]) -> ClassificationLoss:
    loss = ClassificationLoss(**settings)
    loss.set_class_names(["a", "b", "c"])
    return loss


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_loss_of_a_mixed_image_is_the_mean_of_its_classes_losses(settings: dict[str, Any]) -> None:
    loss = loss_of(settings)
    # The definition of the papers: lambda * loss(a) + (1 - lambda) * loss(b).
    losses = torch.stack([loss(LOGITS, torch.full((4,), label)) for label in range(3)], dim=1)
    torch.testing.assert_close(loss.mixed(LOGITS, PROPORTIONS), (PROPORTIONS * losses).sum(dim=1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_of_proportions_is_torchs(smoothing: float) -> None:
    expected = functional.cross_entropy(LOGITS, PROPORTIONS, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(ClassificationLoss(label_smoothing=smoothing).mixed(LOGITS, PROPORTIONS), expected)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_loss_of_mixed_multi_hot_labels_is_the_mean_of_both_answers(settings: dict[str, Any]) -> None:
    loss = loss_of(settings)
    answers = torch.tensor([[1.0, 0.3, 0.0]]).expand(4, 3)
    yes = loss(LOGITS, torch.tensor([[1.0, 1.0, 0.0]]).expand(4, 3))
    no = loss(LOGITS, torch.tensor([[1.0, 0.0, 0.0]]).expand(4, 3))
    torch.testing.assert_close(loss(LOGITS, answers), 0.3 * yes + 0.7 * no)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_confident_logits_have_finite_gradients(gamma: float) -> None:
    logits = torch.tensor([[60.0, -60.0]], requires_grad=True)
    loss = ClassificationLoss(focal_gamma=gamma)
    labels = torch.tensor([[0.0, 1.0]])
    (loss.mixed(logits, labels) + loss(logits, labels)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    "loss", [None, ClassificationLoss(focal_gamma=1.0), nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)]
)
def test_one_hot_labels_train_as_class_ids_do(loss: Any) -> None:
    model = task(loss=loss).eval()  # without dropout
    model.log = lambda *_, **__: None
    batch = classification_batch(6)
    with torch.no_grad():
        expected = model.training_step(batch, 0)
        batch.labels = functional.one_hot(batch.labels, 2).float()
        torch.testing.assert_close(model.training_step(batch, 0), expected)


def test_mixed_labels_are_learned() -> None:
    model = task()
    labels = torch.tensor([[0.8, 0.2], [0.3, 0.7], [1.0, 0.0], [0.4, 0.6]])
    batch = classification_batch(4, labels=labels)
    overfit(model, batch, steps=150, learning_rate=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model.eval().predict_step(batch, 0), labels, atol=0.15, rtol=0)


def test_labels_of_several_classes_are_not_taken_for_mixed_labels() -> None:
    batch = classification_batch(2, labels=torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    with pytest.raises(ValueError, match=r"add up to 1, got \[1.0, 1.0\]; for several labels .* multi_label=True"):
        task().training_step(batch, 0)


def test_mixed_labels_are_refused_in_validation() -> None:
    model = task()
    batch = classification_batch(2, labels=torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    with pytest.raises(ValueError, match=r"multi_label=False needs int64 labels \(B,\), got torch.float32 \(2, 2\)"):
        model.collect(batch, model.val_metric)


def nll(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(logits.log_softmax(dim=1), labels, reduction="none")


def fit(folder: Any, loss: Any, *, multi_label: bool = False, **mixing: Any) -> Any:
    table = draw_set(folder, num_images=12, objects=1)
    datamodule = ClassificationDataModule(
        DrawnSource(train=table, val=table),
        batch_size=4,
        train_transforms={"size": 32},
        multi_label=multi_label,
        mixing=BatchMixing(**mixing) if mixing else None,
    )
    model = task(class_names=CLASSES, loss=loss, multi_label=multi_label)
    trainer = trainer_of(folder)
    trainer.fit(model, datamodule=datamodule)
    return trainer


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
@pytest.mark.parametrize("multi_label", [False, True])
def test_task_trains_on_mixed_batches_and_validates_on_class_ids(tmp_path: Any, method: str, multi_label: bool) -> None:
    trainer = fit(tmp_path, None, multi_label=multi_label, **{method: 1.0})
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    assert 0 <= trainer.callback_metrics["val/accuracy"] <= 1


@pytest.mark.parametrize("loss", [nll, nn.MultiMarginLoss(reduction="none")])
def test_loss_of_class_ids_alone_is_refused_before_training(tmp_path: Any, loss: Any) -> None:
    with pytest.raises(SettingError, match=r"does not take the labels of mixed .* give ClassificationLoss\(\) or"):
        fit(tmp_path, loss, cutmix=1.0)
    fit(tmp_path / "unmixed", loss)


class CountingLoss(nn.CrossEntropyLoss):
    """A loss with a state."""

    def __init__(self) -> None:
        super().__init__(reduction="none")
        self.num_calls = 0

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return super().forward(input, target)


def test_check_of_mixed_labels_leaves_the_state_of_a_loss(tmp_path: Any) -> None:
    num_calls = []
    for name, mixing in (("plain", {}), ("mixed", {"cutmix": 1.0})):
        loss = CountingLoss()
        fit(tmp_path / name, loss, **mixing)
        num_calls.append(loss.num_calls)
    assert num_calls[0] == num_calls[1] > 0


def test_losses_of_torch_for_several_labels_take_mixed_ones(tmp_path: Any) -> None:
    fit(tmp_path, partial(sigmoid_focal_loss, reduction="none"), multi_label=True, mixup=1.0)
