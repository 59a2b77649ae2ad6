"""What a function or a class takes, read from its signature, and whether a value is of an annotated type."""

from __future__ import annotations

import inspect
import pydoc
import re
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

__all__ = ["Signature", "fits", "signature_of", "type_text"]


class Signature(NamedTuple):
    """What a function or a class takes by keyword.

    Attributes:
        types: The annotation of each keyword; ``inspect.Parameter.empty`` without one.
        is_open: Whether it takes any other keyword too.
    """

    types: dict[str, Any]
    is_open: bool


@cache
def signature_of(target: str | Callable[..., Any]) -> Signature | None:
    """Return what a function or class, or one of a dotted name, takes; None if it cannot be imported or says nothing.

    A class whose ``__init__`` takes ``**keywords`` takes what its parents take.
    """
    try:
        target_object: Any = pydoc.locate(target) if isinstance(target, str) else target
        signatures = [_evaluated(target_object)]
        if inspect.isclass(target_object):
            signatures = list(_init_signatures(target_object)) or signatures
    except (pydoc.ErrorDuringImport, ValueError, TypeError):
        return None
    found: dict[str, Any] = {}
    for signature in signatures:
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                hint = parameter.annotation
                if parameter.default is None and (isinstance(hint, type) or get_origin(hint)):
                    hint = Optional[hint]  # noqa: UP045 # a value, which | does not take for every annotation
                found.setdefault(parameter.name, hint)
    return Signature(found, _takes_any(signatures[-1]))


def _init_signatures(kind: type) -> Iterator[inspect.Signature]:
    """Yield the signatures of a class's ``__init__`` and of those that its ``**keywords`` go to, without self."""
    for owner in kind.__mro__[:-1]:
        if "__init__" in vars(owner):
            signature = _evaluated(vars(owner)["__init__"])
            yield signature.replace(parameters=list(signature.parameters.values())[1:])
            if not _takes_any(signature):
                return


def _evaluated(function: Callable[..., Any]) -> inspect.Signature:
    """Return a signature with its annotations as types; ``eval_str`` passes over one that a decorator has made."""
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function)
    except Exception:  # an annotation may be any text, or name what is imported for type checkers only
        return signature
    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[each.replace(annotation=hints.get(each.name, each.annotation)) for each in parameters]
    )


def _takes_any(signature: inspect.Signature) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type.

    A whole number is a float, and text is a path. What is built later (``_target_``, ``${...}``) and types other than
    text, numbers, literals, lists, mappings and classes are not looked at.
    """
    if (isinstance(value, Mapping) and "_target_" in value) or (isinstance(value, str) and "${" in value):
        return True
    members, kind, arguments = _members(hint), get_origin(hint) or hint, get_args(hint)
    if len(members) > 1:
        return any(fits(value, member) for member in members)
    if kind is Literal:
        return any(value == word and type(value) is type(word) for word in arguments)
    unchecked = kind in (inspect.Parameter.empty, Any, object) or getattr(kind, "_is_protocol", False)
    if unchecked or not isinstance(kind, type):
        return True
    if kind in (int, float):
        return isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
    if isinstance(value, str):
        return issubclass(kind, str | PurePath)
    if kind is tuple:
        return isinstance(value, list | tuple)
    if not isinstance(value, kind):
        return False
    if isinstance(value, Mapping):  # a command's keys and values are text that an option may make a number of
        parts = zip(arguments, (list(value), list(value.values())), strict=False)
        return all(fits(part, hint) for hint, each in parts if hint is str for part in each)
    return not isinstance(value, list | tuple) or all(
        fits(part, hint) for hint in arguments[:1] for part in value
    )


def type_text(hint: Any) -> str:
    """Return an annotated type as a message names it: ``int or 'auto' or null``."""
    if len(_members(hint)) > 1:
        return " or ".join(dict.fromkeys(map(type_text, _members(hint))))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint in (None, type(None)):
        return "null"
    text = str(hint) if get_args(hint) else getattr(hint, "__name__", str(hint))
    return re.sub(r"\b(\w+\.)+", "", text)  # without modules
