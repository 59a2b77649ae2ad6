"""Configs: what is shipped fits the schemas, the schemas fit the code, and mistakes are explained."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_loader.configs import GROUPS, ConfigError, RootConfig, validate
from lit_loader.configs.schemas import OPTIONS as CHOICES
from lit_loader.configs.schemas import TARGETS

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


OURS = [(target, schema) for target, schema in TARGETS.items() if target.startswith("lit_loader.")]


@pytest.mark.parametrize(("target", "schema"), OURS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_schema_has_exactly_the_keywords_of_its_target(target, schema):
    module, name = target.rsplit(".", 1)
    built = getattr(import_module(module), name)
    makers = [built]
    if inspect.isclass(built):
        makers = [
            vars(owner)["__init__"]
            for owner in built.__mro__
            if "__init__" in vars(owner) and owner.__module__.startswith("lit_loader")
        ]
    parameters = [p for maker in makers for p in inspect.signature(maker).parameters.values()]
    keywords = {p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}
    assert {item.name for item in fields(schema)} == keywords


def keys_of(path, node=""):
    cfg = OmegaConf.load(path)
    inner = OmegaConf.select(cfg, node) if node else cfg
    return str(inner.get("_target_", "")), {str(key) for key in inner} - {"_target_", "_partial_", "defaults"}


NOT_SHIPPED = {"class_names"}  # the model's; they come from the data


@pytest.mark.parametrize(
    ("group", "option"),
    [(group, option) for group in OPTIONS for option in OPTIONS[group] if option not in ("gpu", "inline")],
)
def test_a_shipped_option_holds_every_key_of_its_schema(group, option):
    target, keys = keys_of(CONF / group / f"{option}.yaml")
    schema = GROUPS[group][target]
    assert keys == {item.name for item in fields(schema)} - (NOT_SHIPPED if group == "model" else set())
    if schema in CHOICES:
        assert CHOICES[schema] == f"{group}={option}"


def test_the_root_and_the_transforms_hold_every_key_of_their_schemas():
    assert keys_of(CONF / "train.yaml")[1] == {item.name for item in fields(RootConfig)}
    target, keys = keys_of(CONF / "datamodule/detection.yaml", "train_transforms")
    assert keys == {item.name for item in fields(TARGETS[target])}


def test_keys_added_to_the_yaml_have_the_values_that_leaving_them_out_had():
    from lit_loader.datasets import MAX_PIXELS

    cfg = composed().datamodule
    assert cfg.max_pixels == MAX_PIXELS
    assert cfg.train_transforms.per_object == cfg.extra_fields == []


def test_the_trainers_schema_names_only_what_lightning_knows():
    from lightning.pytorch import Trainer

    (schema,) = GROUPS["trainer"].values()
    parameters = inspect.signature(Trainer).parameters
    assert {item.name for item in fields(schema)} <= set(parameters)
    given = composed().trainer
    for name in ("strategy", "num_nodes", "val_check_interval", "use_distributed_sampler"):
        assert given[name] == parameters[name].default


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
        (["seed=abc"], ["seed='abc' should be of type Optional[int]"]),
        (["num_threads=two"], ["num_threads='two' should be of type int"]),
        (["show_progress=7.5"], ["show_progress=7.5 should be of type bool"]),
        (["datamodule.train_transforms.hflip=two"], ["datamodule.train_transforms.hflip='two'", "float"]),
        (
            ["+datamodule.train_transforms.hflipp=1"],
            [
                "datamodule.train_transforms has no key 'hflipp'",
                "did you mean datamodule.train_transforms.hflip?",
            ],
        ),
        (
            ["experiment=bccd", "dataset.root=/x", "datamodule.val_transforms.train=?"],
            ["val_transforms.train='?'"],
        ),
        (["workers.num_workers=two", "datamodule.batch_size=abc"], ["num_workers", "batch_size"]),
    ],
    ids=str,
)
def test_misfits_are_told_with_value_rule_and_remedy(overrides, told):
    with pytest.raises(ConfigError) as caught:
        validate(composed(*overrides))
    for part in told:
        assert part in str(caught.value)


def test_a_target_that_is_not_ours_is_left_alone_but_not_what_stands_in_it():
    ours = {"_target_": "lit_loader.transforms.detection_transforms", "train": True}
    validate(OmegaConf.create({"dataset": {"_target_": "my.Own", "anything": 1, "parts": [ours]}}))
    wrong = {**ours, "vflip": "often"}
    with pytest.raises(ConfigError, match=r"dataset\.parts\.0\.vflip='often'"):
        validate(OmegaConf.create({"dataset": {"_target_": "my.Own", "parts": [wrong]}}))


def test_an_app_may_have_keys_of_its_own_at_the_root():
    validate(OmegaConf.create({"mine": 5, "seed": None, "more": {"x": [1]}}))
