"""The formats and their options as text, for ``--help``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

from lit_loader.formats import Reader, Writer, readers, writers
from lit_loader.formats.registry import format_options

__all__ = ["formats_text"]


def formats_text(*, with_writers: bool) -> str:
    """Return what can be read, and what can be written if asked for, with every option."""
    lines = ["formats to read, and their options:", *_listed(readers())]
    if with_writers:
        lines += ["", "formats to write, and their options:", *_listed(writers())]
    return "\n".join([*lines, ""])


def _listed(kinds: Mapping[str, type[Reader]] | Mapping[str, type[Writer]]) -> list[str]:
    lines = []
    for name, kind in kinds.items():
        text = f"{name}: {kind.description}"
        lines += textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent=" " * 6)
        options = " ".join(_shown(option) for option in format_options(kind).values())
        if options:
            lines += textwrap.wrap(options, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def _shown(option: Field[Any]) -> str:
    if option.default is MISSING and option.default_factory is MISSING:
        return f"{option.name}=(needed)"
    value = option.default if option.default_factory is MISSING else option.default_factory()
    default = "null" if value is None else value
    return f"{option.name}={default!s}" if str(default).strip() else f"{option.name}={default!r}"
