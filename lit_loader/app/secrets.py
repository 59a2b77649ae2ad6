"""Credentials of stores in a config: masked wherever a run writes its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lit_loader.foundation.files import new_file
from lit_loader.storage.settings import is_public_option

__all__ = ["MASK", "hide_in_run_folder", "is_secret_key", "masked", "secret_keys"]

MASK: Final = "***"
_STORAGE: Final = "storage"
_MIN_LENGTH: Final = 3


def is_secret_key(key: str) -> bool:
    """Return True if a key of a config, such as ``dataset.storage.token``, is of credentials of a store."""
    parts = key.split(".")
    return len(parts) > 1 and parts[-2] == _STORAGE and not is_public_option(parts[-1])


def masked(config: Any, key: str = "") -> Any:
    """Return plain values of a config in which ``***`` replaces the credentials of stores.

    Args:
        config: Nested mappings and lists. A value such as ``${oc.env:NAME}`` that is not resolved stays.
        key: Key of ``config``, with dots.
    """
    if isinstance(config, Mapping):
        return {name: masked(value, f"{key}.{name}") for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [masked(value, f"{key}.0") for value in config]
    return MASK if is_secret_key(key) and _is_literal(config) else config


def hide_in_run_folder(cfg: DictConfig) -> None:
    """Mask the credentials of stores in the files that Hydra has written for this job and its sweep.

    Overrides with credentials are removed from ``overrides.yaml``, so that a command that replays them takes the
    credentials from the environment.

    Raises:
        OSError: If a file cannot be rewritten.
    """
    secrets = sorted({str(value) for value in _secrets(OmegaConf.to_container(cfg, resolve=False))}, key=len)
    if not secrets or not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir, hydra.output_subdir or ".")
    # The longest first, because one secret may contain another one.
    for path in (*folder.glob("*.yaml"), Path(hydra.sweep.dir, "multirun.yaml")):
        if path.is_file():
            content = yaml.safe_load(path.read_text())
            if path.name == "overrides.yaml" and isinstance(content, list):
                content = [word for word in content if not any(secret in str(word) for secret in secrets)]
            text = yaml.safe_dump(_without(content, secrets[::-1]), sort_keys=False, allow_unicode=True)
            # As readable as Hydra's own file.
            with new_file(path, mode=0o666) as file:
                file.write(text.encode())


def _secrets(config: Any, key: str = "") -> Iterator[Any]:
    """Yield the credentials in a config that are written out."""
    items = config.items() if isinstance(config, Mapping) else ((0, value) for value in config)
    for name, value in items:
        if isinstance(value, Mapping | list):
            yield from _secrets(value, f"{key}.{name}")
        elif is_secret_key(f"{key}.{name}") and _is_literal(value):
            yield value


def secret_keys(config: Any, key: str = "") -> Iterator[str]:
    """Yield the keys, with dots, of the credentials of stores that a config holds as plain values.

    Args:
        config: Nested mappings and lists, or a value.
        key: Key of ``config``, with dots.
    """
    if isinstance(config, Mapping):
        for name, value in config.items():
            yield from secret_keys(value, f"{key}.{name}".lstrip("."))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from secret_keys(value, f"{key}.0")
    elif is_secret_key(key) and _is_literal(config):
        yield key


def _is_literal(value: Any) -> bool:
    """Return True if a value is a secret, and not a reference to one."""
    return (
        value is not None and not isinstance(value, bool) and len(str(value)) >= _MIN_LENGTH and "${" not in str(value)
    )


def _without(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {_without(name, secrets): _without(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_without(item, secrets) for item in value]
    text = str(value)
    if not any(secret in text for secret in secrets):
        return value
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
