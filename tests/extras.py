"""What a test needs beyond the base install."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["is_installed", "needs"]

PACKAGES = {
    "dev": ["jsonargparse", "scipy"],
    "fast": ["simplejpeg"],
    "hydra": ["hydra", "omegaconf"],
    "optuna": ["hydra_plugins.hydra_optuna_sweeper"],
    "plot": ["matplotlib"],
    "recipes": ["faster_coco_eval"],  # torchmetrics comes with lightning
    "tensorboard": ["tensorboard"],
    "timm": ["timm"],
    "wandb": ["wandb"],
}


def is_installed(extra: str) -> bool:
    """Return whether every package of an extra is there."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def needs(extra: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where an extra is not installed."""
    return pytest.mark.skipif(not is_installed(extra), reason=f"the extra {extra} is not installed")
