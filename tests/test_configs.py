"""Configs: what is shipped fits what it names, and mistakes are explained, in the signatures of strangers too."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_loader.configs import ConfigError, build_datamodule, validate
from lit_loader.samplers import GroupedSampler
from lit_loader.signatures import signature_of
from tests.drawn_set import draw_set

CONF = Path(__file__).parents[1] / "conf"
NEEDS = {  # what a config cannot know
    **{name: ["dataset.root=/nowhere"] for name in ("coco", "csv", "image_folder", "voc", "yolo")},
    "files": ["dataset.format=coco", "dataset.root=/nowhere", "dataset.train=train.json"],
}
FROM_THE_DATA = {
    "classifier_small": {"class_names": ["a"]},
    "fcos_small": {"class_names": ["a"]},
    "heatmaps_small": {"keypoint_names": ["p"]},
    "multi_task_small": {"class_names": ["a"], "keypoint_names": ["p"]},
}
GROUPS = ("dataset", "sampler", "batching", "workers", "datamodule", "model", "trainer")
OPTIONS = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "base")
    for group in GROUPS
}


def composed(*overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in OPTIONS for option in OPTIONS[group]]
)
def test_every_shipped_option_composes_fits_its_target_and_instantiates(group, option):
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


ROOTS = {
    name: [] for name in ("classification", "landmarks", "shapes_finish", "unified")
}  # on the embedded set


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
        drawn = instantiate(cfg.sampler).make_sampler(table)
        grouped = chosen["train"].batched(drawn, table)
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


# The model's; they come from the data.
NOT_SHIPPED = {"class_names", "keypoint_names", "attributes", "normalization_pair", "multi_label"}
OF_THE_CODE = {"preset"}  # what a data module gives its base itself


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in OPTIONS
        for option in OPTIONS[group]
        if group not in ("trainer", "workers")
    ],
)
def test_a_shipped_option_holds_every_key_that_its_target_takes(group, option):
    node = composed(f"{group}={option}", *NEEDS.get(option, []))[group]
    taken = set(signature_of(node._target_).types) - OF_THE_CODE
    assert keys_of(node) == taken - (NOT_SHIPPED if group == "model" else set())


@pytest.mark.parametrize("option", OPTIONS["datamodule"])
def test_the_transforms_of_a_data_module_hold_every_key_of_their_preset(option):
    presets = {"landmarks": "landmark", "classification": "classification"}
    taken = signature_of(f"lit_loader.transforms.{presets.get(option, 'detection')}_transforms").types
    decided_by_data = {"train", "flip_pairs", "per_object", "per_image", "crop"}
    assert keys_of(composed(f"datamodule={option}").datamodule.train_transforms) == (
        set(taken) - decided_by_data
    )


def test_photographs_get_the_sizes_that_detectors_train_at_and_drawn_scenes_their_own():
    photos = composed("dataset=coco", "dataset.root=/x")
    assert (photos.model.min_size, photos.model.max_size) == (800, 1333)
    assert list(photos.model.strides) == [8, 16, 32]
    assert photos.datamodule.train_transforms.vflip == 0
    assert composed("dataset=voc", "dataset.root=/x", "experiment=classification").datamodule[
        "train_transforms"
    ].size == (224)
    scenes = composed()
    assert (scenes.model.min_size, scenes.model.max_size, list(scenes.model.strides)) == (96, 192, [8])
    assert (scenes.datamodule.train_transforms.vflip, scenes.datamodule.batch_size) == (0.5, 16)
    assert composed("experiment=landmarks").datamodule.train_transforms.size == 64


def test_classification_is_of_whole_images_and_their_class_on_any_set():
    plain = composed("experiment=classification", "dataset=image_folder", "dataset.root=/x").datamodule
    assert (plain.label_attribute, plain.sample_unit) == (None, "image")


def test_keys_added_to_the_yaml_have_the_values_that_leaving_them_out_had():
    from lit_loader.datasets import MAX_PIXELS

    for option in OPTIONS["datamodule"]:
        assert composed(f"datamodule={option}").datamodule.max_pixels == MAX_PIXELS


def test_the_trainer_gets_lightnings_own_defaults_where_nothing_else_is_meant():
    import inspect

    from lightning.pytorch import Trainer

    parameters = inspect.signature(Trainer).parameters
    given = composed().trainer
    for name in ("strategy", "num_nodes", "val_check_interval", "use_distributed_sampler"):
        assert given[name] == parameters[name].default


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["workers.num_workers=two"], ["workers.num_workers='two' should be int or 'auto'"]),
        (["workers.num_workers=1.5"], ["workers.num_workers=1.5 should be int or 'auto'"]),
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
        (["seed=abc"], ["seed='abc' should be int or null"]),
        (["num_threads=two"], ["num_threads='two' should be int"]),
        (["show_progress=7.5"], ["show_progress=7.5 should be bool"]),
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


class Base:
    """A stranger's base."""

    def __init__(self, *, depth: int = 2, most: int = 5) -> None:
        pass


class Own(Base):
    """A stranger's class, whose keywords are those of its base too."""

    def __init__(self, root: Path, *, names: list[str] | None = None, **keywords: object) -> None:
        super().__init__(**keywords)


def untyped(first, second=None, **others):
    """Return what it is given."""
    return first, second, others


HERE = "tests.test_configs"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"root": "a", "names": "b"}, r"dataset\.names='b' should be list\[str\] or null"),
        ({"root": "a", "names": [3]}, r"dataset\.names=\[3\] should be list\[str\] or null"),
        ({"root": 3}, r"dataset\.root=3 should be Path"),
        ({"depth": "deep"}, r"dataset\.depth='deep' should be int"),
        ({"most": True}, r"dataset\.most=True should be int"),
        ({"roots": "a"}, r"dataset has no key 'roots'; did you mean dataset\.root\?"),
    ],
    ids=str,
)
def test_a_class_of_a_stranger_is_checked_by_its_own_signature(given, told):
    own = {"_target_": f"{HERE}.Own"}
    validate(OmegaConf.create({"dataset": {**own, "root": "a", "names": ["b"], "depth": 3, "most": 4}}))
    cfg = OmegaConf.create({"dataset": {**own, **given}})
    with pytest.raises(ConfigError, match=told):
        validate(cfg)


def test_what_says_nothing_of_its_keys_takes_any():
    anything = {"_target_": f"{HERE}.untyped", "first": 1, "second": "b", "third": {"a": [1]}}
    validate(OmegaConf.create({"dataset": anything, "more": {"_target_": "my.Own", "anything": 1}}))


def test_what_stands_in_a_node_that_cannot_be_imported_is_checked():
    wrong = {"_target_": "lit_loader.transforms.detection_transforms", "train": True, "vflip": "often"}
    with pytest.raises(ConfigError, match=r"dataset\.parts\.0\.vflip='often' should be float"):
        validate(OmegaConf.create({"dataset": {"_target_": "my.Own", "parts": [wrong]}}))


def test_an_app_may_have_keys_of_its_own_at_the_root():
    validate(OmegaConf.create({"mine": 5, "seed": None, "more": {"x": [1]}}))
