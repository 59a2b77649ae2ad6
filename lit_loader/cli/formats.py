"""The formats and their options as text, for ``--help``."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping

from lit_loader.formats.registry import READERS, WRITERS, FormatFunction

__all__ = ["formats_text"]


def formats_text(*, writers: bool) -> str:
    """Return what can be read, and what can be written if asked for, with every option."""
    told = ["formats to read, and their options:", *_listed(READERS)]
    if writers:
        told += ["", "formats to write, and their options:", *_listed(WRITERS)]
    return "\n".join([*told, ""])


def _listed(entries: Mapping[str, FormatFunction]) -> list[str]:
    lines = []
    for name, entry in entries.items():
        lines += textwrap.wrap(
            f"{name}: {entry.description}", 100, initial_indent="  ", subsequent_indent=" " * 6
        )
        options = " ".join(_shown(parameter) for parameter in entry.options().values())
        if options:
            lines += textwrap.wrap(options, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def _shown(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return f"{parameter.name}=(needed)"
    default = "null" if parameter.default is None else parameter.default
    return f"{parameter.name}={default!s}" if str(default).strip() else f"{parameter.name}={default!r}"
