"""Counts as text, such as ``"1 worker"``."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an ``s`` for every number but 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
