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

from lit_loader.recipes import fcos_small
from lit_loader.recipes.weights import build_model, freeze_batch_norm, load_weights, model_builder
from tests.support.toy_task import Net, ToyTask, loader, trainer

OWN = {"fcos_small": fcos_small}


def no_heads(model: nn.Module, num_classes: int) -> None:
    raise AssertionError("heads of random weights are replaced")


def new_classifier(model: nn.Module, num_classes: int) -> None:
    model.classifier[-1] = nn.Linear(model.classifier[-1].in_features, num_classes)


def build(builder: Any, weights: Any, *, num_classes: int = 5, heads: Any = new_classifier) -> nn.Module:
    return build_model(builder, num_classes=num_classes, weights=weights, replace_heads=heads)


def same(model: nn.Module, state: dict[str, Any]) -> bool:
    return all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


# -- models ----------------------------------------------------------------------------------------------


def test_models_are_found_by_name_here_in_torchvision_and_in_timm() -> None:
    assert model_builder("fcos_small", OWN) is fcos_small
    assert model_builder("mobilenet_v3_small", OWN) is mobilenet_v3_small
    assert build(model_builder("timm/test_vit", OWN), None, heads=no_heads)(torch.rand(1, 3, 160, 160)).shape == (1, 5)
    builder = partial(fcos_small, channels=16)
    assert model_builder(builder, OWN) is builder


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("fcos_smal", "did you mean fcos_small"),
        ("fasterrcnn_resnet50", "did you mean fasterrcnn_resnet50_fpn"),
        ("?", r"model='\?' is not known; give a name of torchvision"),
    ],
)
def test_an_unknown_model_is_refused_with_close_names(name: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        model_builder(name, OWN)


def test_an_unknown_model_of_timm_is_refused_with_close_names() -> None:
    with pytest.raises(ValueError, match=r"timm has no model 'resnet19'; close are .*resnet18"):
        build(model_builder("timm/resnet19", OWN), None)


# -- weights by name -------------------------------------------------------------------------------------


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The state that a download would bring."""
    torch.manual_seed(1)
    state = mobilenet_v3_small(num_classes=1000).state_dict()
    monkeypatch.setattr(MobileNet_V3_Small_Weights, "get_state_dict", lambda *_, **__: state)
    return state


def test_weights_by_name_keep_all_but_the_heads(downloaded: dict[str, Any]) -> None:
    for weights in ("DEFAULT", "IMAGENET1K_V1"):
        model = build(mobilenet_v3_small, weights)
        assert model.classifier[-1].out_features == 5
        assert same(model.features, {k[9:]: v for k, v in downloaded.items() if k.startswith("features.")})


def test_without_weights_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    monkeypatch.setattr(models._api, "load_state_dict_from_url", download)
    builder = partial(models.get_model_builder("ssdlite320_mobilenet_v3_large"))
    assert build(builder, None, heads=no_heads).head.classification_head.num_columns == 5


@pytest.mark.parametrize("builder", [mobilenet_v3_small, partial(mobilenet_v3_small, dropout=0.1)])
def test_an_unknown_name_of_weights_is_refused_with_those_there_are(builder: Any) -> None:
    with pytest.raises(ValueError, match=r"weights='COCO_V1' is neither a file nor one of IMAGENET1K_V1, DEFAULT"):
        build(builder, "COCO_V1")


def test_a_builder_without_weights_refuses_names() -> None:
    with pytest.raises(
        ValueError, match=r"weights='DEFAULT' is a name, and fcos_small has no weights by name; give a file"
    ):
        build(fcos_small, "DEFAULT")


def test_timm_has_one_name_of_weights() -> None:
    with pytest.raises(ValueError, match=r"timm names weights in the model's name"):
        build(model_builder("timm/test_vit", OWN), "IMAGENET1K_V1")


@pytest.mark.parametrize(
    "error", [URLError("no network"), RuntimeError('invalid hash value (expected "a", got "b")')], ids=["url", "hash"]
)
@pytest.mark.parametrize("builder", [mobilenet_v3_small, partial(mobilenet_v3_small, weights="DEFAULT")])
def test_a_failed_download_names_the_folder_for_weights_and_what_else_to_give(
    monkeypatch: pytest.MonkeyPatch, error: Exception, builder: Any
) -> None:
    def download(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(models._api, "load_state_dict_from_url", download)
    folder = re.escape(str(Path(torch.hub.get_dir()) / "checkpoints"))
    file = r"copy \S+/mobilenet_v3_small-\w+\.pth"
    weights, classes = ("DEFAULT", 5) if builder is mobilenet_v3_small else (None, 1000)
    with pytest.raises(
        OSError, match=rf"could not be downloaded: .*{file} .*{folder} .*, or give the path of their file"
    ):
        build(builder, weights, num_classes=classes)


def test_an_error_of_the_builder_itself_is_not_taken_for_a_failed_download() -> None:
    def builder(*, num_classes: int = 3, weights: Any = None) -> nn.Module:
        raise RuntimeError("size mismatch for head.weight")

    with pytest.raises(RuntimeError, match="size mismatch"):
        build(builder, "DEFAULT")


# -- weights from a file ---------------------------------------------------------------------------------


def write_pth(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path.with_suffix(".pth"))
    return path.with_suffix(".pth")


def write_safetensors(model: nn.Module, path: Path) -> Path:
    from safetensors.torch import save_file

    save_file(model.state_dict(), path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def write_reference(model: nn.Module, path: Path) -> Path:
    """As torchvision's training scripts do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args = argparse.Namespace(model="net", lr=0.1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": args, "epoch": 3}
    torch.save(state, path.with_suffix(".pth"))
    return path.with_suffix(".pth")


def write_checkpoint(model: nn.Module, path: Path) -> Path:
    task = ToyTask(lambda: model)
    running = trainer(path.parent, max_epochs=1)
    running.fit(task, loader(), loader())
    running.save_checkpoint(path.with_suffix(".ckpt"))
    return path.with_suffix(".ckpt")


FILES = [write_pth, write_safetensors, write_reference, write_checkpoint]


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*number of training batches .* is smaller than the logging interval")
@pytest.mark.parametrize("write", FILES)
def test_every_kind_of_file_gives_its_weights(tmp_path: Path, write: Callable[[nn.Module, Path], Path]) -> None:
    source = Net()
    nn.init.uniform_(source.head.weight)
    path = write(source, tmp_path / "weights")
    model = build(lambda num_classes: Net(), str(path), heads=no_heads)
    assert same(model, source.state_dict())


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: {"state_dict": {"model.w": each}}])
def test_a_hostile_file_is_refused_and_not_run(tmp_path: Path, wrap: Any) -> None:
    target, path = tmp_path / "made", tmp_path / "weights.pth"
    torch.save(wrap(Evil(target)), path)
    with pytest.raises(ValueError, match="is not a file of tensors"):
        load_weights(Net(), path)
    path.write_bytes(pickle.dumps(wrap(Evil(target))))
    with pytest.raises(ValueError, match="is not a file of tensors"):
        load_weights(Net(), path)
    assert not target.exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".ckpt"])
@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"\x80\x02}q\x00."])
def test_a_file_of_something_else_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a file of tensors|holds no state dict"):
        load_weights(Net(), path)


def test_an_absent_file_is_refused_with_what_else_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"nowhere\.pth' does not exist; give the path of a file, a name of weights, or none"
    ):
        build(fcos_small, str(tmp_path / "nowhere.pth"))


def test_weights_of_another_architecture_are_refused_with_the_names_that_differ(tmp_path: Path) -> None:
    path = write_pth(nn.Sequential(nn.Linear(3, 8)), tmp_path / "other")
    with pytest.raises(ValueError, match=r"do not fit a Net: 8 missing, such as .*; 2 unknown, such as 0\.bias"):
        load_weights(Net(), path)
    wide = Net()
    wide.head = nn.Linear(9, 2)
    with pytest.raises(ValueError, match=r"1 of another shape, such as head\.weight"):
        load_weights(Net(), write_pth(wide, tmp_path / "wide"))


def test_heads_for_other_classes_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, model = Net(), Net()
    source.head = nn.Linear(8, 7)
    nn.init.uniform_(source.body[0].weight)
    before = model.head.weight.clone()
    with caplog.at_level(logging.WARNING):
        load_weights(model, write_pth(source, tmp_path / "seven"))
    assert "heads for other classes were left out: head.bias, head.weight" in caplog.text
    assert torch.equal(model.head.weight, before)
    assert torch.equal(model.body[0].weight, source.body[0].weight)


# -- frozen batch normalisation --------------------------------------------------------------------------


def detector() -> nn.Module:
    return fcos_small(num_classes=3, channels=16, head_channels=32)


def test_a_detectors_file_without_counts_of_batches_freezes_its_batch_normalisation(tmp_path: Path) -> None:
    source = detector()
    state = {name: each for name, each in source.state_dict().items() if "num_batches" not in name}
    assert len(state) < len(source.state_dict())
    torch.save(state, tmp_path / "frozen.pth")
    model = detector().eval()
    load_weights(model, tmp_path / "frozen.pth")
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d | FrozenBatchNorm2d)]
    assert {type(each) for each in norms} == {FrozenBatchNorm2d}
    images = [torch.rand(3, 64, 64)]
    ours, theirs = (each.backbone(torch.stack(images)) for each in (model, source.eval()))
    torch.testing.assert_close(ours, theirs)


def test_a_trained_batch_normalisation_stays_one() -> None:
    model = detector()
    freeze_batch_norm(model, detector().state_dict())
    assert not any(isinstance(each, FrozenBatchNorm2d) for each in model.modules())


def test_an_old_classifier_without_counts_loads_with_its_batch_normalisation_trained(tmp_path: Path) -> None:
    state = {name: each for name, each in Net().state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "old.pth")
    model = Net()
    load_weights(model, tmp_path / "old.pth")
    assert type(model.body[1]) is nn.BatchNorm1d
