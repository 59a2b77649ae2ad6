"""Escaping of text from files, which a terminal, a Hydra override or an OmegaConf value would interpret."""

from __future__ import annotations

import re

__all__ = ["escape_interpolations", "printable", "quote_for_hydra"]


def printable(text: str) -> str:
    """Replace characters that a terminal would interpret or cannot show by escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def escape_interpolations(text: str) -> str:
    """Escape each ``${``, and the backslashes in front of it, so that OmegaConf reads the text literally."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)


def quote_for_hydra(text: str) -> str:
    """Quote text as a value of a Hydra override, which Hydra parses back to exactly this text."""
    # Hydra reads backslashes as escapes only before a quote, before "${" (an interpolation) and at the end.
    quoted = re.sub(r"(\\*)('|\$\{|$)", lambda match: match[1] * 2 + ("\\" + match[2]) * bool(match[2]), text)
    return f"'{quoted}'"
