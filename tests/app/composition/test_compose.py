"""Composing outside of a @hydra.main function: the same config, checked, with errors that name the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from lit_loader.app.composition import ConfigError, build_datamodule, compose_config, worker_override

CONF = Path(__file__).parents[3] / "conf"
SHAPES = ["dataset=shapes"]
OVERRIDES = ["experiment=shapes_landmarks", "workers=threads", "datamodule.batch_size=3"]


def test_config_equals_the_one_that_hydra_composes():
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        expected = compose("train", overrides=OVERRIDES)
    assert compose_config(overrides=OVERRIDES) == expected
    assert compose_config(CONF, "train", OVERRIDES) == expected
    assert compose_config(str(CONF), overrides=OVERRIDES).datamodule.batch_size == 3


def test_config_folder_may_be_relative_to_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.yaml").write_text("a: 1\n")
    monkeypatch.chdir(tmp_path)
    assert compose_config("mine", "app", ["+b=2"]) == {"a": 1, "b": 2}


def test_folder_without_the_config_adds_its_groups_to_the_shipped_ones(tmp_path, monkeypatch):
    folder = tmp_path / "it's $" / "conf"
    (folder / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [{override /dataset: shapes}]\ndatamodule: {batch_size: 3}\n"
    (folder / "experiment" / "mine.yaml").write_text(text)
    monkeypatch.chdir(folder.parent)
    assert compose_config("conf", overrides=["experiment=mine"]).datamodule.batch_size == 3
    with pytest.raises(ConfigError, match="leave out one of them"):
        compose_config("conf", overrides=["experiment=mine", "hydra.searchpath=[file://other]"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "You must specify 'dataset', e.g, dataset=<OPTION>"),
        ([*SHAPES, "sampler=no"], "class_balanced"),
        ([*SHAPES, "workers.num_worker=1"], "did you mean workers.num_workers?"),
        ([*SHAPES, "workers.worker_method=x"], "should be 'multiprocessing' or 'thread'"),
        (["dataset=voc"], "pass dataset.root=VALUE"),
        ([*SHAPES, "seed=${nope:"], "mismatched input"),
    ],
)
def test_config_that_does_not_compose_or_fit_is_a_config_error(overrides, message):
    with pytest.raises(ConfigError, match=r".") as caught:
        compose_config(overrides=overrides)
    assert message in str(caught.value)
    compose_config(overrides=SHAPES)  # the failed composition left no state behind


def test_refusal_of_a_constructor_names_its_node():
    with pytest.raises(ConfigError, match=r"datamodule: batch_size=0"):
        build_datamodule(compose_config(overrides=[*SHAPES, "datamodule.batch_size=0"]))


def test_one_config_is_composed_after_the_other():
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        with pytest.raises(ConfigError, match="one after the other"):
            compose_config(overrides=SHAPES)
        compose("train", overrides=SHAPES)  # the first composition is unchanged


@pytest.mark.parametrize(
    ("overrides", "name", "value", "override"),
    [
        ([], "num_workers", 2, "workers.num_workers=2"),
        ([], "multiprocessing_context", None, "workers.multiprocessing_context=null"),
        (["+datamodule.num_workers=1"], "num_workers", 2, "datamodule.num_workers=2"),
        (["~datamodule.workers"], "num_workers", 2, "+datamodule.workers.num_workers=2"),
        (["datamodule.workers={num_workers: 1}"], "num_workers", 2, "datamodule.workers.num_workers=2"),
    ],
)
def test_worker_setting_is_set_at_the_key_of_the_config(overrides, name, value, override):
    cfg = compose_config(overrides=[*SHAPES, *overrides])
    assert worker_override(cfg, name, value) == override
    changed = compose_config(overrides=[*SHAPES, *overrides, override]).datamodule
    assert (changed[name] if name in changed else changed.workers[name]) == value
