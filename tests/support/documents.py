"""The README and the pages of docs/, for tests that run their examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
"""The text of each page of docs/, by its name without extension."""
ALL = "\n".join([README, *PAGES.values()])


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str, program: str) -> list[list[str]]:
    """Return the words after ``program``, such as ``lit-loader train``, of each command in shell blocks."""
    lines = "".join(blocks(text, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    prefix = program.split()
    return [command[len(prefix) :] for command in words if command[: len(prefix)] == prefix]
