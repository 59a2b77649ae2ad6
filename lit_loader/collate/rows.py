"""Fields of targets as plain tensors, for batches whose fields are known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["check_attribute_names", "field_rows"]


def check_attribute_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of attributes as a tuple.

    Raises:
        ValueError: A name stands twice.
        TypeError: The names are one string.
    """
    if isinstance(names, str):
        raise TypeError(f"attributes={names!r} is one string; give a list of names.")
    if len(set(names)) != len(names):
        raise ValueError(f"attributes={list(names)} holds a name twice; name each once.")
    return tuple(names)


def field_rows(target: Any, name: str) -> Tensor:
    """Return a per-object field of a target as a plain tensor, ``(N, ...)``.

    Raises:
        TypeError: The target is no mapping, or the field no tensor with rows.
        ValueError: The target has no such field.
    """
    if not isinstance(target, Mapping):
        raise TypeError(f"a target is a {type(target).__name__}; the rule is a dict of fields.")
    if name not in target:
        raise ValueError(
            f"a target has no field {name!r}, only {sorted(target)}; ask the data set for it "
            "(keypoints=True, attributes=[...]) and keep it in the transforms."
        )
    value = target[name]
    if not isinstance(value, Tensor) or value.ndim == 0:
        found = "a 0-d tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"field {name!r} of a target is {found}; the rule is a tensor with one row an object."
        )
    return value.as_subclass(Tensor)
