"""Directive ``command``: the help of a command of `lit-loader`, taken from its parser when the site is built.

    ```{command} check
    ```

A data command has its usage, its options, the text of its help and its exit codes; its examples are on the page. The
help of ``train``, ``eval`` and ``predict`` is printed by Hydra: groups with their options, and text.
"""

from __future__ import annotations

import argparse
import io
import re
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from docutils import nodes
from docutils.statemachine import StringList
from lit_loader.app.commands import main as run_command
from lit_loader.app.commands.main import _docstring, _parser
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

_COLUMNS = "100"
# An option, a setting, a URL or the name of a file, with the punctuation around it.
_CODE = re.compile(
    r"(\(?)(--?[a-z][\w-]*|[^\s(=]+=[^\s,;:)]*?|\S+://\S*?|\S+\.(?:html|png|json|arrow|tar))([,.;:)]*)"
)


class CommandHelp(SphinxDirective):
    """Help of one command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the help."""
        name = self.arguments[0]
        is_app = name in ("train", "eval", "predict")
        lines = _app_lines(name) if is_app else _data_lines(name)
        container = nodes.container()
        text = ["```{eval-rst}", *lines, "```"]
        self.state.nested_parse(
            StringList(text, source=self.get_source_info()[0]), 0, container
        )
        return container.children


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a data command."""
    for action in _parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[name]
    raise LookupError(name)


def _data_lines(name: str) -> Iterator[str]:
    parser = parser_of(name)
    with patch.dict("os.environ", {"COLUMNS": _COLUMNS}):
        usage = parser.format_usage().removeprefix("usage: ")
    yield from [
        ".. code-block:: text",
        "",
        *(f"   {line}" for line in re.sub(r"\n {7}", "\n", usage).splitlines()),
        "",
    ]
    yield from [f".. program:: lit-loader {name}", ""]
    *paragraphs, codes = _docstring(parser.get_default("run"))[1].split("exit codes: ")
    for paragraph in "".join(paragraphs).split("\n\n"):
        yield from _paragraph(paragraph)
    for title, is_option in (("Arguments", False), ("Options", True)):
        actions = [
            action
            for action in parser._actions
            if bool(action.option_strings) == is_option
        ]
        yield from [f".. rubric:: {title}", ""]
        for action in actions:
            if action.dest != "help":
                yield from _option(action)
    yield from [".. rubric:: Exit codes", ""]
    yield from [".. list-table::", ""]
    # "0 no errors, 1 errors, or warnings under --strict": a code begins with a digit after a comma.
    for code in re.split(r", (?=\d)", " ".join(codes.split()).rstrip(".")):
        number, _, meaning = code.partition(" ")
        yield from [f"   * - {number}", f"     - {_escape(_sentence(meaning))}"]
    yield from ["   * - 130, 143", "     - Stopped by Ctrl-C, or by SIGTERM.", ""]


def _option(action: argparse.Action) -> Iterator[str]:
    """Return the entry of an argument, which the role ``option`` can link to."""
    value = _value(action)
    words = [f"{option} {value}".strip() for option in action.option_strings] or [value]
    text = (action.help or "").replace("%(default)s", str(action.default))
    text = text.replace("%%", "%")
    yield from [
        f".. option:: {', '.join(words)}",
        "",
        f"   {_escape(_sentence(text))}",
        "",
    ]


def _value(action: argparse.Action) -> str:
    """Return the value of an argument as the usage shows it."""
    if action.nargs == 0:
        return ""
    value = action.metavar
    if not isinstance(value, str):
        value = "|".join(map(str, action.choices or ())) or action.dest.upper()
    return f"{value} ..." if action.nargs in ("*", "+") else value


def _app_lines(name: str) -> Iterator[str]:
    output = io.StringIO()
    with redirect_stdout(output):
        run_command([name, "--help"])
    _, groups, *paragraphs = output.getvalue().strip().split("\n\n")
    yield from [
        f".. list-table:: Groups of ``lit-loader {name}`` and their options",
        "   :header-rows: 1",
        "",
    ]
    yield from ["   * - Group", "     - Options"]
    for line in groups.splitlines()[1:]:
        group, _, options = line.partition(": ")
        yield from [
            f"   * - ``{group}``",
            f"     - {', '.join(f'``{option}``' for option in options.split(', '))}",
        ]
    yield ""
    for paragraph in paragraphs:
        yield from _paragraph(paragraph)


def _paragraph(text: str) -> Iterator[str]:
    """Return the reST lines of a paragraph of a help, without examples, which the page has."""
    if text.strip() and not text.startswith("Examples:"):
        yield from [_escape(" ".join(text.split())), ""]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _escape(text: str) -> str:
    """Return a text of a help as reST, with options, settings and patterns as code."""
    return "".join(_word(word) for word in re.split(r"(\s+)", text))


def _word(word: str) -> str:
    match = _CODE.fullmatch(word)
    if match is None:
        return re.sub(r"([\\`*_|])", r"\\\1", word)
    prefix, code, suffix = match.groups()
    return f"{prefix}``{code}``{suffix}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
