"""Checks of a composed config against the schemas: unknown, missing and mistyped keys, all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field, fields
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ValidationError

from lit_loader.configs.schemas import PRESETS, TARGETS, RootConfig, TrainerConfig, WorkersConfig

__all__ = ["ConfigError", "unknown_key", "validate"]

# Here keys without a schema are let through: an app's root has keys of its own, and the Trainer, which has
# many more arguments than its schema, refuses what it does not know.
_OPEN = frozenset({RootConfig, TrainerConfig})


class ConfigError(ValueError):
    """A composed config does not fit the schemas; the message lists every misfit with its remedy."""


def validate(cfg: DictConfig) -> None:
    """Check a composed config against the schemas: its root, ``workers``, and every ``_target_`` of ours.

    A node whose ``_target_`` is not ours is left alone, what stands in it is not.

    Raises:
        ConfigError: If a key is unknown, missing, or of the wrong type; lists all of them.
    """
    misfits = list(_misfits("", cfg))
    if misfits:
        raise ConfigError("\n".join(misfits))


def _misfits(path: str, node: DictConfig | ListConfig, preset: type | None = None) -> Iterator[str]:
    schema = _schema(path, node) or preset if isinstance(node, DictConfig) else None
    if isinstance(node, DictConfig) and schema is not None:
        yield from _own_misfits(path, node, schema)
    for key, child in _children(node):
        yield from _misfits(_joined(path, key), child, _preset(node, key, child))


def _children(node: DictConfig | ListConfig) -> Iterator[tuple[str, DictConfig | ListConfig]]:
    """Yield the nodes that stand in a node; one that is pointed to is checked where it stands."""
    keys: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        if not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key):
            child = node[key]
            if isinstance(child, DictConfig | ListConfig):
                yield str(key), child


def _schema(path: str, node: DictConfig) -> type | None:
    if "_target_" in node:
        return TARGETS.get(str(node["_target_"]))
    return {"": RootConfig, "workers": WorkersConfig}.get(path)


def _preset(node: DictConfig | ListConfig, key: str, child: DictConfig | ListConfig) -> type | None:
    """Return the schema of a data module's transforms that are given as keywords of its preset."""
    if not isinstance(node, DictConfig) or not isinstance(child, DictConfig) or "_target_" in child:
        return None
    target = str(node.get("_target_", ""))
    own = PRESETS.get((target, None)) or PRESETS.get((target, str(node.get("sample_unit"))))
    return own if key.endswith("_transforms") else None


def _own_misfits(path: str, node: DictConfig, schema: type) -> Iterator[str]:
    known = {item.name: item for item in fields(schema)}
    given = {
        name: node[name]
        for name in map(str, node)
        if name in known
        and not OmegaConf.is_missing(node, name)
        and not OmegaConf.is_interpolation(node, name)
    }
    all_fit = _fit_types(schema, given)  # one merge for all keys: it takes 4 ms
    for key in node:
        name = str(key)
        if name.startswith("_") and name.endswith("_"):
            continue
        if name not in known:
            if schema not in _OPEN:
                yield unknown_key(path, name, list(known))
        elif OmegaConf.is_missing(node, name):
            yield f"{_joined(path, name)} is missing; pass {_joined(path, name)}=VALUE"
        elif name in given:
            value, words = given[name], known[name].metadata.get("words", ())
            is_word = not words or not isinstance(value, str) or value in words
            if not is_word or not (all_fit or _fit_types(schema, {name: value})):
                yield f"{_joined(path, name)}={value!r} should be {_wanted(known[name], words)}"


def _fit_types(schema: type, given: dict[str, Any]) -> bool:
    """Return whether OmegaConf takes the values for the fields of a schema."""
    try:
        OmegaConf.merge(OmegaConf.structured(schema), given)
    except ValidationError:
        return False
    return True


def _wanted(item: Field[Any], words: Sequence[str]) -> str:
    """Return what a key takes: its type, or the only words that it takes as text."""
    listed = " or ".join(map(repr, words))
    if not words:
        return f"of type {item.type}"
    return f"of type int or {listed}" if "int" in str(item.type) else listed


def unknown_key(path: str, name: str, known: list[str]) -> str:
    """Return what to say of a key that a node of a config does not have, with the closest that it has."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"did you mean {_joined(path, close[0])}? " if close else ""
    return f"{path} has no key {name!r}; {meant}Its keys: {', '.join(known) or 'none'}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
