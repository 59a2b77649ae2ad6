"""Classifiers of torchvision, timm and users in the task: their last layer, their colours, fine-tuning."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torchvision import models
from torchvision.transforms._presets import ImageClassification

from lit_loader.recipes import ClassificationTask, replace_classifier
from tests.support.drawn_batches import CLASSES, classification_batch, fit
from tests.support.small_tasks import constant_builder

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
def test_last_layer_is_replaced_in_every_family_of_torchvision(name: str) -> None:
    device = "cpu" if "regnet" in name else "meta"
    with torch.device(device), torch.no_grad():
        model = models.get_model(name, weights=None).eval()
        old_shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        replace_classifier(model, 3)
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 3)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    changed = [key for key in old_shapes if old_shapes[key] != shapes[key]]
    assert shapes.keys() == old_shapes.keys()
    assert {key.rpartition(".")[0] for key in changed} == {changed[0].rpartition(".")[0]}  # one layer
    assert all(old_shapes[key] == (1000, *shapes[key][1:]) and shapes[key][0] == 3 for key in changed)


def test_timm_models_replace_their_own_layer() -> None:
    model = timm.create_model("test_vit", num_classes=5).eval()
    replace_classifier(model, 3)
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 160, 160)).shape == (1, 3)
    assert model.num_classes == 3


@pytest.mark.parametrize("model", [nn.Sequential(nn.ReLU()), nn.Conv2d(3, 8, 3), nn.Linear(3, 8)])
def test_model_without_a_final_layer_of_classes_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="takes num_classes"):
        replace_classifier(model, 3)


@pytest.mark.parametrize("name", WITH_AUXILIARIES)
def test_model_with_auxiliary_outputs_is_refused(name: str) -> None:
    builder = partial(models.get_model_builder(name), init_weights=False)
    with torch.device("meta"), pytest.raises(ValueError, match="auxiliary outputs"):
        ClassificationTask(builder, class_names=CLASSES)


@pytest.mark.parametrize("output", [{"out": torch.zeros(2, 2)}, torch.zeros(2, 2, 8, 8), torch.zeros(2, 1000)])
def test_model_that_returns_other_values_than_logits_is_refused(output: Any) -> None:
    with pytest.raises(ValueError, match=r"expected logits \(2, 2\)"):
        ClassificationTask(constant_builder(output), class_names=CLASSES)(torch.rand(2, 3, 8, 8))


def test_images_are_normalised_by_the_colours_of_the_weights_also_from_a_checkpoint(tmp_path: Any) -> None:
    task = ClassificationTask(tiny, class_names=CLASSES, weights="V1")
    images = torch.rand(1, 3, 8, 8)
    mean = torch.tensor([0.1, 0.2, 0.3])
    std = torch.tensor([0.5, 0.6, 0.7])
    expected = task.model((images - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(task(images), expected)
    fit(task, [classification_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    restored = ClassificationTask.load_from_checkpoint(tmp_path / "m.ckpt", model=tiny, weights_only=True)
    torch.testing.assert_close(restored(images), task(images))


@pytest.mark.parametrize(
    ("model", "mean"),
    [
        ("timm/test_resnet", [0.5, 0.5, 0.5]),
        (tiny, [0.485, 0.456, 0.406]),
        (partial(timm.create_model, "test_resnet"), [0.5, 0.5, 0.5]),
        ("classifier_small", [0.485, 0.456, 0.406]),
    ],
)
def test_colours_are_from_timm_or_from_imagenet_by_default(model: Any, mean: list[float]) -> None:
    task = ClassificationTask(model, class_names=CLASSES)
    assert task.normalize.mean.flatten().tolist() == pytest.approx(mean)


def test_file_for_other_classes_is_loaded_except_into_the_last_layer(tmp_path: Any) -> None:
    source = models.resnet18(num_classes=7)
    torch.save(source.state_dict(), tmp_path / "resnet18.pth")
    task = ClassificationTask("resnet18", class_names=CLASSES, weights=str(tmp_path / "resnet18.pth"))
    assert torch.equal(task.model.conv1.weight, source.conv1.weight)
    assert task.model.fc.weight.shape == (2, 512)


def test_timm_model_trains_and_its_checkpoint_needs_only_its_name(tmp_path: Any) -> None:
    torch.manual_seed(0)
    task = ClassificationTask("timm/test_resnet", class_names=CLASSES)
    fit(task, [classification_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    restored = ClassificationTask.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True).eval()
    images = classification_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(restored(images), task.eval()(images))
    assert restored.hparams["model"] == "timm/test_resnet"
