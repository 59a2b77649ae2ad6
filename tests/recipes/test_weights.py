"""Models by name or builder, and their weights by name or from a file."""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models import MobileNet_V3_Small_Weights, mobilenet_v3_small
from torchvision.ops.misc import FrozenBatchNorm2d

from lit_loader.errors import LitLoaderError
from lit_loader.recipes import fcos_small
from lit_loader.recipes.weights import build_model, freeze_batch_norm, load_weights, model_builder
from tests.support.toy_task import Net, ToyTask, loader, trainer

BUILDERS = {"fcos_small": fcos_small}


def no_heads(model: nn.Module, num_classes: int) -> None:
    raise AssertionError("heads of random weights are replaced")


def new_classifier(model: nn.Module, num_classes: int) -> None:
    model.classifier[-1] = nn.Linear(model.classifier[-1].in_features, num_classes)


def build(builder: Any, weights: Any, *, num_classes: int = 5, heads: Any = new_classifier) -> nn.Module:
    return build_model(builder, num_classes=num_classes, weights=weights, replace_heads=heads)


def assert_has_weights(model: nn.Module, state: dict[str, Any]) -> None:
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


def without_counts(model: nn.Module) -> dict[str, Any]:
    """Return the state of a model whose batch normalisation is frozen, or saved by torch before 0.4.1."""
    return {name: tensor for name, tensor in model.state_dict().items() if "num_batches" not in name}


# -- models ----------------------------------------------------------------------------------------------


def test_model_names_are_of_this_package_torchvision_or_timm() -> None:
    assert model_builder("fcos_small", BUILDERS) is fcos_small
    assert model_builder("mobilenet_v3_small", BUILDERS) is mobilenet_v3_small
    assert build(model_builder("timm/test_vit", BUILDERS), None, heads=no_heads)(torch.rand(1, 3, 160, 160)).shape == (
        1,
        5,
    )
    builder = partial(fcos_small, channels=16)
    assert model_builder(builder, BUILDERS) is builder


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("fcos_smal", "did you mean fcos_small"),
        ("fasterrcnn_resnet50", "did you mean fasterrcnn_resnet50_fpn"),
        ("?", r"model='\?' is not known; give a name of torchvision"),
        ("timm/resnet19", r"timm has no model 'resnet19'; close are .*resnet18"),
    ],
)
def test_unknown_model_is_refused_with_close_names(name: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build(model_builder(name, BUILDERS), None)


# -- weights by name -------------------------------------------------------------------------------------


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The state that replaces a download."""
    torch.manual_seed(1)
    state = mobilenet_v3_small(num_classes=1000).state_dict()
    monkeypatch.setattr(MobileNet_V3_Small_Weights, "get_state_dict", lambda *_, **__: state)
    return state


def test_named_weights_are_loaded_except_into_the_heads(downloaded: dict[str, Any]) -> None:
    for weights in ("DEFAULT", "IMAGENET1K_V1"):
        model = build(mobilenet_v3_small, weights)
        assert model.classifier[-1].out_features == 5
        features = {k.removeprefix("features."): v for k, v in downloaded.items() if k.startswith("features.")}
        assert_has_weights(model.features, features)


def test_without_weights_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: pytest.fail("a download"))
    builder = partial(models.get_model_builder("ssdlite320_mobilenet_v3_large"))
    assert build(builder, None, heads=no_heads).head.classification_head.num_columns == 5


@pytest.mark.parametrize("builder", [mobilenet_v3_small, partial(mobilenet_v3_small, dropout=0.1)])
def test_unknown_name_of_weights_is_refused_with_the_known_names(builder: Any) -> None:
    with pytest.raises(ValueError, match=r"weights='COCO_V1' is neither a file nor one of IMAGENET1K_V1, DEFAULT"):
        build(builder, "COCO_V1")


@pytest.mark.parametrize(
    ("model", "weights", "match"),
    [
        ("fcos_small", "DEFAULT", r"weights='DEFAULT' is a name, and fcos_small has no weights by name; give a file"),
        ("timm/test_vit", "IMAGENET1K_V1", r"timm names weights in the model's name"),
    ],
)
def test_names_of_weights_that_a_builder_does_not_have_are_refused(model: str, weights: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build(model_builder(model, BUILDERS), weights)


@pytest.mark.parametrize(
    "error", [URLError("no network"), RuntimeError('invalid hash value (expected "a", got "b")')], ids=["url", "hash"]
)
@pytest.mark.parametrize("builder", [mobilenet_v3_small, partial(mobilenet_v3_small, weights="DEFAULT")])
def test_failed_download_names_the_file_and_the_folder_to_copy_it_to(
    monkeypatch: pytest.MonkeyPatch, error: Exception, builder: Any
) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    folder = re.escape(str(Path(torch.hub.get_dir()) / "checkpoints"))
    file = r"copy \S+/mobilenet_v3_small-\w+\.pth"
    weights, num_classes = ("DEFAULT", 5) if builder is mobilenet_v3_small else (None, 1000)
    message = rf"could not be downloaded: .*{file} .*{folder} .*, or give the path of their file, or pass weights=None"
    with pytest.raises(OSError, match=message) as info:
        build(builder, weights, num_classes=num_classes)
    assert isinstance(info.value, LitLoaderError)  # so an app writes the setting as its own key


def test_builders_that_replace_heads_themselves_get_counts_with_weights_by_name() -> None:
    def with_points(*, num_classes: int, num_keypoints: int, weights: str | None = None) -> nn.Module:
        assert weights == "DEFAULT"
        return nn.Linear(num_classes, num_keypoints)

    counts = {"num_keypoints": 5}
    model = build_model(with_points, num_classes=3, weights="DEFAULT", replace_heads=no_heads, counts=counts)
    assert model.out_features == 5


def test_error_of_the_builder_is_not_reported_as_a_failed_download() -> None:
    def builder(*, num_classes: int = 3, weights: Any = None) -> nn.Module:
        raise RuntimeError("size mismatch for head.weight")

    with pytest.raises(RuntimeError, match="size mismatch"):
        build(builder, "DEFAULT")


# -- weights from a file ---------------------------------------------------------------------------------


def write_pth(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def write_safetensors(model: nn.Module, folder: Path) -> Path:
    from safetensors.torch import save_file

    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def write_reference(model: nn.Module, folder: Path) -> Path:
    """As torchvision's training scripts do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = argparse.Namespace(model="net", lr=0.1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": args, "epoch": 3}
    torch.save(state, folder / "reference.pth")
    return folder / "reference.pth"


def write_checkpoint(model: nn.Module, folder: Path) -> Path:
    running = trainer(folder, max_epochs=1)
    running.fit(ToyTask(lambda: model), loader(), loader())
    running.save_checkpoint(folder / "task.ckpt")
    return folder / "task.ckpt"


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*number of training batches .* is smaller than the logging interval")
@pytest.mark.parametrize("write", [write_pth, write_safetensors, write_reference, write_checkpoint])
def test_weights_of_every_kind_of_file_are_loaded(tmp_path: Path, write: Callable[[nn.Module, Path], Path]) -> None:
    source = Net()
    nn.init.uniform_(source.head.weight)
    path = write(source, tmp_path)
    model = build(lambda num_classes: Net(), str(path), heads=no_heads)
    assert_has_weights(model, source.state_dict())


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("wrap", [lambda content: content, lambda content: {"state_dict": {"model.w": content}}])
@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_hostile_file_is_refused_and_not_executed(tmp_path: Path, wrap: Any, save: Any) -> None:
    created_folder = tmp_path / "created"
    save(wrap(Evil(created_folder)), tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="is not a file of tensors"):
        load_weights(Net(), tmp_path / "weights.pth")
    assert not created_folder.exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".ckpt"])
@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"\x80\x02}q\x00."])
def test_file_without_tensors_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a file of tensors|holds no state dict"):
        load_weights(Net(), path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    message = r"nowhere\.pth' does not exist; give the path of a file, a name of weights, or none"
    with pytest.raises(FileNotFoundError, match=message):
        build(fcos_small, str(tmp_path / "nowhere.pth"))


def test_weights_of_another_architecture_are_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"do not fit a Net: 8 missing, such as .*; 2 unknown, such as 0\.bias"):
        load_weights(Net(), write_pth(nn.Sequential(nn.Linear(3, 8)), tmp_path))
    wide = Net()
    wide.head = nn.Linear(9, 2)
    with pytest.raises(ValueError, match=r"1 of another shape, such as head\.weight"):
        load_weights(Net(), write_pth(wide, tmp_path))


def test_heads_for_other_classes_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Net()
    source.head = nn.Linear(8, 7)
    nn.init.uniform_(source.body[0].weight)
    model = Net()
    initial_head = model.head.weight.clone()
    with caplog.at_level(logging.WARNING):
        load_weights(model, write_pth(source, tmp_path))
    assert "heads for other classes were left out: head.bias, head.weight" in caplog.text
    assert torch.equal(model.head.weight, initial_head)
    assert torch.equal(model.body[0].weight, source.body[0].weight)


# -- frozen batch normalisation --------------------------------------------------------------------------


def detector() -> nn.Module:
    return fcos_small(num_classes=3, channels=16, head_channels=32)


def test_state_without_counts_of_batches_freezes_the_batch_normalisation_of_a_detector(tmp_path: Path) -> None:
    source = detector()
    torch.save(without_counts(source), tmp_path / "frozen.pth")
    model = detector().eval()
    load_weights(model, tmp_path / "frozen.pth")
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d | FrozenBatchNorm2d)]
    assert {type(norm) for norm in norms} == {FrozenBatchNorm2d}
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(model.backbone(images), source.eval().backbone(images))


def test_state_with_counts_of_batches_leaves_batch_normalisation_trainable() -> None:
    model = detector()
    freeze_batch_norm(model, detector().state_dict())
    assert not any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())


def test_old_state_of_a_classifier_leaves_batch_normalisation_trainable(tmp_path: Path) -> None:
    torch.save(without_counts(Net()), tmp_path / "old.pth")
    model = Net()
    load_weights(model, tmp_path / "old.pth")
    assert type(model.body[1]) is nn.BatchNorm1d
