"""A set of stretches of memory, none of which overlaps another."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Intervals"]


class Intervals:
    """Stretches of bytes, each from a start to before an end."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Add a stretch; return False, and add nothing, if it overlaps one that is there."""
        at = bisect_right(self._starts, start)
        if (at and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end):
            return False
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        return True
