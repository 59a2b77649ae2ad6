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
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


class Names(SphinxDirective):
    """Table of names with their first sentences, followed by an entry for each."""

    has_content = True
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the table and the entries."""
        module = self.arguments[0]
        names = [line.strip() for line in self.content if line.strip()]
        lines = ["```{eval-rst}", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {module}.{name}" for name in names]
        for name in names:
            lines += ["", *_entry(module, name)]
        lines += ["```"]
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.get_source_info()[0]), 0, container)
        return container.children


def _entry(module: str, name: str) -> list[str]:
    """Return the reST lines of an entry."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {module}.{name}"]
    if inspect.isroutine(value):
        return [f".. autofunction:: {module}.{name}"]
    home = _home(module, name)
    text = ModuleAnalyzer.for_module(home).find_attr_docs().get(("", name), [])
    kind = "data" if name.isupper() else "type"
    return [f".. py:{kind}:: {module}.{name}", "", *(f"   {line}" for line in text)]


def _home(module: str, name: str) -> str:
    """Return the module that assigns a constant, which the package exports."""
    found = [
        other.__name__
        for other in list(sys.modules.values())
        if getattr(other, "__name__", "").startswith("lit_loader.")
        and vars(other).get(name) is getattr(import_module(module), name)
        and ("", name) in ModuleAnalyzer.for_module(other.__name__).find_attr_docs()
    ]
    return min(found, key=len, default=module)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.reference | None:
    """Link the name of a docstring that its own module does not export, if only one entry has it.

    ``DataLoader`` in a docstring of `lit_loader.recipes` is `lit_loader.DataLoader`, and so is the
    ``lit_loader.loader.loader.DataLoader`` of a type.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    target = node["reftarget"].removesuffix("()")
    parts = target.split(".")
    # A class and its member, or one name.
    names = [".".join(parts[-2:]), parts[-1]] if parts[0] == "lit_loader" else [target]
    for name in names:
        matches = [
            full_name
            for full_name, entry in domain.objects.items()
            if full_name.endswith(f".{name}") and not entry.aliased and full_name.count(".") <= name.count(".") + 3
        ]
        if len(matches) == 1:
            entry = domain.objects[matches[0]]
            from sphinx.util.nodes import make_refnode

            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, [contnode], matches[0])
    return None


def skip_tuple_fields(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring lists; their own texts are Python's."""
    return True if inspect.isdatadescriptor(obj) and type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.setup_extension("sphinx.ext.autosummary")  # loads autodoc
    app.add_directive("names", Names)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
