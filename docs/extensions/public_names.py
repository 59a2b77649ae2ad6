"""Directive ``names``: a table of public names of a module, then their entries from docstrings.

The API pages list every name once:

    ```{names} lit_loader.samplers
    aspect_ratio_buckets
    size_buckets
    ```

Classes and functions are entries of autodoc. A constant or type alias is documented by the string that follows it in
the module that defines it, which autodoc does not find through a package that exports it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# Labels of one-line sections in docstrings, whose further lines are indented.
_LABEL = re.compile(r"(Runs in|Owns|Determinism): ")
# Replaces colons while napoleon reads the docstring of a property: it takes the words before one for a type.
_COLON = "\ue000"


class Names(SphinxDirective):
    """Table of names with their first sentences, followed by an entry for each."""

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the table and the entries."""
        module = self.arguments[0]
        names = [line.strip() for line in self.content if line.strip()]
        lines = ["```{eval-rst}", ".. list-table::", "   :class: names", ""]
        for name in names:
            lines += [
                f"   * - :py:obj:`~{module}.{name}`",
                f"     - {_first_sentence(module, name)}",
            ]
        for name in names:
            lines += ["", *_entry(module, name)]
        lines += ["```"]
        container = nodes.container()
        self.state.nested_parse(
            StringList(lines, source=self.get_source_info()[0]), 0, container
        )
        return container.children


def _first_sentence(module: str, name: str) -> str:
    """Return the first line of a docstring, or the first sentence about a constant."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return (inspect.getdoc(value) or "").partition("\n")[0]
    sentences = re.split(r"(?<=[.:;]) ", " ".join(_text(module, name)), maxsplit=1)
    return sentences[0].rstrip(":;")


def _entry(module: str, name: str) -> list[str]:
    """Return the reST lines of an entry."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {module}.{name}"]
    if inspect.isroutine(value):
        return [f".. autofunction:: {module}.{name}"]
    kind = "data" if name.isupper() else "type"
    return [
        f".. py:{kind}:: {module}.{name}",
        "",
        *(f"   {line}" for line in _text(module, name)),
    ]


def _text(module: str, name: str) -> list[str]:
    """Return the lines of the string after a constant or type alias, which a package may only export."""
    value = getattr(import_module(module), name)
    for other in list(sys.modules.values()):
        other_name = getattr(other, "__name__", "")
        if other_name.startswith("lit_loader") and vars(other).get(name) is value:
            attribute_docs = ModuleAnalyzer.for_module(other_name).find_attr_docs()
            if lines := attribute_docs.get(("", name)):
                return lines
    return []


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.reference | None:
    """Link a name that its own module does not export, if exactly one entry of the reference has it.

    ``DataLoader`` in a docstring of `lit_loader.recipes` is `lit_loader.DataLoader`, and so is the
    ``lit_loader.loader.data_loader.DataLoader`` of a type.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    parts = target.split(".")
    # A class and its member, or a single name.
    names = [".".join(parts[-2:]), parts[-1]] if parts[0] == "lit_loader" else [target]
    for name in names:
        full_names = _full_names(env).get(name, [])
        if len(full_names) == 1:
            entry = env.domains.python_domain.objects[full_names[0]]
            return make_refnode(
                app.builder,
                node["refdoc"],
                entry.docname,
                entry.node_id,
                [contnode],
                full_names[0],
            )
    return None


def _full_names(env: BuildEnvironment) -> dict[str, list[str]]:
    """Index the full names of all entries by the last word, or by the last two words for members of a class."""
    index = getattr(env, "_full_names", None)
    if index is None:
        index = defaultdict(list)
        for full_name, entry in env.domains.python_domain.objects.items():
            parts = full_name.split(".")
            if not entry.aliased:
                is_member = entry.objtype in ("attribute", "method", "property")
                key = ".".join(parts[-2:]) if is_member else parts[-1]
                index[key].append(full_name)
        env._full_names = index
    return index


def drop_index(app: Sphinx, env: BuildEnvironment) -> None:
    """Forget the index of names, which must not get into the stored environment."""
    vars(env).pop("_full_names", None)


def skip_tuple_fields(
    app: Sphinx, kind: str, name: str, obj: object, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring lists; their own texts are Python's."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def drop_private_bases(
    app: Sphinx, name: str, obj: object, options: Any, bases: list[Any]
) -> None:
    """Leave out private base classes, which have no entry, if a public one remains."""
    public = [
        base for base in bases if not getattr(base, "__name__", "").startswith("_")
    ]
    bases[:] = public or bases


def labels_to_fields(
    app: Sphinx, kind: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Turn paragraphs such as ``Runs in: workers.`` into fields of the list of parameters."""
    in_field = False
    for number, line in enumerate(lines):
        if _LABEL.match(line):
            in_field = True
            lines[number] = _LABEL.sub(r":\1: ", line)
        elif not line:
            in_field = False
        elif in_field and not line.startswith(" "):
            # The rest of the paragraph belongs to the field.
            lines[number] = f"    {line}"


def hide_colons(
    app: Sphinx, kind: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Replace the colons in the first line about a property."""
    if kind in ("attribute", "property") and lines:
        lines[0] = lines[0].replace(":", _COLON)


def show_colons(
    app: Sphinx, kind: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Undo `hide_colons`."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive and the changes to docstrings."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("names", Names)
    # Napoleon reads docstrings at priority 500.
    app.connect("autodoc-process-docstring", labels_to_fields, priority=400)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)
    app.connect("autodoc-process-bases", drop_private_bases)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    app.connect("env-updated", drop_index)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
