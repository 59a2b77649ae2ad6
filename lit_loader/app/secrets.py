"""Credentials in configs and overrides: masked wherever a run shows or stores them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lit_loader.foundation.files import new_file
from lit_loader.foundation.masking import MASK, is_secret_name, mask_addresses
from lit_loader.storage.settings import is_public_option

__all__ = [
    "credential_keys",
    "hide_in_run_folder",
    "is_secret_key",
    "masked",
    "masked_override",
    "override_credential_keys",
]

_STORAGE: Final = "storage"
# The default of a variable may be a secret.
_REFERENCE: Final = re.compile(r"(?:\$\{[\w.:]+)+(?:,null)?\}+")


def is_secret_key(key: str) -> bool:
    """Return True if a key of a config, such as ``dataset.storage.token``, is of credentials of a store."""
    parts = key.split(".")
    # Values below such a key are secrets, for example headers.
    return any(part == _STORAGE and not is_public_option(name) for part, name in pairwise(parts))


def masked(config: Any, key: str = "") -> Any:
    """Return plain values of a config in which ``***`` replaces the credentials of stores and in addresses.

    Args:
        config: Nested mappings and lists. A value such as ``${oc.env:NAME}`` that is not resolved stays.
        key: Key of ``config``, with dots.
    """
    if isinstance(config, Mapping):
        return {name: masked(value, f"{key}.{name}") for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [masked(value, f"{key}.0") for value in config]
    if is_secret_key(key) and _is_literal(config):
        return MASK
    return mask_addresses(config) if isinstance(config, str) else config


def credential_keys(config: Any, key: str = "") -> Iterator[str]:
    """Yield the keys, with dots, of the credentials of stores in a config, except references to variables.

    Args:
        config: Nested mappings and lists, or a value.
        key: Key of ``config``, with dots.
    """
    if isinstance(config, Mapping):
        for name, value in config.items():
            yield from credential_keys(value, f"{key}.{name}".lstrip("."))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from credential_keys(value, f"{key}.0")
    elif is_secret_key(key) and _is_literal(config):
        yield key


def override_credential_keys(word: str) -> list[str]:
    """Return the keys of the credentials of stores in an override, which may be one of a sweep."""
    # Parsing takes a while.
    if _STORAGE not in word:
        return []
    try:
        override = OverridesParser.create().parse_override(word)
    # Hydra's parser is recursive.
    except (HydraException, RecursionError):
        return [word.partition("=")[0]]
    values = override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
    return [key for value in values for key in credential_keys(value, override.key_or_group)]


def masked_override(word: str) -> str:
    """Return an override without passwords: ``***`` replaces a value with a secret key, and the login of an address."""
    return _masked_value(word) if _sets(word, is_secret_key, is_secret_name) else mask_addresses(word)


def hide_in_run_folder(cfg: DictConfig) -> None:
    """Mask credentials of stores and in addresses in the files that Hydra has written for this job and its sweep.

    Overrides with credentials of stores are removed from ``overrides.yaml``, so that a command that replays them takes
    the credentials from the environment.

    Raises:
        OSError: If a file cannot be rewritten.
    """
    if not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    plain = OmegaConf.to_container(cfg, resolve=False)
    # Iterating over the list would resolve `${oc.env:NAME}` in an override.
    words: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    if masked(plain) == plain and not any(map(override_credential_keys, words)):
        return
    # Without this folder Hydra writes no files of the job.
    folder = Path(hydra.runtime.output_dir, hydra.output_subdir) if hydra.output_subdir else None
    files = () if folder is None else folder.glob("*.yaml")
    for path in (*files, Path(hydra.sweep.dir, "multirun.yaml")):
        if path.is_file():
            content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            if path.name == "overrides.yaml":
                content = [word for word in content if not override_credential_keys(str(word))]
            text = OmegaConf.to_yaml(OmegaConf.create(_without_credentials(masked(content))))
            # As readable as Hydra's own file.
            with new_file(path, mode=0o666) as file:
                file.write(text.encode())


def _without_credentials(config: Any, *, in_overrides: bool = False) -> Any:
    """Mask the credentials of stores in the overrides that Hydra's own settings contain."""
    if isinstance(config, dict):
        config = {
            name: _without_credentials(value, in_overrides=in_overrides or name == "overrides")
            for name, value in config.items()
        }
        # All overrides in one text, with commas between them.
        return config | ({"override_dirname": MASK} if "override_dirname" in config else {})
    if isinstance(config, list):
        return [_without_credentials(value, in_overrides=in_overrides) for value in config]
    return _masked_value(config) if in_overrides and override_credential_keys(str(config)) else config


def _sets(word: str, *rules: Callable[[str], bool]) -> bool:
    """Return True if an override sets a value with a secret key, or if its keys are unknown."""
    key, _, value = word.partition("=")
    if not value:
        return False
    try:
        parsed = OverridesParser.create().parse_override(word)
        if parsed.is_sweep_override():
            return True
        keys = list(_keys(key.lstrip("+~"), parsed.value()))
    # Hydra's parser is recursive.
    except (HydraException, RecursionError):
        return True
    return any(rule(name) for name in keys for rule in rules)


def _masked_value(word: str) -> str:
    return f"{word.partition('=')[0]}={MASK}"


def _keys(key: str, value: object) -> Iterator[str]:
    """Yield the key of every value that is text or a number, also of nested values."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _keys(f"{key}.{name}", item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(key, item)
    # A reference to an environment variable is not a secret.
    elif value is not None and not isinstance(value, bool) and (_is_literal(value) or not is_secret_key(key)):
        yield key


def _is_literal(value: Any) -> bool:
    """Return True if a value may be a secret, and not a reference to one."""
    return value is not None and not isinstance(value, bool) and not _REFERENCE.fullmatch(str(value))
