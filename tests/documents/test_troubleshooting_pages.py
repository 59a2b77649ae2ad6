"""The messages that docs/troubleshooting.md quotes are messages of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.documents import PAGES, ROOT

OWN_SECTIONS, OTHER_SECTIONS = PAGES["troubleshooting"].split("\n## Messages of PyTorch, Lightning and Hydra\n")
# A term of a definition list: a line before one that begins with a colon.
TERMS = re.compile(r"^(`.+)\n: ", re.MULTILINE)


@cache
def texts_of_code():
    """Return all strings of the package, and the fixed parts of its f-strings, as one text."""
    texts = []
    for path in sorted((ROOT / "lit_loader").rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(texts)


def fixed_parts(term):
    """Return the fixed parts of quoted messages; a clause may be a string of its own in the code."""
    quotes = re.findall(r"`([^`]+)`", term)
    parts = [part.strip(" ,;:.()") for quote in quotes for part in re.split(r"\.\.\.|[;,] |=\"\w+\" ", quote)]
    return [part for part in parts if re.search(r"\w{2}", part)]


@pytest.mark.parametrize("term", TERMS.findall(OWN_SECTIONS))
def test_messages_occur_in_the_code(term):
    parts = fixed_parts(term)
    assert parts
    assert [part for part in parts if part not in texts_of_code()] == []


def test_page_lists_the_most_frequent_messages():
    assert len(TERMS.findall(OWN_SECTIONS)) >= 40
    assert len(re.findall(r"^`.+\n: ", OTHER_SECTIONS, re.MULTILINE)) >= 12
