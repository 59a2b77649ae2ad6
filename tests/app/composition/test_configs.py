"""The shipped configs compose, fit the signatures of their targets, and build them."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from pydoc import locate

import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from omegaconf import OmegaConf

from lit_loader.app.composition import ConfigError, build_datamodule, validate
from lit_loader.foundation.signatures import signature_of
from lit_loader.images import MAX_PIXELS
from lit_loader.samplers import GroupedSampler
from lit_loader.transforms import CopyPaste, Mosaic
from tests.support.drawn_set import draw_set
from tests.support.shipped_configs import CONF, DRAWN, EXPERIMENTS, OPTIONS, composed_once, option_configs

EVERY_OPTION = [(group, option) for group, options in OPTIONS.items() for option in options]
GROUPS_OF_NODES = ("callbacks", "logger", "mixing")
GROUPS_WITHOUT_TARGET = ("extras", "paths")
NAMES_FROM_DATA = {
    "ClassificationTask": {"class_names": ["a"]},
    "DetectionTask": {"class_names": ["a"]},
    "KeypointTask": {"class_names": ["a", "b"], "keypoint_names": ["x", "y"]},
    "LandmarkTask": {"keypoint_names": ["p"]},
    "MultiTask": {"class_names": ["a"], "keypoint_names": ["p"]},
}


def options_of(*groups):
    return [(group, option) for group, option in EVERY_OPTION if group in groups]


def node_of(group, option):
    return option_configs()[group, option][group]


def nodes_with_target(group, option):
    cfg = option_configs()[group, option]
    if group in GROUPS_OF_NODES:
        return list((cfg.get(group) or {}).values())
    return [] if group in GROUPS_WITHOUT_TARGET else [cfg[group]]


@pytest.mark.parametrize(("group", "option"), EVERY_OPTION)
def test_every_option_composes_and_fits_its_target(group, option):
    validate(option_configs()[group, option])
    for node in nodes_with_target(group, option):
        assert signature_of(node["_target_"]) is not None, f"{node['_target_']} cannot be imported"


@pytest.mark.parametrize(("group", "option"), options_of(*set(OPTIONS) - {"model", "trainer"}))
def test_every_option_builds_its_target(group, option, run_folder):
    for node in nodes_with_target(group, option):
        metric = {"monitor": "val/map", "mode": "max"} if node.get("monitor") == "auto" else {}
        # Each task takes some options of the group.
        mixing = {"mixing": None} if group == "datamodule" else {}
        built = instantiate(node, **metric, **mixing, _convert_="all")
        assert type(built).__name__ == node["_target_"].rpartition(".")[2]


@pytest.mark.parametrize("option", OPTIONS["trainer"])
def test_every_trainer_is_built(option, run_folder):
    on_cpu = {} if option in ("default", "cpu") else {"accelerator": "cpu", "precision": "32-true"}
    trainer = instantiate(node_of("trainer", option), **on_cpu, devices=1, logger=False)
    assert isinstance(trainer, Trainer)
    assert trainer.default_root_dir == str(run_folder / "run")


# tests/recipes/test_hub_detectors.py builds smaller detectors of transformers and RF-DETR.
@pytest.mark.parametrize("option", sorted({*OPTIONS["model"]} - {"transformers", "rfdetr"}))
def test_every_model_is_built_without_a_download(option):
    node = node_of("model", option)
    task = node["_target_"].rpartition(".")[2]
    model = instantiate(node, weights=None, **NAMES_FROM_DATA[task], _convert_="all")
    assert type(model).__name__ == task
    assert model.configure_optimizers()


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """The current folder of a run, with the settings that Hydra makes for the run."""
    cfg = composed_once(hydra=True).copy()
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.output_dir = str(tmp_path / "run")
    cfg.hydra.runtime.cwd = str(tmp_path)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return tmp_path


def test_paths_are_in_the_current_folder_and_in_the_folder_of_the_run(run_folder):
    paths = OmegaConf.to_container(composed_once(), resolve=True)["paths"]
    assert paths == {
        "root_dir": ".",
        "data_dir": "./data",
        "log_dir": "./logs",
        "output_dir": str(run_folder / "run"),
        "work_dir": str(run_folder),
    }
    hydra = HydraConfig.get()
    assert Path(hydra.run.dir).parent == Path("logs/train/runs")
    assert Path(hydra.sweep.dir).parent == Path("logs/train/multiruns")
    assert hydra.job_logging.handlers.file.filename == str(run_folder / "run/train.log")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_fits(name):
    words = [] if name in DRAWN else ["dataset.root=/x"]
    words += ["dataset=voc"] if name in ("classification", "landmarks", "unified") else []
    cfg = composed_once(f"experiment={name}", *words)
    validate(cfg)
    assert cfg.tags != ["dev"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("debug/*.yaml")))
def test_every_debug_config_runs_in_one_process_without_callbacks_and_loggers(name):
    cfg = composed_once("experiment=coco_fasterrcnn", "dataset.root=/x", f"debug={name}")
    validate(cfg)
    assert not cfg.callbacks
    assert not cfg.logger
    assert cfg.task_name == "debug"
    assert (cfg.trainer.accelerator, cfg.trainer.devices) == ("cpu", 1)
    assert cfg.workers.num_workers == (2 if name == "profiler" else 0)
    default = OmegaConf.to_container(composed_once().trainer, resolve=False)
    trainer = OmegaConf.to_container(cfg.trainer, resolve=False)
    changed = {key for key, value in trainer.items() if value != default[key]}
    expected = {"fdr": {"fast_dev_run"}, "overfit": {"overfit_batches"}, "profiler": {"profiler"}}
    expected["limit"] = {f"limit_{stage}_batches" for stage in ("train", "val", "test")}
    assert changed >= expected.get(name, {"detect_anomaly"})


@pytest.mark.filterwarnings("ignore:The ``declarative_base:DeprecationWarning")  # optuna 2 with sqlalchemy 2
@pytest.mark.parametrize(("name", "sweeper"), [("grid", "BasicSweeper"), ("optuna", "OptunaSweeper")])
def test_every_search_sweeps_over_existing_keys(name, sweeper):
    cfg = composed_once(f"hparams_search={name}", hydra=True)
    assert cfg.hydra.mode.name == "MULTIRUN"
    assert cfg.hydra.sweeper._target_.rpartition(".")[2] == sweeper
    for key in cfg.hydra.sweeper.params:
        assert isinstance(OmegaConf.select(cfg, key), float)
    if name == "optuna":
        sampler = instantiate(cfg.hydra.sweeper.sampler)
        assert (type(sampler).__name__, cfg.hydra.sweeper.sampler.seed) == ("TPESampler", 0)


def test_callbacks_and_loggers_combine_by_name():
    cfg = composed_once("callbacks=[default,early_stopping,ema]", "logger=[csv,tensorboard]")
    assert list(cfg.callbacks) == [*composed_once().callbacks, "early_stopping", "ema"]
    assert list(cfg.logger) == ["csv", "tensorboard"]


def test_samplers_and_batchings_combine_with_any_workers(tmp_path):
    table = draw_set(tmp_path, num_images=24, widths=[40, 30, 30] * 8, heights=[30, 40, 30] * 8)
    table = replace(table, shards=np.arange(24) // 3)
    combinations = zip(product(OPTIONS["sampler"], OPTIONS["batching"]), cycle(OPTIONS["workers"]), strict=False)
    for (sampler, batching), workers in combinations:
        options = {"sampler": sampler, "batching": batching, "workers": workers}
        nodes = {group: node_of(group, option) for group, option in options.items()}
        cfg = composed_once("trainer.devices=2").copy()
        cfg.update(nodes)
        validate(cfg)
        if sampler == "block_shuffle" and batching != "plain":
            with pytest.raises(ConfigError, match="would spread the blocks of sampler=block_shuffle"):
                build_datamodule(cfg)
            continue
        datamodule = build_datamodule(cfg)
        assert datamodule.num_workers == cfg.workers.num_workers
        ungrouped = instantiate(cfg.sampler).make_sampler(table)
        grouped = instantiate(cfg.batching).batched(ungrouped, table)
        assert isinstance(grouped, GroupedSampler) == (batching != "plain")
        order = grouped.batch_order(seed=0, epoch=0, global_batch=4)
        assert len(order) == len(ungrouped)
        shapes = order[0 : len(order) // 4 * 4].reshape(-1, 4) % 3
        num_uniform = int((shapes == shapes[:, :1]).all(axis=1).sum())
        assert batching == "plain" or num_uniform >= len(shapes) - 3  # the remainders of three shapes are mixed


def test_mixes_combine_by_name_in_the_order_of_the_command():
    schedule = "mixing.mosaic.p={epochs: [0, 85], value: 0.5}"
    cfg = composed_once("mixing=[copy_paste,mosaic]", schedule, "mixing.copy_paste.num_objects={points: {0: 4, 10: 1}}")
    validate(cfg)
    paste, mosaic = build_datamodule(cfg).mixing
    assert (type(paste), type(mosaic)) == (CopyPaste, Mosaic)
    assert [mosaic.chance(epoch) for epoch in (0, 84, 85)] == [0.5, 0.5, 0]
    assert [paste.num_partners(epoch) for epoch in (0, 5, 10)] == [4, 2, 1]


@pytest.mark.parametrize("words", [[], ["mixing=none"], ["mixing=mosaic", "mixing.mosaic=null"]])
def test_mixing_is_off_by_default_and_with_none(words):
    assert build_datamodule(composed_once(*words)).mixing == ()


def keys_of(node):
    return {str(key) for key in node} - {"_target_", "_partial_"}


# A task passes its preset; num_workers is a key of the group `workers`.
NOT_IN_CONFIGS = {"datamodule": {"preset", "num_workers"}}


@pytest.mark.parametrize(("group", "option"), options_of("batching", "datamodule", "dataset", "sampler", "workers"))
def test_data_configs_hold_every_key_of_their_target(group, option):
    node = node_of(group, option)
    assert keys_of(node) == set(signature_of(node["_target_"]).types) - NOT_IN_CONFIGS.get(group, set())


@pytest.mark.parametrize("option", ["copy_paste", "mixup", "mosaic"])
def test_config_of_a_mix_repeats_its_defaults(option):
    node = node_of("mixing", option)[option]
    parameters = inspect.signature(locate(node["_target_"])).parameters
    values = {name: value for name, value in OmegaConf.to_container(node).items() if name != "_target_"}
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert values == {name: list(value) if type(value) is tuple else value for name, value in defaults.items()}


@pytest.mark.parametrize("option", OPTIONS["datamodule"])
def test_transforms_of_a_data_module_hold_every_key_of_their_preset(option):
    presets = {"landmarks": "landmark", "classification": "classification"}
    arguments = signature_of(f"lit_loader.transforms.{presets.get(option, 'detection')}_transforms").types
    decided_by_data = {"train", "flip_pairs", "per_object", "per_image", "crop"}
    node = composed_once(f"datamodule={option}", "dataset=shapes").datamodule
    assert keys_of(node.train_transforms) == set(arguments) - decided_by_data
    assert node.reading.max_pixels == MAX_PIXELS


def test_trainer_config_repeats_the_defaults_of_lightning():
    parameters = inspect.signature(Trainer).parameters
    names = ["strategy", "num_nodes", "val_check_interval", "use_distributed_sampler", "sync_batchnorm"]
    names += ["accelerator", "overfit_batches", "fast_dev_run", "detect_anomaly", "profiler"]
    trainer = composed_once().trainer
    assert {name: trainer[name] for name in names} == {name: parameters[name].default for name in names}
