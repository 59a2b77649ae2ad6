"""Typed schemas of the config groups in ``conf/``, checks against them, and errors that name the remedy.

The shipped YAML files refer to no schema, so that any Hydra app can compose them by
``hydra.searchpath: [pkg://lit_loader.conf]`` without importing this package. An app calls `validate` on
what it composed, and runs its main function through `run_with_hints`. Nothing here imports torch.
"""

from __future__ import annotations

from lit_loader.configs.checks import ConfigError, validate
from lit_loader.configs.hints import run_with_hints
from lit_loader.configs.schemas import GROUPS, RootConfig

__all__ = ["ConfigError", "GROUPS", "RootConfig", "run_with_hints", "validate"]
