"""The tables of docs/migrating/ name arguments, options and keys that exist."""

from __future__ import annotations

import inspect
import re
import shlex
from functools import cache

import pytest
import yaml
from torch.utils.data import DataLoader as TorchDataLoader

import lit_loader
from tests.support.documents import PAGES, ROOT

CONF = ROOT / "conf"
GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()}
TRAINERS = ["ultralytics", "detectron2", "mmdetection"]


@cache
def group_configs(group):
    return [yaml.safe_load(path.read_text()) or {} for path in (CONF / group).glob("*.yaml")]


def has_key(config, keys):
    for key in keys:
        if not isinstance(config, dict) or key not in config:
            return False
        config = config[key]
    return True


def overrides(page):
    """Yield key and value of the overrides of shipped groups in the columns after the first."""
    rows = [line for line in PAGES[f"migrating/{page}"].splitlines() if line.startswith("| ")]
    for code in (code for row in rows for cell in row.split("|")[2:] for code in re.findall(r"`([^`]+)`", cell)):
        for word in shlex.split(code) if code.count("'") % 2 == 0 else []:
            key, separator, value = word.partition("=")
            if separator and re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)*", key) and key.split(".")[0] in GROUPS:
                yield key, value


@pytest.mark.parametrize("page", TRAINERS)
def test_overrides_of_tables_exist(page):
    page_overrides = list(overrides(page))
    assert len(page_overrides) > 20
    for key, value in page_overrides:
        group, *keys = key.split(".")
        if keys:
            assert any(has_key(config, keys) for config in group_configs(group)), key
        else:
            for name in value.strip("[]").split(","):
                assert (CONF / group / f"{name}.yaml").is_file(), f"{key}={value}"


@pytest.mark.parametrize("loader", [TorchDataLoader, lit_loader.DataLoader])
def test_page_on_torchs_loader_lists_every_argument(loader):
    arguments = set(inspect.signature(loader.__init__).parameters) - {"self"}
    assert arguments <= set(re.findall(r"`(\w+)`", PAGES["migrating/torch-dataloader"]))


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("migrating/")])
def test_names_of_the_package_exist(page):
    for name in re.findall(r"`lit_loader\.([A-Z]\w+)", PAGES[page]):
        assert name in lit_loader.__all__, name
