"""Configs: what is shipped fits the schemas, the schemas fit the code, and mistakes are explained."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import cycle, product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_loader.configs import GROUPS, ConfigError, RootConfig, build_datamodule, validate
from lit_loader.configs.schemas import OPTIONS as CHOICES
from lit_loader.configs.schemas import PRESETS, TARGETS
from lit_loader.samplers import GroupedSampler
from tests.drawn_set import draw_set

CONF = Path(__file__).parents[1] / "conf"
NEEDS = {  # what a config cannot know
    "voc": ["dataset.root=/nowhere"],
    "files": ["dataset.format=coco", "dataset.root=/nowhere", "dataset.train=train.json"],
}
FROM_THE_DATA = {
    "classifier_small": {"class_names": ["a"]},
    "fcos_small": {"class_names": ["a"]},
    "heatmaps_small": {"keypoint_names": ["p"]},
    "multi_task_small": {"class_names": ["a"], "keypoint_names": ["p"]},
}
OPTIONS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}


def composed(*overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in OPTIONS for option in OPTIONS[group]]
)
def test_every_shipped_option_composes_fits_its_schema_and_instantiates(group, option):
    cfg = composed(f"{group}={option}", *NEEDS.get(option, []))
    validate(cfg)
    if group == "workers":
        return
    extra = FROM_THE_DATA.get(option, {})
    if option == "gpu":
        extra = {"accelerator": "cpu", "precision": "32-true"}  # there need not be one here
    if group == "trainer":
        extra |= {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    built = instantiate(cfg[group], _convert_="all", **extra)
    assert (
        f"{type(built).__module__}.{type(built).__name__}".split(".")[0]
        == cfg[group]["_target_"].split(".")[0]
    )


ROOTS = {name: [] for name in ("classification", "landmarks", "unified")}  # on the embedded set


@pytest.mark.parametrize("path", sorted(CONF.glob("experiment/*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_composes_and_fits(path):
    validate(
        composed(
            f"experiment={path.stem}", "dataset.cache_dir=/x", *ROOTS.get(path.stem, ["dataset.root=/x"])
        )
    )


def test_any_sampler_with_any_workers_and_any_batching_on_any_number_of_ranks(tmp_path):
    table = draw_set(tmp_path, num_images=24, widths=[40, 30, 30] * 8, heights=[30, 40, 30] * 8)
    kinds = OPTIONS["batching"]
    met = set()
    for (sampler, batching), workers in zip(
        product(OPTIONS["sampler"], kinds), cycle(OPTIONS["workers"]), strict=False
    ):
        met.add((sampler, workers))
        cfg = composed(
            f"sampler={sampler}", f"workers={workers}", f"batching={batching}", "trainer.devices=2"
        )
        validate(cfg)
        assert cfg.datamodule.num_workers == cfg.workers.num_workers
        assert cfg.trainer.devices == 2
        chosen = build_datamodule(cfg)._batchings
        assert chosen["val"] is None
        drawn = instantiate(cfg.sampler).sampler(table)
        grouped = chosen["train"].batched(drawn, table)
        assert isinstance(grouped, GroupedSampler) == (batching != "plain")
        order = grouped.batch_order(seed=0, epoch=0, global_batch=4)
        assert len(order) == len(drawn)
        shapes = order[0 : len(order) // 4 * 4].reshape(-1, 4) % 3
        alone = int((shapes == shapes[:, :1]).all(axis=1).sum())
        assert batching == "plain" or alone >= len(shapes) - 3  # what is left over of three shapes
    assert {workers for _, workers in met} == set(OPTIONS["workers"])
    assert len(met) == len(OPTIONS["sampler"]) * len(kinds)  # no sampler meets the same workers twice


OURS = [(target, schema) for target, schema in TARGETS.items() if target.startswith("lit_loader.")]


@pytest.mark.parametrize(("target", "schema"), OURS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_schema_has_exactly_the_keywords_of_its_target(target, schema):
    module, name = target.rsplit(".", 1)
    built = getattr(import_module(module), name)
    makers = [built]
    if inspect.isclass(built) and not is_dataclass(built):
        makers = [
            vars(owner)["__init__"]
            for owner in built.__mro__
            if "__init__" in vars(owner) and owner.__module__.startswith("lit_loader")
        ]
    parameters = [p for maker in makers for p in inspect.signature(maker).parameters.values()]
    # A data module gives its base the preset itself.
    hidden = ("self", "preset")
    keywords = {p.name for p in parameters if p.name not in hidden and p.kind is not p.VAR_KEYWORD}
    assert {item.name for item in fields(schema)} == keywords


def keys_of(path, node=""):
    cfg = OmegaConf.load(path)
    inner = OmegaConf.select(cfg, node) if node else cfg
    return str(inner.get("_target_", "")), {str(key) for key in inner} - {"_target_", "_partial_", "defaults"}


# The model's; they come from the data.
NOT_SHIPPED = {"class_names", "keypoint_names", "attributes", "normalization_pair", "multi_label"}


# They hold what they change of another option of their group.
ADDED_TO = ("gpu", "inline", "auto", "threads")


@pytest.mark.parametrize(
    ("group", "option"),
    [(group, option) for group in OPTIONS for option in OPTIONS[group] if option not in ADDED_TO],
)
def test_a_shipped_option_holds_every_key_of_its_schema(group, option):
    target, keys = keys_of(CONF / group / f"{option}.yaml")
    schema = GROUPS[group][target]
    assert keys == {item.name for item in fields(schema)} - (NOT_SHIPPED if group == "model" else set())
    if schema in CHOICES:
        assert CHOICES[schema] == f"{group}={option}"


def test_the_root_holds_every_key_of_its_schema():
    assert keys_of(CONF / "train.yaml")[1] == {item.name for item in fields(RootConfig)}


@pytest.mark.parametrize("option", OPTIONS["datamodule"])
def test_the_transforms_of_a_data_module_hold_every_key_of_their_preset(option):
    cfg = OmegaConf.load(CONF / f"datamodule/{option}.yaml")
    schema = PRESETS.get((cfg["_target_"], None)) or PRESETS[cfg["_target_"], cfg.get("sample_unit")]
    assert set(cfg.train_transforms) == {item.name for item in fields(schema)}


def test_a_preset_has_the_keywords_of_its_function_but_for_those_that_the_data_decides():
    decided = {"train", "flip_pairs", "per_object", "per_image", "crop"}
    for target, schema in TARGETS.items():
        if target.startswith("lit_loader.transforms."):
            (preset,) = (base for base in schema.__bases__ if base in PRESETS.values())
            keys = {item.name for item in fields(preset)}
            assert keys == {item.name for item in fields(schema)} - decided


def test_keys_added_to_the_yaml_have_the_values_that_leaving_them_out_had():
    from lit_loader.datasets import MAX_PIXELS

    for option in OPTIONS["datamodule"]:
        assert composed(f"datamodule={option}").datamodule.max_pixels == MAX_PIXELS


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
        (["workers.num_workers=two"], ["workers.num_workers='two' should be of type int or 'auto'"]),
        (["workers.num_workers=1.5"], ["workers.num_workers=1.5 should be of type int or 'auto'"]),
        (
            ["workers.worker_method=threads"],
            ["workers.worker_method='threads' should be 'multiprocessing' or 'thread'"],
        ),
        (["workers.persistent_workers=maybe"], ["workers.persistent_workers='maybe'", "bool"]),
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
            ["datamodule.val_transforms={size: 64, hflipp: 1}"],
            ["datamodule.val_transforms has no key 'hflipp'"],
        ),
        (
            ["datamodule=landmarks", "datamodule.sample_unit=image", "++datamodule.train_transforms.hflip=a"],
            ["datamodule.train_transforms has no key 'margin'", "datamodule.train_transforms.hflip='a'"],
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
