"""Classifiers of torchvision's, timm's and one's own in the task: their last layer, their colours, fine-tuning."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms._presets import ImageClassification

from lit_loader.recipes import ClassificationTask, classifier_small, replace_classifier
from tests.support.drawn_batches import CLASSES, classification_batch, fit

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def family(name: str) -> str:
    return models.get_model_builder(name).__module__


NAMES = sorted(models.list_models(module=models), key=family)
FAMILIES = {module: next(names) for module, names in groupby(NAMES, key=family)}
FAMILIES["torchvision.models.regnet"] = "regnet_y_400mf"  # its constructor computes: not on the meta device
WITH_AUXILIARIES = ("googlenet", "inception_v3")


class TinyWeights(models.WeightsEnum):
    V1 = models.Weights("", partial(ImageClassification, crop_size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)), {})


def tiny(*, num_classes: int = 10, weights: Any = None) -> nn.Module:
    assert weights is None or num_classes == 10, "torchvision's builders refuse weights for other classes"
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))


tiny.__annotations__["weights"] = TinyWeights | None  # where torchvision looks for the weights of a builder


@pytest.mark.parametrize("name", sorted(set(FAMILIES.values()) - set(WITH_AUXILIARIES)))
def test_the_last_layer_of_every_family_of_torchvision_is_replaced(name: str) -> None:
    device = "cpu" if "regnet" in name else "meta"
    with torch.device(device), torch.no_grad():
        model = models.get_model(name, weights=None).eval()
        before = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        replace_classifier(model, 3)
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 3)
    after = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    changed = [key for key in before if before[key] != after[key]]
    assert after.keys() == before.keys()
    assert {key.rpartition(".")[0] for key in changed} == {changed[0].rpartition(".")[0]}  # one layer
    assert all(before[key] == (1000, *after[key][1:]) and after[key][0] == 3 for key in changed)


def test_models_of_timm_replace_theirs() -> None:
    model = timm.create_model("test_vit", num_classes=5).eval()
    replace_classifier(model, 3)
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 160, 160)).shape == (1, 3)
    assert model.num_classes == 3


@pytest.mark.parametrize("model", [nn.Sequential(nn.ReLU()), nn.Conv2d(3, 8, 3), nn.Linear(3, 8)])
def test_a_model_that_does_not_end_with_a_layer_of_classes_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="takes num_classes"):
        replace_classifier(model, 3)


@pytest.mark.parametrize("name", WITH_AUXILIARIES)
def test_a_model_with_auxiliary_outputs_is_refused(name: str) -> None:
    builder = partial(models.get_model_builder(name), init_weights=False)
    with torch.device("meta"), pytest.raises(ValueError, match="auxiliary outputs"):
        ClassificationTask(builder, class_names=CLASSES)


@pytest.mark.parametrize("found", [{"out": torch.zeros(2, 2)}, torch.zeros(2, 2, 8, 8), torch.zeros(2, 1000)])
def test_a_model_that_returns_something_else_than_logits_is_refused(found: Any) -> None:
    class Other(nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Any:
            return found

    with pytest.raises(ValueError, match=r"expected logits \(2, 2\)"):
        ClassificationTask(Other, class_names=CLASSES)(torch.rand(2, 3, 8, 8))


def test_images_are_normalised_by_the_weights_own_mean_and_a_checkpoint_keeps_it(tmp_path: Any) -> None:
    task = ClassificationTask(tiny, class_names=CLASSES, weights="V1")
    images = torch.rand(1, 3, 8, 8)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    expected = task.model((images - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(task(images), expected)
    fit(task, [classification_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    again = ClassificationTask.load_from_checkpoint(tmp_path / "m.ckpt", model=tiny, weights_only=True)
    torch.testing.assert_close(again(images), task(images))


@pytest.mark.parametrize(
    ("model", "mean"),
    [
        ("timm/test_resnet", [0.5, 0.5, 0.5]),
        (tiny, [0.485, 0.456, 0.406]),
        (partial(timm.create_model, "test_resnet"), [0.5, 0.5, 0.5]),
        ("classifier_small", [0.485, 0.456, 0.406]),
    ],
)
def test_colours_are_those_of_timm_or_else_of_imagenet(model: Any, mean: list[float]) -> None:
    task = ClassificationTask(model, class_names=CLASSES)
    assert task.normalize.mean.flatten().tolist() == pytest.approx(mean)


def test_names_of_weights_are_checked() -> None:
    with pytest.raises(ValueError, match="'V2' is neither a file nor one of V1"):
        ClassificationTask(tiny, class_names=CLASSES, weights="V2")
    with pytest.raises(ValueError, match="no weights by name"):
        ClassificationTask(classifier_small, class_names=CLASSES, weights="DEFAULT")


def test_weights_of_a_file_for_other_classes_are_taken_but_for_the_last_layer(tmp_path: Any) -> None:
    torch.manual_seed(0)
    given = models.resnet18(num_classes=7)
    torch.save(given.state_dict(), tmp_path / "resnet18.pth")
    task = ClassificationTask("resnet18", class_names=CLASSES, weights=str(tmp_path / "resnet18.pth"))
    assert torch.equal(task.model.conv1.weight, given.conv1.weight)
    assert task.model.fc.weight.shape == (2, 512)


def test_a_torchvision_model_is_fine_tuned_with_frozen_layers_and_scaled_rates(tmp_path: Any) -> None:
    torch.manual_seed(0)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    scales = {"fc.*": 1.0, "*": 0.1}
    task = ClassificationTask(
        "resnet18",
        class_names=CLASSES,
        optimizer=optimizer,
        scheduler=None,
        lr_scales=scales,
        freeze=["conv1.*", "bn1.*", "layer1.*"],
    )
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    trainer = fit(task, [classification_batch(2)], tmp_path)
    after = task.model.state_dict()
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if name.startswith(("conv1.", "bn1.", "layer1."))} <= kept
    assert {"layer4.1.conv2.weight", "layer4.1.bn2.running_mean", "fc.weight", "fc.bias"}.isdisjoint(kept)
    rates = sorted({group["lr"] for group in trainer.optimizers[0].param_groups})
    assert rates == pytest.approx([0.01, 0.1])


def test_a_timm_model_trains_and_its_checkpoint_needs_no_more_than_its_name(tmp_path: Any) -> None:
    torch.manual_seed(0)
    task = ClassificationTask("timm/test_resnet", class_names=CLASSES)
    fit(task, [classification_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    again = ClassificationTask.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True).eval()
    images = classification_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(again(images), task.eval()(images))
    assert again.hparams["model"] == "timm/test_resnet"
