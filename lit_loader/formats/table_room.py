"""How large a table may become in comparison with the files that it is made of."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_ATTRIBUTE_NAMES", "MAX_POINT_NAMES", "lacks_room"]

# NOTE [why cells are bounded]
# A table has a cell for every object and point, and for every object and attribute, though a file may name a
# new one in every object: a file of some megabytes would become a table of gigabytes. So where there are more
# names than any set is known to have, only so many cells are made for each point or value that is written.
MAX_POINT_NAMES: Final = 2_048
MAX_ATTRIBUTE_NAMES: Final = 256
_MANY_NAMES: Final = 128
_FREE_CELLS: Final = 2**22
_CELLS_PER_ENTRY: Final = 64


def lacks_room(*, names: int, objects: int, written: int) -> str | None:
    """Return why a table may not have so many cells, or None; see NOTE [why cells are bounded].

    Args:
        names: Names of points or of attributes.
        objects: Objects, each of which has a cell for every name.
        written: Points or values that the files hold.
    """
    if names <= _MANY_NAMES or names * objects <= max(_FREE_CELLS, _CELLS_PER_ENTRY * written):
        return None
    return f"{names} names for {objects} objects, {written} of them written, make a table far larger than its files"
