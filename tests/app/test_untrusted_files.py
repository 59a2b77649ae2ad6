"""Foreign checkpoints, datasets and run folders are data: nothing in them is run or looked up."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule
from lightning.pytorch.core.saving import load_hparams_from_yaml
from omegaconf import OmegaConf

from lit_loader.annotations.formats import write_annotations
from lit_loader.app.building import _build_model
from tests.support.drawn_set import draw_set
from tests.support.made_sets import WITHOUT_POINTS
from tests.support.small_app import SMALL, run_app
from tests.support.text_sets import write_image
from tests.support.voc_set import VocSet

MODEL = [word for word in SMALL if word.startswith(("model", "trainer", "~", "+"))]


class _Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def marker(tmp_path):
    """A folder that exists if code of a file has run."""
    folder = tmp_path / "code has run"
    yield folder
    assert not folder.exists(), "code of a file has run"


@pytest.fixture
def evil(tmp_path, marker):
    """A pickle that would make the marker; a probe shows that such a pickle works."""
    path = tmp_path / "evil.pt"
    probe = tmp_path / "probe"
    pickle.loads(pickle.dumps(_Payload(probe)))
    assert probe.is_dir()
    torch.save(_Payload(marker), path)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The content of a checkpoint of the small scenes."""
    folder = tmp_path_factory.mktemp("run")
    result = run_app(folder, "train", *SMALL, f"hydra.run.dir={folder}", "logger=none", "test=false")
    assert result.code == 0, result.err
    return torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)


@pytest.mark.filterwarnings("ignore:Total length of `list`")
@pytest.mark.parametrize("command", ["eval", "predict"])
def test_hyperparameters_of_a_checkpoint_are_plain_arguments(app, checkpoint, evil, tmp_path, command):
    code = [{"_target_": "torch.load", "f": str(evil), "weights_only": False}]
    path = tmp_path / "foreign.ckpt"
    torch.save(checkpoint | {"hyper_parameters": checkpoint["hyper_parameters"] | {"freeze": code}}, path)
    result = app(command, f"ckpt_path={path}", code=1)
    assert "error in the config: model: " in result.err
    assert "Traceback" not in result.err


def test_hyperparameters_choose_no_compiler_and_no_weights(app, checkpoint, tmp_path):
    names = {"compile": {"backend": "no_such_backend"}, "weights": "no_such_file.pt", "optimizer": "none"}
    path = tmp_path / "foreign.ckpt"
    torch.save(checkpoint | {"hyper_parameters": checkpoint["hyper_parameters"] | names}, path)
    app("eval", f"ckpt_path={path}")


def evil_name(evil):
    return "${oc.create:${oc.decode:'{_target_: torch.load, f: \"" + str(evil) + "\", weights_only: false}'}}"


def names_of(evil):
    return [evil_name(evil), "${oc.env:LIT_LOADER_SECRET}", "a${b", "[/red]", "\x1b[2J"]


def write_coco(root, names):
    """Write a COCO set with one image and one object for each class name."""
    labels = list(range(len(names)))
    table = draw_set(root, num_images=len(names), objects=1, class_names=names, labels=labels, **WITHOUT_POINTS)
    write_annotations("coco", table, root, "all.json", allow_loss=True)


@pytest.mark.filterwarnings("ignore:Total length of `list`")
def test_class_names_of_a_data_set_are_text_from_training_to_the_logs(app, evil, tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_LOADER_SECRET", "the secret")
    names = names_of(evil)
    write_coco(tmp_path / "coco", names)
    words = [
        *("dataset=coco", f"dataset.root={tmp_path}/coco", "dataset.options.image_dir=."),
        *(f"dataset.{split}=all.json" for split in ("train", "val", "test")),
        *("model=fcos_small", "workers=inline", "datamodule.batch_size=2"),
    ]
    result = app("train", *words, *MODEL, small=False)
    saved = torch.load(result.folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert sorted(saved["hyper_parameters"]["class_names"]) == sorted(names)
    (hparams,) = result.folder.rglob("hparams.yaml")
    assert sorted(load_hparams_from_yaml(hparams).class_names) == sorted(names)
    written = b"".join(path.read_bytes() for path in result.folder.rglob("*") if path.is_file())
    assert b"the secret" not in written
    assert "\x1b[2J" not in result.out + result.err
    assert "\\x1b[2J" in result.out
    assert "[/red]" in result.out


@pytest.mark.filterwarnings("ignore:Total length of `list`")
def test_class_names_of_voc_are_text(app, evil, tmp_path):
    voc = VocSet(tmp_path / "voc")
    voc.add("a", ("${oc.env:HOME}", 1, 2, 30, 40))
    voc.split("train", "a\n")
    write_image(voc.root / "JPEGImages" / "a.jpg", (48, 48))
    words = ["dataset=voc", f"dataset.root={voc.root}", "dataset.val=null", "dataset.test=null", "test=false"]
    words += ["model=fcos_small", "workers=inline", "trainer.limit_train_batches=1", "logger=none"]
    result = app("train", *words, *MODEL, "callbacks.model_checkpoint=null", small=False)
    saved = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["class_names"] == ["${oc.env:HOME}"]


@pytest.mark.parametrize(
    "word",
    [
        "hydra.searchpath=[file://{folder}/conf]",
        "--config-dir={folder}/conf",
        "model=../../../../../../../../../..{folder}/conf/evil",
        "hydra.run.dir={folder}/code has run",
        "+model.a={{_tar${{oc.decode:get}}_: os.mkdir, _args_: ['{marker}']}}",
        "+model.a=${{oc.create:{{_target_: os.mkdir}}}}",
        "++dataset.sources={{a: {{_target_: os.mkdir, _args_: ['{marker}']}}}}",
        "++dataset.sources.a={{b: [{{_target_: os.mkdir, _args_: ['{marker}']}}]}}",
        "++dataset.sources.a._target_=os.mkdir",
        "++task_name='../../../code has run'",
    ],
)
def test_stored_overrides_run_no_code_and_write_nowhere_else(tmp_path, marker, word):
    run = tmp_path / "work" / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.ckpt").touch()
    (run / ".hydra").mkdir()
    stored = word.format(folder=tmp_path, marker=marker)
    (run / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([*SMALL, stored]))
    (tmp_path / "conf").mkdir()
    code = {"_target_": "os.mkdir", "_args_": [str(marker)]}
    (tmp_path / "conf" / "evil.yaml").write_text(yaml.safe_dump(code))
    entries = sorted(tmp_path.iterdir())
    result = run_app(tmp_path / "work", "eval", "ckpt_path=run/checkpoints/best.ckpt")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("error in the config: ")
    assert sorted(tmp_path.iterdir()) == entries


@pytest.mark.soak  # its imports take seconds; the tests above and below run the same command in this process
def test_the_installed_command_runs_no_code_of_a_checkpoint(checkpoint, evil, tmp_path):
    code = [{"_target_": "torch.load", "f": str(evil), "weights_only": False}]
    torch.save(
        checkpoint | {"hyper_parameters": checkpoint["hyper_parameters"] | {"freeze": code}}, tmp_path / "a.ckpt"
    )
    command = [Path(sys.executable).with_name("lit-loader"), "eval", *SMALL, "ckpt_path=a.ckpt"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1, result.stderr
    assert "error in the config: model: " in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a checkpoint"),
        (b"PK\x03\x04" + bytes(100), "cannot be read as a checkpoint"),
        ({"layer.weight": torch.zeros(2)}, r"is not a Lightning checkpoint: .* pass model\.weights="),
        ({"state_dict": {}, "epoch": 1, "global_step": 2, "loops": {}}, "holds only weights, without optimizer_states"),
        ([1, 2], "is not a Lightning checkpoint"),
    ],
)
def test_training_from_a_file_without_a_checkpoint_is_one_line(app, tmp_path, content, message):
    path = tmp_path / "a.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    result = app("train", f"ckpt_path={path}", code=1)
    (line,) = result.err.strip().splitlines()
    assert line.startswith("error in the config: ckpt_path=")
    assert re.search(message, line)


class Recorder(LightningModule):
    """Model that records its arguments."""

    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments


KEYS = st.sampled_from(["_target_", "_partial_", "_args_", "_recursive_", "_convert_", "f", "a.b", "${a}"])
TEXTS = st.sampled_from(
    ["torch.load", "os.mkdir", "${counted:1}", "${oc.env:HOME}", "\\${counted:1}", "${", "???", "${oc.create:${a}}"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
_events: list[str] | None = None
_is_hooked = False


def _watch_imports():
    """Collect the names of modules that are imported while `_events` is a list; an audit hook stays for good."""
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(
            lambda event, args: _events.append(str(args[0])) if event == "import" and _events is not None else None
        )
        _is_hooked = True


@given(st.dictionaries(st.sampled_from(["class_names", "freeze", "names"]), VALUES, min_size=1))
def test_no_value_of_a_file_is_instantiated_or_looked_up(arguments):
    global _events
    calls = []
    OmegaConf.register_new_resolver("counted", lambda *values: calls.append(values), replace=True)
    cfg = OmegaConf.create({"model": {"_target_": f"{__name__}.Recorder"}})
    _watch_imports()
    _build_model(cfg, {})  # do its imports before they are watched
    _events = []
    try:
        model = _build_model(cfg, arguments)
        imports = list(_events)
    finally:
        _events = None
        OmegaConf.clear_resolver("counted")
    assert model.arguments == arguments
    assert calls == []
    assert [name for name in imports if not name.startswith(("tests", "lit_loader", "hydra"))] == []
