"""Hydra without work that it repeats for every run, which is more than half of the time of a small run."""

from __future__ import annotations

import pickle
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra
from omegaconf import OmegaConf

__all__ = ["cached_configs"]

_load = OmegaConf.load
_get_mode = Hydra.get_mode


@pytest.fixture(scope="session", autouse=True)
def cached_configs():
    """Parse each file of YAML once, and compose a config once per run instead of twice.

    Hydra composes a config first to find out whether the run is a sweep. Tests that start a process run it unchanged.
    """
    modes = {}

    def mode_of(hydra, config_name, overrides):
        # Only an option of a group, or Hydra's keys except for its folders, can change whether the config is a sweep.
        words = tuple(word for word in overrides if _may_change_mode(word.partition("=")[0]))
        key = (str(hydra.config_loader.get_search_path()), config_name, words)
        if key not in modes:
            modes[key] = _get_mode(hydra, config_name, overrides)
        return modes[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(_load_text))
        patch.setattr(Hydra, "get_mode", mode_of)
        yield


def _may_change_mode(key):
    if key in ("ckpt_path", "hydra.run.dir", "hydra.sweep.dir"):  # which differ from test to test
        return False
    return key.startswith("hydra.") or "." not in key


def _load_text(file):
    text = file.read() if hasattr(file, "read") else Path(file).read_text(encoding="utf-8")
    return pickle.loads(_parse(text, str(getattr(file, "name", file))))


@cache
def _parse(text, name):
    stream = StringIO(text)
    # Errors in the text name the file.
    stream.name = name
    # A caller changes its config, and unpickling one takes a third of the time of a deep copy.
    return pickle.dumps(_load(stream))
