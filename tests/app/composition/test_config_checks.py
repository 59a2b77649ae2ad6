"""Checks of configs against the signatures of shipped and foreign targets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from lit_loader.app.composition import ConfigError, validate
from tests.support.shipped_configs import composed_once


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["workers.num_workers=two"], ["workers.num_workers='two' should be int or 'auto'"]),
        (
            ["workers.worker_method=threads"],
            ["workers.worker_method='threads' should be 'multiprocessing' or 'thread'"],
        ),
        (["+datamodule.batchsize=8"], ["datamodule has no key 'batchsize'", "did you mean datamodule.batch_size?"]),
        (
            ["+datamodule.max_pixels=9", "+datamodule.pin_memory=true"],
            ["did you mean datamodule.reading.max_pixels?", "did you mean datamodule.workers.pin_memory?"],
        ),
        (["dataset=voc"], ["dataset.root is missing", "dataset.root=VALUE"]),
        (["trainer.max_epochs=many"], ["trainer.max_epochs='many'"]),
        (["seed=abc"], ["seed='abc' should be int or null"]),
        (["datamodule.train_transforms.hflip=two"], ["datamodule.train_transforms.hflip='two'", "float"]),
        (
            ["+datamodule.train_transforms.hflipp=1"],
            ["datamodule.train_transforms has no key 'hflipp'", "did you mean datamodule.train_transforms.hflip?"],
        ),
        (["datamodule.val_transforms={size: 64, hflipp: 1}"], ["datamodule.val_transforms has no key 'hflipp'"]),
        (
            ["datamodule=landmarks", "datamodule.sample_unit=image", "++datamodule.train_transforms.hflip=a"],
            ["datamodule.train_transforms has no key 'margin'", "datamodule.train_transforms.hflip='a'"],
        ),
        (["workers.num_workers=two", "datamodule.batch_size=abc"], ["num_workers", "batch_size"]),
    ],
    ids=str,
)
def test_misfit_is_reported_with_value_rule_and_remedy(overrides, parts):
    groups = [word for word in overrides if word.startswith(("dataset=", "datamodule="))]
    cfg = composed_once(*groups).copy()
    # Set the keys as Hydra does, without composing a config for each case.
    for word in overrides:
        key, _, value = word.lstrip("+").partition("=")
        if word not in groups:
            OmegaConf.update(cfg, key, yaml.safe_load(value), force_add=True)
    with pytest.raises(ConfigError) as caught:
        validate(cfg)
    for part in parts:
        assert part in str(caught.value)


class Base:
    """The base class of a foreign class."""

    def __init__(self, *, depth: int = 2, most: int = 5) -> None:
        pass


class Foreign(Base):
    """A class of another package that also takes the keywords of its base class."""

    def __init__(self, root: Path, *, names: list[str] | None = None, **keywords: object) -> None:
        super().__init__(**keywords)


def untyped(first, second=None, **others):
    """Return the arguments."""
    return first, second, others


HERE = "tests.app.composition.test_config_checks"


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_foreign_class_is_checked_by_its_signature(arguments, message):
    target = {"_target_": f"{HERE}.Foreign"}
    validate(OmegaConf.create({"dataset": {**target, "root": "a", "names": ["b"], "depth": 3, "most": 4}}))
    cfg = OmegaConf.create({"dataset": {**target, **arguments}})
    with pytest.raises(ConfigError, match=message):
        validate(cfg)


def test_target_without_a_signature_takes_any_key():
    node = {"_target_": f"{HERE}.untyped", "first": 1, "second": "b", "third": {"a": [1]}}
    validate(OmegaConf.create({"dataset": node, "more": {"_target_": "my.Class", "anything": 1}}))


def test_nodes_inside_of_an_unknown_target_are_checked():
    wrong = {"_target_": "lit_loader.transforms.detection_transforms", "train": True, "vflip": "often"}
    with pytest.raises(ConfigError, match=r"dataset\.parts\.0\.vflip='often' should be float"):
        validate(OmegaConf.create({"dataset": {"_target_": "my.Class", "parts": [wrong]}}))


def test_app_may_add_keys_to_the_root():
    validate(OmegaConf.create({"mine": 5, "seed": None, "more": {"x": [1]}}))
