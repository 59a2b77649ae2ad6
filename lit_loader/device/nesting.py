"""The nested structure of a batch: taken apart and put together again with other leaves.

torch (page-locking) and Lightning (transfer) go through the same containers: mappings, named tuples, tuples and
other sequences keep their type, and what else their objects carry, where that can be done; dataclasses are
Lightning's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final

__all__ = ["NO_LEAF", "rebuilt"]

NO_LEAF: Final = object()
"""What a leaf function returns for an object whose parts, if it has any, are to be looked at."""


def rebuilt(
    data: Any,
    leaf: Callable[[Any], Any],
    *,
    dataclasses: bool = False,
    other: Callable[[Any], Any] | None = None,
) -> Any:
    """Return nested data with every leaf replaced.

    Args:
        data: Any nesting of containers.
        leaf: Returns what replaces an object, or `NO_LEAF`. It is asked for containers too, before their parts.
        dataclasses: Whether the fields of dataclasses are parts; the copy is a shallow one.
        other: Returns what replaces an object that is neither leaf nor container, and what a container carries besides
            its parts; or None if those stay.
    """
    found = leaf(data)
    if found is not NO_LEAF:
        return found
    if isinstance(data, str | bytes):
        return data
    again = partial(rebuilt, leaf=leaf, dataclasses=dataclasses, other=other)
    if isinstance(data, Mapping):
        return _mapping(data, {key: again(part) for key, part in data.items()}, other)
    if isinstance(data, Sequence):
        return _sequence(data, [again(part) for part in data], other)
    if dataclasses and is_dataclass(data) and not isinstance(data, type):
        clone = _clone(data, other)
        for field in fields(data):
            part = again(getattr(data, field.name))
            object.__setattr__(clone, field.name, part)  # frozen ones too: nobody else has the clone yet
        return clone
    return data if other is None else other(data)


def _clone(data: Any, other: Callable[[Any], Any] | None) -> Any:
    """Return a shallow copy, which keeps what a container carries besides its parts."""
    clone = copy.copy(data)
    if other is not None:
        for name, value in list(getattr(clone, "__dict__", {}).items()):
            object.__setattr__(clone, name, other(value))
    return clone


def _mapping(data: Mapping[Any, Any], parts: dict[Any, Any], other: Callable[[Any], Any] | None) -> Any:
    try:
        if isinstance(data, MutableMapping):
            clone = _clone(data, other)
            clone.update(parts)
            return clone
        return type(data)(parts)  # type: ignore[call-arg] # as far as it can be known
    except TypeError:
        return parts


def _sequence(data: Sequence[Any], parts: list[Any], other: Callable[[Any], Any] | None) -> Any:
    if isinstance(data, tuple):
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    try:
        if isinstance(data, MutableSequence):
            clone = _clone(data, other)
            for place, part in enumerate(parts):
                clone[place] = part
            return clone
        return type(data)(parts)  # type: ignore[call-arg] # as far as it can be known
    except TypeError:
        return parts  # a range, say
