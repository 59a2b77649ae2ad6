"""Configs: what is shipped composes, fits what it names, and builds it."""

from __future__ import annotations

import inspect
from itertools import cycle, product
from pathlib import Path

import pytest
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from omegaconf import OmegaConf

from lit_loader.app.composition import build_datamodule, validate
from lit_loader.foundation.signatures import signature_of
from lit_loader.images import MAX_PIXELS
from lit_loader.samplers import GroupedSampler
from tests.support.drawn_set import draw_set
from tests.support.shipped_configs import (
    CONF,
    EXPERIMENTS,
    ON_SHAPES,
    OPTIONS,
    composed_once,
    option_configs,
    with_nodes,
)

EVERY_OPTION = [(group, option) for group, options in OPTIONS.items() for option in options]
NODES_BY_NAME = ("callbacks", "logger")
SETTINGS = ("extras", "paths")  # nodes that name nothing
FROM_THE_DATA = {
    "ClassificationTask": {"class_names": ["a"]},
    "DetectionTask": {"class_names": ["a"]},
    "LandmarkTask": {"keypoint_names": ["p"]},
    "MultiTask": {"class_names": ["a"], "keypoint_names": ["p"]},
}


def node_of(group, option):
    return option_configs()[group, option][group]


def targets_of(group, option):
    """Return the nodes of an option that name what they configure."""
    cfg = option_configs()[group, option]
    if group in NODES_BY_NAME:
        return list((cfg.get(group) or {}).values())
    return [] if group in SETTINGS else [cfg[group]]


@pytest.mark.parametrize(("group", "option"), EVERY_OPTION)
def test_every_option_composes_and_fits_what_it_names(group, option):
    validate(option_configs()[group, option])
    for node in targets_of(group, option):
        assert signature_of(node._target_) is not None, f"{node._target_} cannot be imported"


@pytest.mark.parametrize(
    ("group", "option"), [each for each in EVERY_OPTION if each[0] not in ("model", "trainer", *SETTINGS)]
)
def test_every_option_builds_what_it_names(group, option, in_a_run):
    for node in targets_of(group, option):
        of_the_task = {"monitor": "val/map", "mode": "max"} if node.get("monitor") == "auto" else {}
        built = instantiate(node, **of_the_task, _convert_="all")
        assert type(built).__name__ == node._target_.rpartition(".")[2]


@pytest.mark.parametrize("option", OPTIONS["trainer"])
def test_every_trainer_is_built(option, in_a_run):
    has_none = {} if option in ("default", "cpu") else {"accelerator": "cpu", "precision": "32-true"}
    trainer = instantiate(node_of("trainer", option), **has_none, devices=1, logger=False)
    assert isinstance(trainer, Trainer)
    assert trainer.default_root_dir == str(in_a_run / "run")


@pytest.mark.parametrize("option", OPTIONS["model"])
def test_every_model_is_built_without_a_download(option):
    node = node_of("model", option)
    task = node._target_.rpartition(".")[2]
    built = instantiate(node, weights=None, **FROM_THE_DATA[task], _convert_="all")
    assert type(built).__name__ == task
    assert built.configure_optimizers()


@pytest.fixture
def in_a_run(tmp_path, monkeypatch):
    """What Hydra sets for a run: its folders."""
    from hydra.core.hydra_config import HydraConfig

    cfg = composed_once(hydra=True).copy()
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.output_dir, cfg.hydra.runtime.cwd = str(tmp_path / "run"), str(tmp_path)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return tmp_path


def test_paths_are_those_of_the_current_folder_and_of_the_run(in_a_run):
    paths = OmegaConf.to_container(composed_once(), resolve=True)["paths"]
    here, run = str(in_a_run), str(in_a_run / "run")
    below = {"root_dir": ".", "data_dir": "./data", "log_dir": "./logs"}
    assert paths == {**below, "output_dir": run, "work_dir": here}


def test_runs_and_sweeps_have_folders_by_the_name_of_the_task(in_a_run):
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    assert Path(hydra.run.dir).parent == Path("logs/train/runs")
    assert Path(hydra.sweep.dir).parent == Path("logs/train/multiruns")
    assert hydra.job_logging.handlers.file.filename == str(in_a_run / "run/train.log")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_fits(name):
    of_a_set = [] if name in ON_SHAPES else ["dataset.root=/x"]
    of_a_set += ["dataset=voc"] if name in ("classification", "landmarks", "unified") else []
    cfg = composed_once(f"experiment={name}", *of_a_set)
    validate(cfg)
    assert cfg.tags != ["dev"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("debug/*.yaml")))
def test_every_debug_config_is_for_one_process_without_callbacks_and_loggers(name):
    cfg = composed_once("experiment=coco_fasterrcnn", "dataset.root=/x", f"debug={name}")
    validate(cfg)
    assert not cfg.callbacks
    assert not cfg.logger
    assert cfg.task_name == "debug"
    assert (cfg.trainer.accelerator, cfg.trainer.devices) == ("cpu", 1)
    assert cfg.workers.num_workers == (2 if name == "profiler" else 0)
    default, own_trainer = (OmegaConf.to_container(each.trainer, resolve=False) for each in (composed_once(), cfg))
    changed = {key for key, value in own_trainer.items() if value != default[key]}
    own = {"fdr": {"fast_dev_run"}, "overfit": {"overfit_batches"}, "profiler": {"profiler"}}
    own["limit"] = {f"limit_{stage}_batches" for stage in ("train", "val", "test")}
    assert changed >= own.get(name, {"detect_anomaly"})


@pytest.mark.filterwarnings("ignore:The ``declarative_base:DeprecationWarning")  # optuna 2 with sqlalchemy 2
@pytest.mark.parametrize(("name", "sweeper"), [("grid", "BasicSweeper"), ("optuna", "OptunaSweeper")])
def test_every_search_is_a_sweep_over_a_key_that_there_is(name, sweeper):
    cfg = composed_once(f"hparams_search={name}", hydra=True)
    assert cfg.hydra.mode.name == "MULTIRUN"
    assert cfg.hydra.sweeper._target_.rpartition(".")[2] == sweeper
    for key in cfg.hydra.sweeper.params:
        assert isinstance(OmegaConf.select(cfg, key), float)
    if name == "optuna":
        sampler = instantiate(cfg.hydra.sweeper.sampler)
        assert (type(sampler).__name__, cfg.hydra.sweeper.sampler.seed) == ("TPESampler", 0)


def test_several_callbacks_and_loggers_are_chosen_by_name():
    cfg = composed_once("callbacks=[default,early_stopping,ema]", "logger=[csv,tensorboard]")
    assert list(cfg.callbacks) == [*composed_once().callbacks, "early_stopping", "ema"]
    assert list(cfg.logger) == ["csv", "tensorboard"]


def test_any_sampler_with_any_workers_and_any_batching_on_any_number_of_ranks(tmp_path):
    table = draw_set(tmp_path, num_images=24, widths=[40, 30, 30] * 8, heights=[30, 40, 30] * 8)
    kinds, shapes_config = OPTIONS["batching"], composed_once("trainer.devices=2")
    met = set()
    for (sampler, batching), workers in zip(
        product(OPTIONS["sampler"], kinds), cycle(OPTIONS["workers"]), strict=False
    ):
        met.add((sampler, workers))
        chosen = {"sampler": sampler, "batching": batching, "workers": workers}
        cfg = with_nodes(shapes_config, **{group: node_of(group, name) for group, name in chosen.items()})
        validate(cfg)
        assert cfg.datamodule.workers.num_workers == cfg.workers.num_workers
        assert cfg.trainer.devices == 2
        batchings = build_datamodule(cfg)._batchings
        assert batchings["val"] is None
        drawn = instantiate(cfg.sampler).make_sampler(table)
        grouped = batchings["train"].batched(drawn, table)
        assert isinstance(grouped, GroupedSampler) == (batching != "plain")
        order = grouped.batch_order(seed=0, epoch=0, global_batch=4)
        assert len(order) == len(drawn)
        shapes = order[0 : len(order) // 4 * 4].reshape(-1, 4) % 3
        alone = int((shapes == shapes[:, :1]).all(axis=1).sum())
        assert batching == "plain" or alone >= len(shapes) - 3  # what is left over of three shapes
    assert {workers for _, workers in met} == set(OPTIONS["workers"])
    assert len(met) == len(OPTIONS["sampler"]) * len(kinds)  # no sampler meets the same workers twice


def keys_of(node):
    return {str(key) for key in node} - {"_target_", "_partial_"}


OF_THE_CODE = {"datamodule": {"preset", "num_workers"}}  # a task passes its preset; num_workers is a key of workers


@pytest.mark.parametrize(
    ("group", "option"),
    [each for each in EVERY_OPTION if each[0] in ("batching", "datamodule", "dataset", "sampler", "workers")],
)
def test_an_option_of_the_data_holds_every_key_that_its_target_takes(group, option):
    node = node_of(group, option)
    assert keys_of(node) == set(signature_of(node._target_).types) - OF_THE_CODE.get(group, set())


@pytest.mark.parametrize("option", OPTIONS["datamodule"])
def test_the_transforms_of_a_data_module_hold_every_key_of_their_preset(option):
    presets = {"landmarks": "landmark", "classification": "classification"}
    taken = signature_of(f"lit_loader.transforms.{presets.get(option, 'detection')}_transforms").types
    decided_by_data = {"train", "flip_pairs", "per_object", "per_image", "crop"}
    node = composed_once(f"datamodule={option}", "dataset=shapes").datamodule
    assert keys_of(node.train_transforms) == set(taken) - decided_by_data
    assert node.reading.max_pixels == MAX_PIXELS


def test_the_trainer_gets_lightnings_own_defaults_where_nothing_else_is_meant():
    parameters = inspect.signature(Trainer).parameters
    given = composed_once().trainer
    same = ["strategy", "num_nodes", "val_check_interval", "use_distributed_sampler", "sync_batchnorm"]
    for name in [*same, "accelerator", "overfit_batches", "fast_dev_run", "detect_anomaly", "profiler"]:
        assert given[name] == parameters[name].default, name
