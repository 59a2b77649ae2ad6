"""The data module of a config, for commands that measure its loaders."""

from __future__ import annotations

import argparse

from omegaconf import DictConfig

from lit_loader.app.commands.settings import UsageError, usage_errors
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.datamodules import LoaderDataModule

__all__ = ["loader_datamodule"]


def loader_datamodule(arguments: argparse.Namespace) -> tuple[DictConfig, LoaderDataModule]:
    """Compose the config of a command, and build its data module.

    Args:
        arguments: The arguments of the command, with ``config_dir``, ``config_name`` and ``overrides``.

    Raises:
        UsageError: If the config is wrong, or its data module is not one of lit_loader's.
    """
    with usage_errors():
        cfg = compose_config(arguments.config_dir, arguments.config_name, arguments.overrides)
        datamodule = build_datamodule(cfg)
    if not isinstance(datamodule, LoaderDataModule):
        raise UsageError(
            f"datamodule is a {type(datamodule).__name__}; {arguments.command} measures the loaders of a "
            "lit_loader.datamodules.LoaderDataModule"
        )
    return cfg, datamodule
