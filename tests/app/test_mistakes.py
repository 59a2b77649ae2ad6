"""Mistakes on the command line end in one line with the remedy."""

from __future__ import annotations

import pytest
import torch
from hydra.core.config_store import ConfigStore

from lit_loader.app.composition import compose_config
from lit_loader.app.running import config_errors
from lit_loader.errors import AnnotationError, LitLoaderError, SettingError
from tests.support.text_sets import write_image
from tests.support.voc_set import VocSet


def one_line(result):
    assert "Traceback" not in result.err
    (line,) = result.err.strip().splitlines()
    return line


@pytest.fixture
def voc(tmp_path):
    dataset = VocSet(tmp_path / "voc")
    dataset.add("a", ("cat", 1, 2, 30, 40))
    dataset.add("b", ("dog", 1, 2, 30, 40), image=None)
    for split in ("train", "val", "test"):
        dataset.split(split, "a\nb\n")
    return dataset


def test_error_in_the_data_names_the_key_that_solves_it(app, voc):
    words = ["dataset=voc", f"dataset.root={voc.root}", "workers=inline"]
    line = one_line(app("train", *words, code=1, small=False))
    assert line.startswith("error: ")
    assert "Annotations/b.xml: there is no image" in line
    assert "pass dataset.policy.missing_image=drop or keep" in line
    assert "policy={" not in line


def test_missing_file_names_the_keys_of_all_files(app, tmp_path):
    line = one_line(app("train", "dataset=coco", f"dataset.root={tmp_path}", code=1, small=False))
    assert "instances_train2017.json: cannot be read" in line
    assert "dataset.train=annotations/instances_train2017.json, dataset.val and dataset.test name files" in line


def test_missing_weights_file_names_its_node(app):
    line = one_line(app("train", "model.weights=other/retina.pth", code=1))
    assert "model: weights='other/retina.pth' does not exist; give the path of a file, a name of weights" in line


def test_failed_download_of_weights_names_the_override_without_them(app, monkeypatch):
    def download(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    builder = "{_target_: torchvision.models.mobilenet_v3_small, _partial_: true}"
    line = one_line(app("train", "model.weights=DEFAULT", f"model.model={builder}", code=1))
    assert "could not be downloaded: no network" in line
    assert line.partition(" (HYDRA_FULL_ERROR")[0].endswith(", or pass model.weights=null")


def test_missing_accelerator_is_reported_with_a_choice(app, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    line = one_line(app("train", "trainer=gpu", code=1))
    assert line.endswith("torch finds none here; choose trainer=cpu, or install torch for it")


def test_options_of_a_format_are_written_as_config_keys(app, tmp_path):
    write_image(tmp_path / "a.jpg")
    (tmp_path / "train.csv").write_text("path,label,fold\na.jpg,cat,1\n")
    words = ["dataset=files", "dataset.format=class_list", f"dataset.root={tmp_path}", "dataset.train=train.csv"]
    words += ["experiment=classification", "workers=inline", "dataset.options.separator=','"]
    line = one_line(app("train", *words, code=1, small=False))
    assert "and label_columns must name the labels; pass dataset.options.header=true" in line


@pytest.mark.parametrize(
    "dataset", [["image_folder"], ["files", "dataset.format=class_list", "dataset.train=train.txt"]]
)
def test_detector_is_refused_for_a_format_without_boxes(app, tmp_path, dataset):
    name, *words = dataset
    line = one_line(app("train", f"dataset={name}", *words, f"dataset.root={tmp_path / 'none'}", code=1, small=False))
    assert "a DetectionDataModule, which needs boxes; did you mean experiment=classification?" in line


def settings_error(**settings):
    return AnnotationError("no", settings=settings)


CSV = {"dataset": "csv", "overrides": ["datamodule=classification"]}
COCO = {"dataset": "coco"}
REFUSAL = SettingError("sample_unit", "object", "needs boxes", settings={"sample_unit": "image"})


@pytest.mark.parametrize(
    ("error", "config", "message"),
    [
        (settings_error(**{"policy.missing_image": ...}), CSV, "no; pass dataset.policy.missing_image=drop or keep"),
        (settings_error(header=True), CSV, "no; pass dataset.options.header=true"),
        (settings_error(separator=","), CSV, "no; pass dataset.options.separator=','"),
        (settings_error(class_names=...), CSV, "no; pass dataset.class_names=VALUE"),
        (
            settings_error(multi_label=True, cache=False),
            CSV,
            "no; pass datamodule.multi_label=true or datamodule.cache=false",
        ),
        (settings_error(flip_pairs=[[0, 1]]), CSV, "no; pass +datamodule.train_transforms.flip_pairs=[[0,1]]"),
        (settings_error(pin_memory=False), CSV, "no; pass workers.pin_memory=false"),
        (settings_error(num_workers=0), COCO, "no; pass dataset.num_workers=0"),  # processes that read annotations
        (settings_error(num_workers=0), {**COCO, "node": "datamodule"}, "no; pass workers.num_workers=0"),
        (settings_error(nothing=1), CSV, "no; pass nothing=1"),
        (settings_error(masks=False), COCO, "no; pass datamodule.masks=false"),  # also an option of the format
        (settings_error(test=None), COCO, "no; pass dataset.test=null"),  # also a key of the root
        (settings_error(aligned=True), COCO, "no; pass aligned=True"),  # an option of another format
        (REFUSAL, CSV, "datamodule.sample_unit=object needs boxes; pass datamodule.sample_unit=image"),
        (ValueError("give cache=False"), CSV, "give cache=False"),  # only looks like a setting
        (settings_error(format="csv"), {"dataset": "csv", "config_name": "predict"}, "no; pass dataset.format=csv"),
        (
            settings_error(format="csv"),
            {"dataset": "csv", "config_name": "predict", "node": "predict"},
            "no; pass predict.format=csv",
        ),
    ],
)
def test_advised_settings_are_written_as_overrides(error, config, message):
    overrides = [f"dataset={config['dataset']}", "dataset.root=x", *config.get("overrides", [])]
    cfg = compose_config(config_name=config.get("config_name", "train"), overrides=overrides)
    with pytest.raises((ValueError, LitLoaderError)) as caught, config_errors(cfg, node=config.get("node")):
        raise error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["datamodule=landmarks", "dataset=shapes"],
            "choose model=heatmaps_resnet18 or model=heatmaps_small or model=regression_resnet18",
        ),
        (["experiment=shapes", "ckpt_path=nope.ckpt"], "ckpt_path='nope.ckpt' does not exist in"),
        (
            ["experiment=shapes", "model=maskrcnn_resnet50_fpn_v2"],
            "model.masks=true, and datamodule.masks=false: targets would have no masks; pass datamodule.masks=true",
        ),
    ],
)
def test_other_mistakes_are_one_line(app, words, message):
    assert message in one_line(app("train", *words, code=1, small=False))


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_command_without_a_checkpoint_asks_for_one(app, command):
    assert "ckpt_path is missing; pass ckpt_path=FILE" in one_line(app(command, code=1))


def test_file_that_is_not_a_checkpoint_is_never_unpickled(app, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "hacked").encode() + b"'\ntR.")
    assert "a.ckpt' cannot be read as a checkpoint" in app("eval", f"ckpt_path={tmp_path}/a.ckpt", code=1).err
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("word", "extra", "place"),
    [
        ("logger=wandb", "wandb", "lightning.pytorch.loggers.wandb._WANDB_AVAILABLE"),
        ("logger=tensorboard", "tensorboard", "lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE"),
    ],
)
def test_missing_extra_of_a_logger_is_named(app, monkeypatch, word, extra, place):
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


def test_missing_sweeper_is_named(app, monkeypatch):
    app("train", "--help", small=False)  # Hydra has found its plugins
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["sweeper"], "optuna.yaml")
    assert "pip install 'lit-loader[optuna]'" in one_line(app("train", "hparams_search=optuna", code=1))


@pytest.mark.parametrize(
    "command", ["train", *(pytest.param(name, marks=pytest.mark.soak) for name in ("eval", "predict"))]
)
def test_help_lists_groups_experiments_and_examples(app, command):
    result = app(command, "--help", small=False)
    for part in (
        "class_balanced",
        "coco_fasterrcnn",
        "hparams_search: grid, optuna",
        f"  lit-loader {command} {'experiment' if command == 'train' else 'ckpt_path'}=",
    ):
        assert part in result.out
    assert "num_images" not in result.out
