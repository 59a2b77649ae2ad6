"""Names that a recipe is given, and labels that must fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["check_labels", "check_names"]


def check_names(argument: str, names: Sequence[Any]) -> list[str]:
    """Return names as plain strings.

    Args:
        argument: What the caller calls them, for the message.
        names: At least one, all different.

    Raises:
        ValueError: If there is none, or one stands twice.
        TypeError: If ``names`` is one string, whose letters would be taken for names.
    """
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r} is one string; give a list of names")
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{argument}={list(names)} must be different names, at least one")
    return [str(name) for name in names]


def check_labels(labels: Tensor, names: Sequence[str], *, argument: str, first: int, note: str = "") -> None:
    """Refuse labels that stand for none of the names.

    Args:
        labels: int64, any shape.
        names: Label ``first + i`` is ``names[i]``.
        argument: What the recipe calls the names, for the message.
        first: Label of the first name.
        note: A remark on labels below ``first``, for the message.

    Raises:
        ValueError: If a label is out of range.
    """
    if not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    last = first + len(names) - 1
    if low < first or high > last:
        raise ValueError(
            f"labels {low} to {high} must lie in {first} to {last}{note} "
            f"for {argument}={list(names)}; give the data set's own {argument.replace('_', ' ')}"
        )
