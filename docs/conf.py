"""Settings of the documentation site; `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lit_loader
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "lit_loader"
author = "the lit_loader authors"
project_copyright = author
version = lit_loader.__version__
release = version

extensions = [
    "command_help",
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "plain_nodes",
    "public_names",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_markdown_builder",  # used by sphinx_llm: with the same extensions, its second build reads no page again
    "sphinx_llm.txt",
]
exclude_patterns = ["_build", "extensions", "figures"]

# MyST: Markdown pages. Headings down to the third level can be linked to as page.md#heading.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

# API: Google docstrings. `name` in a docstring links to the API where it is one of its names, else it is code.
default_role = "py:obj"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes are a list in the entry of the class
napoleon_use_rtype = False

# Their order is in extensions/tutorials.py.
sphinx_gallery_conf = {
    "examples_dirs": "../examples/tutorials",
    "gallery_dirs": "tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "tutorials.order",
    "image_scrapers": ("matplotlib", "tutorials.returned_figures"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
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
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_search_scorer = str(Path(__file__).parent / "search_ranking.js")
html_math_renderer = "mathml"
# Sections of one page have no navigation.
html_sidebars = {"troubleshooting": [], "contributing": [], "changelog": []}
html_theme_options = {
    "logo": {"text": "lit_loader"},
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

# llms.txt lists the pages with their first sentences, llms-full.txt has all texts, and PAGE.md next to PAGE.html is the
# page as Markdown, to which llms.txt links.
llms_txt_description = (
    "Data loading for PyTorch and Lightning: a DataLoader with torch's arguments whose batches are the same bits for "
    "any number of workers, threads and ranks, exact resume in mid-epoch, class-balanced samplers, readers and writers "
    "of annotation formats (COCO, YOLO, VOC, ...), augmentation with boxes and keypoints, data modules, and a Hydra "
    "app that trains detectors, landmark models and classifiers. Python package: lit_loader; command: lit-loader."
)
llms_txt_suffix_mode = "replace"
# The second build reuses the tutorials that the first one ran.
llms_txt_build_parallel = False
# Pictures of tutorials and descriptions have no text.
llms_txt_suppress_unknown_node_warnings = ["imgsgnode", "meta"]
llms_txt_full_build = True

copybutton_exclude = ".linenos, .gp, .go"


def visit_inline_formula(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula as MathML, which browsers draw without a script."""
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_formula(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula as MathML."""
    self.body.append(
        f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer of formulas."""
    app.add_html_math_renderer(
        "mathml", (visit_inline_formula, None), (visit_formula, None)
    )
