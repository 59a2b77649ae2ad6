"""Description of each page for search engines and ``llms.txt``, and plain nodes for the Markdown of each page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def add_description(app: Sphinx, doctree: nodes.document) -> None:
    """Describe a page by its first paragraph, unless it has a description of its own."""
    if any(node.get("name") == "description" for node in doctree.findall(nodes.meta)):
        return
    section = next(iter(doctree.findall(nodes.section)), None)
    paragraphs = [node for node in section or [] if isinstance(node, nodes.paragraph)]
    if paragraphs:
        text = " ".join(paragraphs[0].astext().split())
        doctree.insert(0, nodes.meta(name="description", content=text))


def make_plain(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace nodes that only HTML has: the star in signatures, titles and links of cards, links to downloads."""
    if app.builder.format == "html":
        return
    for node in list(doctree.findall(nodes.note)):
        # The gallery puts it before the title, so it would be the title of the page in llms.txt.
        if "sphx-glr-download-link-note" in node["classes"]:
            node.parent.remove(node)
    for node in list(doctree.findall(nodes.abbreviation)):
        node.replace_self(nodes.Text(node.astext()))
    for node in list(
        doctree.findall(lambda node: type(node).__name__ == "PassthroughTextElement")
    ):
        node.replace_self(nodes.paragraph("", "", nodes.strong("", "", *node.children)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both."""
    app.connect("doctree-read", add_description)
    app.connect("doctree-resolved", make_plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
