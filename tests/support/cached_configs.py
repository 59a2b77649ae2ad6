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
# A run of a shipped config is a sweep only if an override says so.
_SHIPPED = ("train", "eval", "predict")
_SWEEPING_WORDS = ("hydra.mode", "hparams_search")


@pytest.fixture(scope="session", autouse=True)
def cached_configs():
    """Parse each text of YAML once, and compose the shipped configs once per run instead of twice.

    Hydra composes a config first to find out whether the run is a sweep. Tests that start a process run it unchanged.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(_load_text))
        patch.setattr(Hydra, "get_mode", _mode_of_words)
        yield


def _load_text(file):
    return pickle.loads(_parse(file.read() if hasattr(file, "read") else Path(file).read_text(encoding="utf-8")))


@cache
def _parse(text):
    # A caller changes its config, and unpickling one takes a third of the time of a deep copy.
    return pickle.dumps(_load(StringIO(text)))


def _mode_of_words(hydra, config_name, overrides):
    if config_name in _SHIPPED and not any(word in override for override in overrides for word in _SWEEPING_WORDS):
        return None
    return _get_mode(hydra, config_name, overrides)
