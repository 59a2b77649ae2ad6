"""Typed schemas of the config groups in ``conf/``, checks against them, and errors that name the remedy.

The shipped YAML files refer to no schema, so that any Hydra app can compose them by
``hydra.searchpath: [pkg://lit_loader.conf]`` without importing this package. An app calls `validate` on
what it composed, and runs its main function through `run_with_hints`; a program without one composes by
`compose_config`. Nothing here imports torch.
"""

from __future__ import annotations

from lit_loader.configs.checks import ConfigError, validate
from lit_loader.configs.compose import build_datamodule, compose_config, worker_override
from lit_loader.configs.hints import run_with_hints
from lit_loader.configs.schemas import GROUPS, RootConfig

__all__ = [
    "ConfigError",
    "GROUPS",
    "RootConfig",
    "build_datamodule",
    "compose_config",
    "run_with_hints",
    "validate",
    "worker_override",
]
