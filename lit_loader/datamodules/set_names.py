"""Names of the sets of a stage, for the names of metrics and files."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["clean_set_names"]


def clean_set_names(raw_names: Sequence[str]) -> list[str]:
    """Return different names that neither a path nor the name of a metric interprets.

    Args:
        raw_names: A name for each set, in any characters.

    Returns:
        The names, with ``_`` instead of characters other than letters, digits, ``_``, ``-`` and ``.``, the set's number
        if nothing remains, and with that number after a name that occurs before. Such names are returned unchanged.
    """
    names: list[str] = []
    for number, raw_name in enumerate(raw_names):
        name = re.sub(r"[^\w.-]+", "_", raw_name).strip(".") or str(number)
        while name in names:
            name = f"{name}_{number}"
        names.append(name)
    return names
