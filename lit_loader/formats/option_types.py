"""Whether a value that came from a config or a command is of the type that an argument is annotated with."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["fits", "type_text"]


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type.

    A whole number is a float, a truth value is not a number, and a text is not a sequence of texts. Keys and values
    of a mapping are looked at where they are annotated as text.

    Args:
        value: The value.
        hint: A resolved annotation: a class, a union, a ``Literal``, a ``Sequence`` or ``Mapping`` of them; of any
            other generic type, the values inside are not looked at.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in args)
    if origin is Literal:
        return value in args
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str) and _all_fit(value, args[0])
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            hint is not str or _all_fit(parts, str)
            for parts, hint in ((value.keys(), args[0]), (value.values(), args[1]))
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def type_text(hint: Any) -> str:
    """Return an annotated type as text for a message."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(type_text, args)))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is Sequence:
        return f"a list of {type_text(args[0])}"
    if origin is Mapping:
        return f"a mapping of {type_text(args[0])} to {type_text(args[1])}"
    known = {str: "text", bool: "true or false", int: "a whole number", float: "a number", Any: "anything"}
    return "null" if hint is type(None) else known.get(hint) or str(hint.__name__)


def _all_fit(values: Any, hint: Any) -> bool:
    return all(fits(value, hint) for value in values)
