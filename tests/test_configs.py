"""Configs: what is shipped fits the schemas, the schemas fit the code, and mistakes are explained."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import MissingConfigException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_loader.configs import GROUPS, ConfigError, run_with_hints, validate

CONF = Path(__file__).parents[1] / "conf"
OPTIONS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}


def composed(*overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in OPTIONS for option in OPTIONS[group]]
)
def test_every_shipped_option_composes_fits_its_schema_and_instantiates(group, option):
    needs = ["dataset.root=/nowhere"] if (group, option) == ("dataset", "voc") else []
    cfg = composed(f"{group}={option}", *needs)
    validate(cfg)
    if group == "workers":
        return
    extra = {"class_names": ["a"]} if group == "model" else {}
    if option == "gpu":
        extra = {"accelerator": "cpu", "precision": "32-true"}  # there need not be one here
    if group == "trainer":
        extra |= {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    built = instantiate(cfg[group], _convert_="all", **extra)
    assert (
        f"{type(built).__module__}.{type(built).__name__}".split(".")[0]
        == cfg[group]["_target_"].split(".")[0]
    )


@pytest.mark.parametrize("path", sorted(CONF.glob("experiment/*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_composes_and_fits(path):
    validate(composed(f"experiment={path.stem}", *(["dataset.root=/x"] if path.stem == "bccd" else [])))


def test_any_sampler_with_any_workers():
    for sampler, workers in product(OPTIONS["sampler"], OPTIONS["workers"]):
        cfg = composed(f"sampler={sampler}", f"workers={workers}")
        validate(cfg)
        assert cfg.datamodule.num_workers == cfg.workers.num_workers


OURS = [
    (target, schema)
    for schemas in GROUPS.values()
    for target, schema in schemas.items()
    if "lit_loader" in target
]


@pytest.mark.parametrize(("target", "schema"), OURS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_schema_has_exactly_the_keywords_of_its_target(target, schema):
    module, name = target.rsplit(".", 1)
    kind = getattr(import_module(module), name)
    keywords = set()
    for owner in kind.__mro__:
        if "__init__" in vars(owner) and owner.__module__.startswith("lit_loader"):
            parameters = inspect.signature(owner.__init__).parameters.values()
            keywords |= {p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}
    assert {item.name for item in fields(schema)} == keywords


def test_the_trainers_schema_names_only_what_lightning_knows():
    from lightning.pytorch import Trainer

    (schema,) = GROUPS["trainer"].values()
    assert {item.name for item in fields(schema)} <= set(inspect.signature(Trainer).parameters)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["workers.num_workers=two"], ["workers.num_workers='two'", "int"]),
        (["datamodule.batch_size=abc"], ["datamodule.batch_size='abc'", "int"]),
        (
            ["+datamodule.batchsize=8"],
            ["datamodule has no key 'batchsize'", "did you mean datamodule.batch_size?"],
        ),
        (["dataset=voc"], ["dataset.root is missing", "dataset.root=VALUE"]),
        (["trainer.max_epochs=many"], ["trainer.max_epochs='many'"]),
        (["workers.num_workers=two", "datamodule.batch_size=abc"], ["num_workers", "batch_size"]),
    ],
    ids=str,
)
def test_misfits_are_told_with_value_rule_and_remedy(overrides, told):
    with pytest.raises(ConfigError) as caught:
        validate(composed(*overrides))
    for part in told:
        assert part in str(caught.value)


def test_a_target_that_is_not_ours_is_left_alone():
    validate(OmegaConf.create({"dataset": {"_target_": "my.Own", "anything": 1}}))


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("datamodule.batchsize=8", "did you mean datamodule.batch_size?"),
        ("workers.num_worker=8", "did you mean workers.num_workers?"),
        ("sampler=nope", "class_balanced"),
    ],
)
def test_mistakes_on_the_command_line_end_the_run_with_a_hint(override, told, capsys):
    with pytest.raises(SystemExit) as ended:
        run_with_hints(lambda: composed(override))
    assert ended.value.code == 1
    assert told in capsys.readouterr().err


def test_other_errors_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        run_with_hints(lambda: 1 / 0)


def test_hydra_itself_names_the_options_of_a_group():
    with pytest.raises(MissingConfigException, match="class_balanced"):
        composed("sampler=nope")
