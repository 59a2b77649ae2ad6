"""Order and figures of the tutorials.

`docs/conf.py` names these functions by strings: Sphinx stores the settings of a build, and reads every page again if
they cannot be stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

TUTORIALS = [
    "txt_lists_to_xml.py",
    "several_sources.py",
    "own_format.py",
    "long_tail.py",
    "landmarks_68_points.py",
    "stop_and_resume.py",
    "slow_run.py",
]


def order(filename: str) -> int:
    """Return the position of a tutorial; those that the list does not name are at the end."""
    name = Path(filename).name
    return TUTORIALS.index(name) if name in TUTORIALS else len(TUTORIALS)


def returned_figures(
    block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]
) -> str:
    """Save the figure that a cell assigned to `figure`, if pyplot does not manage it.

    The drawing functions of lit_loader return such figures, which the scraper of pyplot does not find.
    """
    figure = block_vars["example_globals"].get("figure")
    is_new = isinstance(figure, Figure) and not hasattr(figure, "number")
    if not is_new or "figure =" not in block[1]:
        return ""
    path = block_vars["image_path_iterator"].next()
    figure.savefig(path)
    return figure_rst([path], gallery_conf["src_dir"])
