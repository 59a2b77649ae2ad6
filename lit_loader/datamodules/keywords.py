"""Keywords of a data module: flat fields of settings, unknown names, and what a checkpoint can keep of them."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from numbers import Integral, Real
from pathlib import PurePath
from types import EllipsisType, FrameType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lit_loader.datasets import CacheSettings

__all__ = [
    "check_number",
    "check_own_arguments",
    "check_type",
    "flat_signature",
    "plain_arguments",
    "refuse_unknown",
    "take_fields",
]

_Settings = TypeVar("_Settings")
_Init = TypeVar("_Init", bound=Callable[..., None])

_ABSENT: Final = object()
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def take_fields(
    kind: type[_Settings], name: str, given: _Settings | None, keywords: Mapping[str, Any]
) -> tuple[_Settings, dict[str, Any]]:
    """Return settings whose fields may stand among other keywords, and the keywords that are left.

    Args:
        kind: The class of the settings.
        name: The argument that takes them as a whole.
        given: What it was given, or None for the defaults; a field among ``keywords`` has precedence.
        keywords: Fields of the settings, and others.

    Raises:
        TypeError: If ``given`` is something else.
        ValueError: If a field is out of range.
    """
    check_type(name, given, kind, remedy=f"give {kind.__name__}(...)")
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type] # a dataclass
    taken = {key: value for key, value in keywords.items() if key in names}
    rest = {key: value for key, value in keywords.items() if key not in names}
    settings: Any = kind() if given is None else given
    return replace(settings, **taken), rest


def flat_signature(**settings: type[Any]) -> Callable[[_Init], _Init]:
    """Return a decorator that names the fields of settings in a constructor's signature, in place of the whole.

    ``inspect.signature``, and with it command lines and checks of configs, then see every flat keyword.

    Args:
        **settings: The class of the settings that each argument takes.
    """

    def decorated(init: _Init) -> _Init:
        signature = inspect.signature(init)
        shown = [each for each in signature.parameters.values() if each.name not in settings]
        rest = [shown.pop()] if shown[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        for kind in settings.values():
            hints = get_type_hints(kind)
            shown += [
                inspect.Parameter(field.name, _KEYWORD, default=field.default, annotation=hints[field.name])
                for field in fields(kind)
            ]
        init.__signature__ = signature.replace(parameters=[*shown, *rest])  # type: ignore[attr-defined] # inspect's own
        return init

    return decorated


def refuse_unknown(kind: type, keywords: Mapping[str, Any]) -> None:
    """Raise TypeError if there are any, with the keyword of ``kind`` that is most like the first."""
    for name in keywords:
        owners = [owner for owner in kind.__mro__ if "lit_loader" in owner.__module__ or owner is kind]
        signatures = [
            inspect.signature(vars(owner)["__init__"]) for owner in owners if "__init__" in vars(owner)
        ]
        known = {each for signature in signatures for each in signature.parameters} - {"self", "settings"}
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(known))}"
        raise TypeError(f"{kind.__name__} got an unexpected keyword argument {name!r}; {hint}")


def check_type(name: str, value: object, *kinds: type, remedy: str, optional: bool = True) -> None:
    """Refuse a value of a wrong type; a bool is no int.

    Raises:
        TypeError: If so; the message shows the value and ends with ``remedy``.
    """
    if (value is None and optional) or (isinstance(value, bool) and bool in kinds):
        return
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = " or ".join([kind.__name__ for kind in kinds] + (["None"] if optional else []))
        raise TypeError(f"{name}={value!r} of type {type(value).__name__} should be {wanted}; {remedy}")


def check_number(
    name: str, value: object, *, low: float, whole: bool = True, otherwise: str | EllipsisType | None = None
) -> None:
    """Refuse what is no number of at least ``low``, and not ``otherwise``, which is allowed too (``...``: nothing is).

    Raises:
        TypeError: If it is no number, or no int where one is needed.
        ValueError: If it is below ``low``.
    """
    if value == otherwise:
        return
    allowed = "" if otherwise is ... else f", or {otherwise!r}"
    remedy = f"it must be {'an int' if whole else 'a number'} of at least {low}{allowed}"
    if isinstance(value, str) and isinstance(otherwise, str):
        raise ValueError(f"{name}={value!r}; {remedy}")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise TypeError(f"{name}={value!r} of type {type(value).__name__}; {remedy}")
    if value < low:
        raise ValueError(f"{name}={value}; {remedy}")


def plain_arguments(instance: object, *settings: type) -> dict[str, Any]:
    """Return the arguments that the running constructor of an instance was called with, if a checkpoint can keep them.

    They are those of the outermost ``__init__``, a subclass's own included: None, bools, numbers, strings, paths (as
    strings), and lists and mappings of these. All else is left out, so that a checkpoint loads under
    ``weights_only=True``.

    Args:
        instance: What is being constructed.
        *settings: Dataclasses of which not the whole is kept, but every field.
    """
    given = _arguments(instance, inspect.currentframe())
    flat: dict[str, Any] = {}
    for name, value in list(given.items()):
        if isinstance(value, settings):
            flat.update(asdict(given.pop(name)))
        elif name == "cache" and isinstance(value, CacheSettings):
            given.update(cache=value.kind, cache_size=value.size, cache_budget=value.budget)
    found = {name: _plain(value) for name, value in {**flat, **given}.items()}
    return {name: value for name, value in found.items() if value is not _ABSENT}


def check_own_arguments(instance: object, base: type) -> None:
    """Refuse arguments of the running constructor that are not of the type that this package's classes annotate.

    Args:
        instance: What is being constructed.
        base: The class whose subclasses' arguments are checked; it checks its own.

    Raises:
        TypeError: If so; the message shows the value and the type.
    """
    own = inspect.signature(base).parameters
    given = {k: v for k, v in _arguments(instance, inspect.currentframe()).items() if k not in own}
    for owner in type(instance).__mro__[: type(instance).__mro__.index(base)]:
        is_ours = owner.__module__.startswith("lit_loader.") and "__init__" in vars(owner)
        for name, hint in get_type_hints(vars(owner)["__init__"]).items() if is_ours else ():
            if name in given and not _is_of(given[name], hint):
                text = re.sub(r"\b(\w+\.)+|<class '|'>", "", str(hint))
                kind = type(given[name]).__name__
                raise TypeError(f"{name}={given[name]!r} of type {kind} should be {text}")


def _is_of(value: object, hint: Any) -> bool:
    """Return whether a value is of a type; choices and what a sequence holds are checked where they are used."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        words = [word for each in get_args(hint) if get_origin(each) is Literal for word in get_args(each)]
        others = [each for each in get_args(hint) if get_origin(each) is not Literal]
        return value in words or any(_is_of(value, each) for each in others)
    if kind is Literal:
        return True
    if kind is Sequence and isinstance(value, str):
        return False
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _arguments(instance: object, frame: FrameType | None) -> dict[str, Any]:
    """Return the arguments of the outermost constructor of an instance that a frame was called from."""
    outermost = None
    while frame is not None and (frame := frame.f_back) is not None:
        code = frame.f_code
        if code.co_name != "__init__" or frame.f_locals.get(code.co_varnames[0]) is not instance:
            break
        outermost = frame
    if outermost is None:
        return {}
    names, _, rest, values = inspect.getargvalues(outermost)
    return {**{name: values[name] for name in names[1:]}, **(values[rest] if rest else {})}


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        parts = {str(key): _plain(part) for key, part in value.items()}
        return _ABSENT if any(part is _ABSENT for part in parts.values()) else parts
    if isinstance(value, Sequence):
        listed = [_plain(part) for part in value]
        return _ABSENT if any(part is _ABSENT for part in listed) else listed
    return _ABSENT
