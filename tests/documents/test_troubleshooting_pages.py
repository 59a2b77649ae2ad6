"""The messages that docs/troubleshooting.md quotes are messages of the code."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.documents import PAGES, ROOT

OWN_SECTIONS, OTHER_SECTIONS = PAGES["troubleshooting"].split("\n## Messages of PyTorch, Lightning and Hydra\n")
# A term of a definition list: a line before one that begins with a colon.
TERMS = re.compile(r"^(`.+)\n: ", re.MULTILINE)


@cache
def source_text():
    """Return the source of the package, with adjacent strings of consecutive lines joined."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "lit_loader").rglob("*.py")))
    return re.sub(r"""["']\n\s*[rf]*["']""", "", text)


def fixed_parts(term):
    """Return the fixed parts of quoted messages; a clause may be a string of its own in the code."""
    quotes = re.findall(r"`([^`]+)`", term)
    parts = [part.strip(" ,;:.()") for quote in quotes for part in re.split(r"\.\.\.|[;,] |=\"\w+\" ", quote)]
    return [part for part in parts if re.search(r"\w{2}", part)]


@pytest.mark.parametrize("term", TERMS.findall(OWN_SECTIONS))
def test_messages_occur_in_the_code(term):
    parts = fixed_parts(term)
    assert parts
    assert [part for part in parts if part not in source_text()] == []


def test_page_lists_the_most_frequent_messages():
    assert len(TERMS.findall(OWN_SECTIONS)) >= 40
    assert len(re.findall(r"^`.+\n: ", OTHER_SECTIONS, re.MULTILINE)) >= 12
