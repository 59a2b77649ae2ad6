"""Mistakes on the command line end in one line that says what to write instead."""

from __future__ import annotations

import pytest
import torch
from hydra.core.config_store import ConfigStore

from lit_loader.app.composition import compose_config
from lit_loader.app.running import with_config_keys
from lit_loader.errors import LitLoaderError
from tests.formats.text_sets import write_image
from tests.voc_set import VocSet


def one_line(done):
    assert "Traceback" not in done.err
    (line,) = done.err.strip().splitlines()
    return line


@pytest.fixture
def voc(tmp_path):
    found = VocSet(tmp_path / "voc")
    found.add("a", ("cat", 1, 2, 30, 40))
    found.add("b", ("dog", 1, 2, 30, 40), image=None)
    for split in ("train", "val", "test"):
        found.split(split, "a\nb\n")
    return found


def test_an_error_in_the_data_names_the_key_that_settles_it(app, voc):
    words = ["dataset=voc", f"dataset.root={voc.root}", "workers=inline"]
    line = one_line(app("train", *words, code=1, small=False))
    assert line.startswith("error: ")
    assert "Annotations/b.xml: there is no image" in line
    assert "choose dataset.policy.missing_image=drop or keep" in line
    assert "ReadPolicy" not in line


def test_a_file_that_is_not_there_names_the_keys_of_all_files(app, tmp_path):
    line = one_line(app("train", "dataset=coco", f"dataset.root={tmp_path}", code=1, small=False))
    assert "instances_train2017.json: cannot be read" in line
    assert (
        "dataset.train=annotations/instances_train2017.json, dataset.val and dataset.test name what is read"
        in line
    )


def test_weights_that_are_not_known_name_their_key(app):
    line = one_line(app("train", "model.weights=other/retina.pth", code=1))
    assert "model: weights='other/retina.pth' does not exist; give model.weights=PATH" in line
    assert "or model.weights=null" in line


def test_an_accelerator_that_is_not_there_is_named_with_what_to_choose(app, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    line = one_line(app("train", "trainer=gpu", code=1))
    assert line.endswith("torch finds none here; choose trainer=cpu, or a build of torch for it")


def test_a_traceback_comes_on_request(app, voc, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(LitLoaderError, match="missing_image"):
        app("train", "dataset=voc", f"dataset.root={voc.root}", small=False)


def test_options_of_a_format_are_named_as_keys_of_the_config(app, tmp_path):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "train.csv").write_text("path,label,fold\na.jpg,cat,1\n")
    words = [
        "dataset=files",
        "dataset.format=class_list",
        f"dataset.root={tmp_path}",
        "dataset.train=train.csv",
        "experiment=classification",
    ]
    words += ["workers=inline", "dataset.options.image_dir=."]
    line = one_line(app("train", *words, "dataset.options.separator=','", code=1, small=False))
    assert "pass dataset.options.header=true, and label_columns" in line


CSV = ["dataset=csv", "dataset.root=x"]


@pytest.mark.parametrize(
    "dataset", [["image_folder"], ["files", "dataset.format=class_list", "dataset.train=train.txt"]]
)
def test_a_detector_is_refused_for_a_format_without_boxes(app, tmp_path, dataset):
    name, *words = dataset
    line = one_line(
        app("train", f"dataset={name}", *words, f"dataset.root={tmp_path / 'none'}", code=1, small=False)
    )
    assert "a DetectionDataModule, which needs boxes; did you mean experiment=classification?" in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("choose ReadPolicy(missing_image=...)", "choose dataset.policy.missing_image=drop or keep"),
        ("pass header=True", "pass dataset.options.header=true"),
        ("give class_names=[...]", "give dataset.class_names=[...]"),
        ("give sample_unit='image'", "give datamodule.sample_unit=image"),
        ("or give cache=False", "or give datamodule.cache=false"),
        ("give flip_pairs=[[0, 1], ...]", "give +datamodule.train_transforms.flip_pairs=[[0, 1], ...]"),
        ("give pin_memory=False", "give workers.pin_memory=false"),
        ("hflip=2 must be in [0, 1]", "hflip=2 must be in [0, 1]"),
        ("give nothing=1", "give nothing=1"),
        ("choose model=fcos_small", "choose model=fcos_small"),
    ],
)
def test_arguments_become_keys(text, told):
    assert with_config_keys(text, compose_config(overrides=[*CSV, "datamodule=classification"])) == told


def test_source_lines_of_a_workers_traceback_stay_as_they_are():
    cfg = compose_config(overrides=[*CSV, "datamodule=classification"])
    frame = '  File "a.py", line 3, in read\n    raise ValueError("give cache=False")\n'
    text = f"Caught ValueError in a worker.\nOriginal Traceback (most recent call last):\n{frame}ValueError: "
    message = with_config_keys(f"{text}give cache=False", cfg)
    assert message == f"{text}give datamodule.cache=false"


def test_settings_of_a_node_are_looked_for_in_it_first():
    cfg = compose_config(config_name="predict", overrides=CSV)
    assert with_config_keys("give format='csv'", cfg) == "give dataset.format=csv"
    assert with_config_keys("give format='csv'", cfg, "predict") == "give predict.format=csv"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["datamodule=landmarks", "dataset=shapes"],
            "choose model=heatmaps_resnet18 or model=heatmaps_small",
        ),
        (["experiment=shapes", "ckpt_path=nope.ckpt"], "ckpt_path='nope.ckpt' does not exist in"),
        (
            ["experiment=shapes", "model=maskrcnn_resnet50_fpn_v2"],
            "model.masks=true, and datamodule.masks=false: targets would have no masks; give datamodule.masks=true",
        ),
        (["experiment=shapes", "datamodule.batchsize=4"], "did you mean datamodule.batch_size?"),
    ],
)
def test_other_mistakes_are_one_line_too(app, words, told):
    assert told in one_line(app("train", *words, code=1, small=False))


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_a_command_without_a_checkpoint_asks_for_one(app, command):
    assert "ckpt_path is missing; pass ckpt_path=FILE" in one_line(app(command, code=1))


def test_a_file_that_is_no_checkpoint_is_never_unpickled(app, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "hacked").encode() + b"'\ntR."
    )
    assert "a.ckpt' cannot be read as a checkpoint" in app("eval", f"ckpt_path={tmp_path}/a.ckpt", code=1).err
    assert not (tmp_path / "hacked").exists()


def test_a_group_that_must_be_chosen_lists_its_options(app):
    assert "dataset=<OPTION>" in app("train", code=1, small=False).err


@pytest.mark.parametrize(
    ("word", "extra", "place"),
    [
        ("logger=wandb", "wandb", "lightning.pytorch.loggers.wandb._WANDB_AVAILABLE"),
        ("logger=tensorboard", "tensorboard", "lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE"),
    ],
)
def test_an_absent_extra_of_a_logger_is_named(app, monkeypatch, word, extra, place):
    class Absent:
        def __bool__(self):
            return False

        def __str__(self):
            return f"Requirement '{extra}' not met"

    monkeypatch.setattr(place, Absent())
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", Absent())
    line = app("train", word, code=1).err.splitlines()[-1]
    assert f"pip install 'lit-loader[{extra}]'" in line
    assert ":;" not in line


def test_an_absent_sweeper_is_named(app, monkeypatch):
    app("train", "--help", small=False)  # Hydra has found its plugins
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["sweeper"], "optuna.yaml")
    assert "pip install 'lit-loader[optuna]'" in one_line(app("train", "hparams_search=optuna", code=1))


@pytest.mark.parametrize("command", ["train", "eval", "predict"])
def test_help_lists_groups_experiments_and_examples(app, command):
    done = app(command, "--help", small=False)
    for part in (
        "class_balanced",
        "coco_fasterrcnn",
        "hparams_search: grid, optuna",
        f"  lit-loader {command} {'experiment' if command == 'train' else 'ckpt_path'}=",
    ):
        assert part in done.out
    assert "num_images" not in done.out
