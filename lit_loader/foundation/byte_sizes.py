"""Numbers of bytes as text, such as ``"8 GiB"``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["byte_count", "byte_words"]

_AMOUNT: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*(?:(?:([kmgt])(i)?)?b)?\s*", re.IGNORECASE)


def byte_count(budget: int | str | None, *, argument: str = "cache_budget") -> int | None:
    """Convert a budget to a number of bytes.

    Args:
        budget: A number of bytes, a string such as ``"8 GiB"`` or ``"500 MB"``, or None.
        argument: Name of the setting, for the message.

    Raises:
        ValueError: ``budget`` is not such a number or string, or is not positive.
    """
    if budget is None:
        return None
    count = budget if type(budget) is int else 0
    if isinstance(budget, str) and (match := _AMOUNT.fullmatch(budget)):
        number, prefix, binary = match.groups()
        count = int(float(number) * (1024 if binary else 1000) ** " kmgt".index((prefix or " ").lower()))
    if count < 1:
        rule = "is not a positive number of bytes"
        raise ValueError(f'{argument}={budget!r} {rule}; give an int, or a string such as "8 GiB".')
    return count


def byte_words(count: int) -> str:
    """Format a number of bytes with a binary unit, such as ``"1.5 GiB"``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
