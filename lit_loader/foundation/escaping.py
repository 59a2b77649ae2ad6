"""Escaping of text from files, which a terminal, a shell, a Hydra override or an OmegaConf value would interpret."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = [
    "escape_formula",
    "escape_interpolations",
    "escape_markdown",
    "has_hydra_keys",
    "hydra_value",
    "printable",
    "quote_for_hydra",
    "shell_command",
]

_HYDRA_WORDS: Final = ("null", "true", "false", "nan", "inf")


def printable(text: str) -> str:
    """Replace characters that a terminal would interpret or cannot show by escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def escape_markdown(text: str) -> str:
    """Escape text as one line of Markdown, also in a cell of a table, that shows exactly these characters."""
    escaped = re.sub(r"([\\`*_{}\[\]()<>#+!|~&$@])", r"\\\1", printable(text).replace("\n", "\\n"))
    # A web address becomes a link without brackets.
    return escaped.replace("www.", "www\\.").replace("://", "\\://")


def escape_formula(text: str) -> str:
    """Escape text for a cell of a CSV file, which a spreadsheet would take for a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "'")) else text


def shell_command(words: Iterable[str]) -> str:
    """Return words as one printable line, which bash and zsh read back as exactly these words."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable():
        # shlex writes each single quote as five characters, '"'"'.
        return f'"{word}"' if "'" in word and not set(word) & set('$`\\"!') else shlex.quote(word)
    # Plain quotes would keep a control character, so it becomes bytes in ANSI-C quotes.
    return f"$'{''.join(map(_in_ansi_c_quotes, word))}'"


def _in_ansi_c_quotes(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    # A file name that is not valid UTF-8 has its bytes as surrogates; only JSON has other surrogates.
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def escape_interpolations(text: str) -> str:
    """Escape each ``${``, and the backslashes in front of it, so that OmegaConf reads the text literally."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)


def quote_for_hydra(text: str) -> str:
    """Quote text as a value of a Hydra override, which Hydra parses back to exactly this text."""
    # Hydra reads backslashes as escapes only before a quote, before "${" (an interpolation) and at the end.
    quoted = re.sub(r"(\\*)('|\$\{|$)", lambda match: match[1] * 2 + ("\\" + match[2]) * bool(match[2]), text)
    return f"'{quoted}'"


def hydra_value(value: Any) -> str:
    """Write a value for an override of Hydra; text is quoted unless it is a plain word or path.

    A mapping with keys that Hydra cannot parse, see `has_hydra_keys`, is written for a YAML file.
    """
    if isinstance(value, Mapping) and has_hydra_keys(value):
        return f"{{{', '.join(f'{_escape_key(str(key))}: {hydra_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(hydra_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    # Hydra parses other text as numbers, lists, functions or interpolations.
    if re.fullmatch(r"[./]+|[./]*[A-Za-z_][\w./-]*", value, re.ASCII) and value.lower() not in _HYDRA_WORDS:
        return value
    return quote_for_hydra(value)


def has_hydra_keys(value: Any) -> bool:
    """Return True if Hydra can parse all keys of nested mappings in an override; it parses whole numbers as ints."""
    if not isinstance(value, Mapping):
        return True
    return all(_is_hydra_key(str(key)) and has_hydra_keys(item) for key, item in value.items())


def _is_hydra_key(text: str) -> bool:
    # Hydra parses keys without quotes. All other characters, and quotes, are errors of its grammar.
    if re.fullmatch(r"[\w/\\+.$%*@?|()\[\]{}:=, \t-]+", text, re.ASCII) is None or text.lower() in _HYDRA_WORDS:
        return False
    try:
        float(text)
    except ValueError:
        return True
    # Of other numbers, such as 1e3 or 1.50, the text would be lost.
    return re.fullmatch("0[0-9]*|-?[1-9][0-9]*", text) is not None


def _escape_key(text: str) -> str:
    return re.sub(r"[\\()\[\]{}:=, \t]", lambda match: f"\\{match[0]}", text)
