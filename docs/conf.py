"""Settings of the documentation site; `make docs` builds it into docs/_build/html."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx_gallery.sorting import ExplicitOrder

import lit_loader

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "lit_loader"
author = "the lit_loader authors"
project_copyright = author
version = lit_loader.__version__
release = version

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_llm.txt",
]
exclude_patterns = ["_build", "figures"]
suppress_warnings = ["config.cache"]  # the order of tutorials is an object, which cannot be pickled

# MyST: Markdown pages. Headings down to the third level can be linked to as page.md#heading.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

# API: Google docstrings. `name` in a docstring links to the API where it is one of its names, else it is code.
default_role = "py:obj"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Tutorials: scripts with text, run by the build.
TUTORIALS: list[str] = []
sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": ExplicitOrder([*TUTORIALS, "*"]),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 10**6,
    "remove_config_comments": True,
}

# Pictures drawn by the build: docs/figures/NAME.py.
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 144)]
plot_basedir = "figures"

html_theme = "pydata_sphinx_theme"
html_title = "lit_loader"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

llms_txt_build_parallel = False  # the second build reuses the tutorials that the first one ran
llms_txt_suppress_unknown_node_warnings = ["imgsgnode"]  # pictures of tutorials have no text
llms_txt_full_build = True

copybutton_exclude = ".linenos, .gp, .go"


def visit_inline_formula(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula as MathML, which browsers draw without a script."""
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_formula(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula as MathML."""
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (visit_inline_formula, None), (visit_formula, None))
