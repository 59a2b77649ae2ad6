"""The README and the pages of docs/, for tests that run their examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
_BUILT = ("_build", "tutorials")
_PATHS = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in _BUILT)
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text() for path in _PATHS}
"""The text of each page of docs/, by its path in docs/ without extension, such as ``data/formats``."""
TEXTS = {"README": README, **PAGES}
"""The same with the README."""
ALL = "\n".join(TEXTS.values())


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> list[list[str]]:
    """Split each command in shell blocks into words, without comments and redirections."""
    lines = "".join(blocks(text, "bash")).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[: words.index(">")] if ">" in words else words for words in commands if words]


def commands(text: str, program: str) -> list[list[str]]:
    """Return the words after ``program``, such as ``lit-loader train``, of each command in shell blocks."""
    prefix = program.split()
    return [words[len(prefix) :] for words in shell_lines(text) if words[: len(prefix)] == prefix]
