"""Hints: an app's main function run so that a mistake in its config ends with the remedy, not a traceback."""

from __future__ import annotations

import difflib
import os
import re
import select
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hydra.errors import HydraException, InstantiationException
from omegaconf.errors import OmegaConfBaseException

from lit_loader.configs.checks import ConfigError, unknown_key
from lit_loader.configs.schemas import GROUPS, NODES, OPTIONS, TrainerConfig

__all__ = ["run_with_hints", "what_is_wrong"]

_TOP = [*GROUPS, "experiment", *(item.name for item in fields(NODES[""][0]))]
_POINTERS = {
    "datamodule.source": "dataset",
    "datamodule.train_sampler": "sampler",
    "datamodule.train_batching": "batching",
}


def run_with_hints(main: Callable[[], Any]) -> None:
    """Run a ``@hydra.main`` function; an error in the config ends it with a message and no traceback.

    Hydra lists the options of a group that does not have the one asked for; this adds what is meant by a
    key that does not exist, and which node of the config gave a constructor what it refuses. With
    ``HYDRA_FULL_ERROR=1`` in the environment errors are raised as they are. A reader of the output that
    leaves early (``--help | head``) ends the run quietly.
    """
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints and exits by itself
    try:
        main()
        sys.stdout.flush()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        if before == "1":
            raise
        sys.stderr.write(f"error in the config: {what_is_wrong(error)}\n")
        sys.exit(1)
    except BrokenPipeError:
        if not _reader_left():  # some other pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(1)
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _reader_left() -> bool:
    if not hasattr(select, "poll"):
        return True  # it cannot be asked there; a broken pipe of a command is nearly always its output
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def what_is_wrong(error: Exception) -> str:
    """Return what an error of Hydra's, of OmegaConf's or of the checks says, with the remedy where one is known."""
    refused = re.search(r"Could not override '([\w.]+)'", str(error))
    if refused is not None:
        return _hint(refused[1]) or str(error)
    node = re.search(r"^full_key: (\S+)", str(error), re.MULTILINE)
    if isinstance(error, InstantiationException) and node is not None and error.__cause__ is not None:
        return f"{node[1]}: {error.__cause__} (HYDRA_FULL_ERROR=1 shows the traceback)"
    return str(error)


def _hint(key: str) -> str | None:
    """Return what is wrong with a key that Hydra did not find, by the first part of it that no schema has."""
    parts = key.split(".")
    if parts[0] not in _TOP:
        return _unknown_at_the_top(parts)
    for depth, name in enumerate(parts[1:], start=1):
        node = ".".join(parts[:depth])
        if node in _POINTERS:
            pointed = ".".join([_POINTERS[node], *parts[depth:]])
            return f"{node} points to the group {_POINTERS[node]}; set {pointed}"
        if node not in NODES:
            return None  # free-form, as dataset.policy: Hydra's own advice is right
        known = list(dict.fromkeys(item.name for schema in NODES[node] for item in fields(schema)))
        if name not in known:
            more = f"; +{key}=VALUE adds another of its arguments" if TrainerConfig in NODES[node] else ""
            return unknown_key(node, name, known) + more
    return _not_in_this_config(key)


def _unknown_at_the_top(parts: list[str]) -> str:
    leaves: dict[str, list[str]] = {}
    for group in GROUPS:
        for name in dict.fromkeys(item.name for schema in NODES[group] for item in fields(schema)):
            leaves.setdefault(name, []).append(f"{group}.{name}")
    meant = ""
    for close in difflib.get_close_matches(parts[0], [*_TOP, *leaves], n=1, cutoff=0.6):
        found = [close] if close in _TOP else leaves[close]
        meant = "did you mean " + " or ".join(".".join([name, *parts[1:]]) for name in found) + "? "
    key = ".".join(parts)
    return f"there is no key {key!r}; {meant}At the top: {', '.join(_TOP)}; +{key}=VALUE adds one of your own"


def _not_in_this_config(key: str) -> str | None:
    node, _, name = key.rpartition(".")
    if not node:
        return None
    owners = [schema for schema in NODES[node] if name in {item.name for item in fields(schema)}]
    if len(owners) < len(NODES[node]):
        choices = " or ".join(dict.fromkeys(OPTIONS[schema] for schema in owners))
        return f"{key} belongs to {choices}; choose it with {choices}"
    whole = f"; where {node} is null, {node}='{{{name}: VALUE}}'" if "." in node else ""
    return f"{key} is not in this config; add it with +{key}=VALUE{whole}"
