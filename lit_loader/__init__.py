"""Data loading for detection, landmark and classification training: balanced, seeded, exact."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

# A module is imported when one of its names is first used, so `import lit_loader` imports no torch and starts nothing.
# The stub lists the names, one `from MODULE import NAME as NAME` each. Python reads it as well, so that type checkers
# cannot see other names than a program.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes())
_MODULE_BY_NAME: dict[str, str] = {
    node.names[0].name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom)
}

__all__ = sorted(_MODULE_BY_NAME)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value  # later uses of the name do not call `__getattr__`
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
