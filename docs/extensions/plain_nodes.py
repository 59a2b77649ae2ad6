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
        if text.endswith(":"):  # the last sentence introduces what follows on the page
            text = text[: text.rfind(". ") + 1] or text
        doctree.insert(0, nodes.meta(name="description", content=text))


def remove_mail_links(app: Sphinx, doctree: nodes.document) -> None:
    """Write metrics such as mAP@50, which docutils takes for mail addresses, as text."""
    for node in list(doctree.findall(nodes.reference)):
        if node.get("refuri", "").startswith("mailto:"):
            node.replace_self(node.children)


def make_plain(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace nodes that only HTML has: the star in signatures, titles and links of cards, links to downloads.

    Pictures are those of the HTML pages, which have the same folders.
    """
    if app.builder.format == "html":
        return
    for node in doctree.findall(nodes.reference):
        if "refuri" not in node and "refid" in node:
            node["refuri"] = f"#{node['refid']}"
    for node in doctree.findall(nodes.image):
        _, name = app.env.images[node["uri"]]
        node["uri"] = f"{'../' * docname.count('/')}_images/{name}"
    for node in list(doctree.findall(nodes.Element)):
        # The gallery puts the note before the title, so it would be the title of the page in llms.txt.
        if {"sphx-glr-download-link-note", "sphx-glr-footer"} & set(node["classes"]):
            node.parent.remove(node)
    for node in list(doctree.findall(nodes.abbreviation)):
        node.replace_self(nodes.Text(node.astext()))
    for node in list(
        doctree.findall(lambda node: type(node).__name__ == "PassthroughTextElement")
    ):
        node.replace_self(nodes.paragraph("", "", nodes.strong("", "", *node.children)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all of them."""
    app.connect("doctree-read", add_description)
    app.connect("doctree-read", remove_mail_links)
    app.connect("doctree-resolved", make_plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
