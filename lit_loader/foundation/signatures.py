"""Keywords that a function or class accepts, with their annotated types, and checks of values against types."""

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
    """Keywords of a function or class.

    Attributes:
        types: Annotation of each keyword; ``inspect.Parameter.empty`` if it has none.
        is_open: Whether any other keyword is accepted, as by ``**kwargs``.
    """

    types: dict[str, Any]
    is_open: bool


@cache
def signature_of(target: str | Callable[..., Any]) -> Signature | None:
    """Return the keywords of a function or class; None if it cannot be imported or has no signature.

    If the ``__init__`` of a class takes ``**kwargs``, the keywords of its parent classes are included.

    Args:
        target: The function or class, or its dotted name.
    """
    try:
        function: Any = pydoc.locate(target) if isinstance(target, str) else target
        signatures = [_evaluated(function)]
        if inspect.isclass(function):
            signatures = list(_init_signatures(function)) or signatures
    except (pydoc.ErrorDuringImport, ValueError, TypeError):
        return None
    types_by_keyword: dict[str, Any] = {}
    for signature in signatures:
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                hint = parameter.annotation
                # `size: int = None` accepts None, although its annotation does not say so.
                if parameter.default is None and (isinstance(hint, type) or get_origin(hint)):
                    hint = Optional[hint]  # noqa: UP045 # some annotations do not support `|`
                types_by_keyword.setdefault(parameter.name, hint)
    return Signature(types_by_keyword, _takes_any_keyword(signatures[-1]))


def _init_signatures(kind: type) -> Iterator[inspect.Signature]:
    """Yield the signatures, without self, of a class's ``__init__`` and of those that it passes ``**kwargs`` to."""
    for owner in kind.__mro__[:-1]:
        if "__init__" in vars(owner):
            signature = _evaluated(vars(owner)["__init__"])
            yield signature.replace(parameters=list(signature.parameters.values())[1:])
            if not _takes_any_keyword(signature):
                return


def _evaluated(function: Callable[..., Any]) -> inspect.Signature:
    """Return a signature with annotations as types instead of strings."""
    signature = inspect.signature(function)
    try:
        # `inspect.signature(eval_str=True)` does not look through decorators.
        hints = get_type_hints(function)
    except Exception:
        # An annotation may be any text, or a name that is imported only for type checkers.
        return signature
    return signature.replace(
        parameters=[
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
        ]
    )


def _takes_any_keyword(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _union_members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value matches an annotated type.

    An int matches float, and a string matches Path. Values that Hydra builds later (``_target_``, ``${...}``) match any
    type. Types other than strings, numbers, literals, lists, mappings and classes are not checked.
    """
    if (isinstance(value, Mapping) and "_target_" in value) or (isinstance(value, str) and "${" in value):
        return True
    members = _union_members(hint)
    kind = get_origin(hint) or hint
    arguments = get_args(hint)
    if len(members) > 1:
        return any(fits(value, member) for member in members)
    if kind is Literal:
        # The type as well: True == 1.
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    # Most protocols do not support isinstance.
    unchecked = kind in (inspect.Parameter.empty, Any, object) or getattr(kind, "_is_protocol", False)
    if unchecked or not isinstance(kind, type):
        return True
    # A bool is an int for Python, but not in a config.
    if kind in (int, float):
        return isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
    if isinstance(value, str):
        return issubclass(kind, str | PurePath)
    # YAML has no tuples.
    if kind is tuple:
        return isinstance(value, list | tuple)
    if not isinstance(value, kind):
        return False
    if isinstance(value, Mapping):
        # Only strings are checked: a command line makes numbers of text such as `{a: 1}`, which is ambiguous.
        parts = zip(arguments, (list(value), list(value.values())), strict=False)
        return all(fits(item, str) for item_hint, items in parts if item_hint is str for item in items)
    if isinstance(value, list | tuple) and arguments:
        return all(fits(item, arguments[0]) for item in value)
    return True


def type_text(hint: Any) -> str:
    """Return an annotated type as text for messages, such as ``int or 'auto' or null``."""
    members = _union_members(hint)
    if len(members) > 1:
        return " or ".join(dict.fromkeys(map(type_text, members)))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint in (None, type(None)):
        return "null"
    text = str(hint) if get_args(hint) else getattr(hint, "__name__", str(hint))
    # Without module names.
    return re.sub(r"\b(\w+\.)+", "", text)
