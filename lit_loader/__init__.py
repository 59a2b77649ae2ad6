"""Data loading for detection, landmark and classification training: balanced, seeded, exact.

Names are imported when first asked for, so that ``import lit_loader`` starts nothing and costs nothing. They stand with
their modules in ``__init__.pyi``, one ``from MODULE import NAME as NAME`` a line: type checkers read it, and so does
this module.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\S+) as", _STUB, re.MULTILINE)}

__all__ = sorted(_HOMES)
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
