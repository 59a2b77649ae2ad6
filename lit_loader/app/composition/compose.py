"""Compose a run's config outside of a ``@hydra.main`` function, and build its data module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lit_loader.app.composition.checks import ConfigError, validate
from lit_loader.app.composition.hints import SHIPPED, explain, normalize_words
from lit_loader.foundation.escaping import hydra_value, quote_for_hydra

__all__ = ["build_datamodule", "compose_config", "worker_override"]


def compose_config(
    config_dir: Path | str | None = None, config_name: str = "train", overrides: Sequence[str] = ()
) -> DictConfig:
    """Compose a config as ``@hydra.main`` would, and check it against the signatures of its targets.

    Args:
        config_dir: Folder of the config, or None for the shipped configs. If it lacks a shipped ``config_name``, its
            groups are added to the shipped ones, as by ``lit-loader train --config-dir``.
        config_name: Name of the config.
        overrides: Overrides such as ``sampler=random`` or ``datamodule.batch_size=8``.

    Raises:
        ConfigError: If the config cannot be composed, or does not fit its targets; the message gives the remedy.
    """
    # Hydra has one global state, which a second composition would replace.
    if GlobalHydra.instance().is_initialized():
        raise ConfigError("this process is already composing a config; compose one after the other")
    words = normalize_words(overrides)
    folder = (SHIPPED if config_dir is None else Path(config_dir)).absolute()
    file_name = f"{config_name}.yaml"
    if folder.is_dir() and not (folder / file_name).is_file() and (SHIPPED / file_name).is_file():
        # Hydra uses only the last of several search paths.
        if any(word.lstrip("+").startswith("hydra.searchpath=") for word in words):
            raise ConfigError(
                f"hydra.searchpath replaces the search path of the config folder {config_dir}, which has no "
                f"{file_name}; leave out one of them: hydra.searchpath=[file://FOLDER,file://FOLDER] takes several"
            )
        words = [f"hydra.searchpath=[{quote_for_hydra(f'file://{folder}')}]", *words]
        folder = SHIPPED.absolute()
    try:
        with initialize_config_dir(str(folder), version_base="1.3", job_name=config_name):
            cfg = compose(config_name, overrides=words)
            validate(cfg)
            return cfg
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, config_name=config_name)) from error


def build_datamodule(cfg: DictConfig) -> Any:
    """Build the data module of a config, from its node ``datamodule``.

    Raises:
        ConfigError: If the config has no such node, or the constructor refuses a value.
    """
    if "datamodule" not in cfg:
        keys = ", ".join(map(str, cfg)) or "none"
        raise ConfigError(f"the config has no key 'datamodule'; its keys: {keys}")
    try:
        return instantiate(cfg.datamodule, _convert_="all")
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error


def worker_override(cfg: DictConfig, name: str, value: object) -> str:
    """Return the override for a worker setting of a config's data module, under the key where that config keeps it."""
    text = hydra_value(value)
    if name in cfg.datamodule:  # num_workers next to workers, which it overrides
        return f"datamodule.{name}={text}"
    has_settings = "workers" in cfg.datamodule
    # The shipped data modules take their worker settings from the group `workers`.
    if has_settings and "workers" in cfg and OmegaConf.is_interpolation(cfg.datamodule, "workers"):
        return f"workers.{name}={text}"
    is_present = has_settings and name in (cfg.datamodule.workers or {})
    return f"{'' if is_present else '+'}datamodule.workers.{name}={text}"
