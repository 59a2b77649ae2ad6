"""Escape text from files for a terminal, a Hydra override or an OmegaConf value, which would act on it."""

from __future__ import annotations

import re

__all__ = ["escape_interpolations", "printable", "quote_for_hydra"]


def printable(text: str) -> str:
    """Return text with everything that a terminal would act on, or cannot show, as an escape sequence."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def escape_interpolations(text: str) -> str:
    """Return text that OmegaConf reads as itself: each ``${`` is escaped, with the backslashes before it."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)


def quote_for_hydra(text: str) -> str:
    """Return text as a quoted value of a Hydra override; Hydra parses it to exactly this text."""
    # Backslashes count before a quote, before "${", which would be looked up, and at the end.
    quoted = re.sub(r"(\\*)('|\$\{|$)", lambda match: match[1] * 2 + ("\\" + match[2]) * bool(match[2]), text)
    return f"'{quoted}'"
