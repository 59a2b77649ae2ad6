"""Optional dependencies, imported when a feature needs them, with an error that says how to install them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """Import and return a module of an optional dependency.

    Args:
        module: Full name, such as ``"matplotlib.figure"``.
        extra: The extra of lit-loader that installs it.

    Raises:
        ImportError: If the dependency is not installed.
        ModuleNotFoundError: If a module that the dependency itself imports is missing; Python's own error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        # The dependency is installed but broken: installing the extra would not help.
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(
            f"{package} is not installed; install it with `pip install 'lit-loader[{extra}]'`", name=package
        ) from error
