"""Extras of the package that tests need."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

__all__ = ["absent_extra", "is_installed", "needs"]

PACKAGES = {
    "dev": ["jsonargparse", "scipy"],
    "fast": ["simplejpeg"],
    "hydra": ["hydra", "omegaconf"],
    "joblib": ["hydra_plugins.hydra_joblib_launcher"],
    "optuna": ["hydra_plugins.hydra_optuna_sweeper"],
    "plot": ["matplotlib"],
    "recipes": ["faster_coco_eval"],  # torchmetrics comes with lightning
    "submitit": ["hydra_plugins.hydra_submitit_launcher"],
    "tensorboard": ["tensorboard"],
    "timm": ["safetensors", "timm"],
    "wandb": ["wandb"],
}


def is_installed(extra: str) -> bool:
    """Return True if every package of an extra is installed."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def needs(extra: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test if an extra is not installed."""
    return pytest.mark.skipif(not is_installed(extra), reason=f"the extra {extra} is not installed")


def absent_extra(error: BaseException) -> str | None:
    """Return the extra that an error names if it is not installed; the error of a rank is recognised by its text."""
    match = re.search(r"(\w+) is not installed; install it with `pip install 'lit-loader\[(\w+)\]'`", str(error))
    if match is not None:
        return None if find_spec(match[1]) else match[2]
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return next((extra for extra, packages in PACKAGES.items() if name in packages), None)
