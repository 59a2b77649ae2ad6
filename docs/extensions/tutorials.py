"""Order of the tutorials in the gallery.

`docs/conf.py` names `order` by a string: Sphinx stores the settings of a build, and reads every page again if they
cannot be stored.
"""

from __future__ import annotations

from pathlib import Path

TUTORIALS = [
    "txt_lists_to_xml.py",
    "long_tail.py",
    "landmarks_68_points.py",
    "stop_and_resume.py",
    "several_sources.py",
    "own_format.py",
    "slow_run.py",
]


def order(filename: str) -> int:
    """Return the position of a tutorial; those that the list does not name are at the end."""
    name = Path(filename).name
    return TUTORIALS.index(name) if name in TUTORIALS else len(TUTORIALS)
