"""Keywords of a data module: flat fields of settings, unknown names, and what a checkpoint can keep of them."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import PurePath
from typing import Any, Final, TypeVar

from lit_loader.datasets import CacheSettings

__all__ = ["check_number", "check_type", "flat_signature", "plain_arguments", "refuse_unknown", "take_fields"]

_Settings = TypeVar("_Settings")
_Init = TypeVar("_Init", bound=Callable[..., None])

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
    rest = dict(keywords)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # a dataclass
    taken = {name: rest.pop(name) for name in names if name in rest}
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
        for kind in settings.values():
            of_fields = inspect.signature(kind, eval_str=True).parameters.values()
            shown[-1:] = [
                *(each.replace(kind=_KEYWORD) for each in of_fields),
                shown[-1],
            ]  # the last: **settings
        init.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined] # inspect's own
        return init

    return decorated


def refuse_unknown(kind: type, keywords: Mapping[str, Any]) -> None:
    """Raise TypeError if there are any, with the keyword of ``kind`` that is most like the first."""
    for name in keywords:
        own = [each for each in kind.__mro__ if "lit_loader" in each.__module__ or each is kind]
        makers = [vars(each)["__init__"] for each in own if "__init__" in vars(each)]
        known = {each for maker in makers for each in inspect.signature(maker).parameters}
        known -= {"self", "settings"}
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(known))}"
        raise TypeError(f"{kind.__name__} got an unexpected keyword argument {name!r}; {hint}")


def check_type(name: str, value: object, *kinds: Any, remedy: str, optional: bool = True) -> None:
    """Refuse a value of a wrong type; a bool is no int.

    Raises:
        TypeError: If so; the message shows the value and ends with ``remedy``.
    """
    if value is None and optional:
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join([*(kind.__name__ for kind in kinds), *(["None"] if optional else [])])
        raise TypeError(f"{name}={value!r} of type {type(value).__name__} should be {wanted}; {remedy}")


def check_number(
    name: str, value: object, *, low: float, whole: bool = True, other: tuple[str | None, ...] = (None,)
) -> None:
    """Refuse what is no number of at least ``low``, and none of ``other``, which are allowed too.

    Raises:
        TypeError: If it is no number, or no int where one is needed.
        ValueError: If it is below ``low``.
    """
    if value in other:
        return
    rule = f"it must be {'an int' if whole else 'a number'} of at least {low}"
    remedy = ", or ".join([rule, *map(repr, other)])
    if isinstance(value, bool) or not isinstance(value, (int if whole else int | float, *map(type, other))):
        raise TypeError(f"{name}={value!r} of type {type(value).__name__}; {remedy}")
    if isinstance(value, str) or value < low:  # type: ignore[operator] # a number
        raise ValueError(f"{name}={value!r}; {remedy}")


def plain_arguments(instance: object, *settings: type) -> dict[str, Any]:
    """Return the arguments that the running constructor of an instance was called with, if a checkpoint can keep them.

    They are those of the outermost ``__init__``, a subclass's own included: None, bools, numbers, strings, paths (as
    strings), and lists and mappings of these. All else is left out, so that a checkpoint loads under
    ``weights_only=True``.

    Args:
        instance: What is being constructed.
        *settings: Dataclasses of which not the whole is kept, but every field.
    """
    given: dict[str, Any] = {}
    frame: Any = inspect.currentframe()
    while (frame := frame.f_back).f_code.co_name == "__init__":
        names, _, rest, values = inspect.getargvalues(frame)
        if not names or values[names[0]] is not instance:
            break
        given = {name: values[name] for name in names[1:]} | (values[rest] if rest else {})
    flat: dict[str, Any] = {}
    for name, value in list(given.items()):
        if isinstance(value, settings):
            flat.update(asdict(given.pop(name)))
        elif name == "cache" and isinstance(value, CacheSettings):
            given.update(cache=value.kind, cache_size=value.size, cache_budget=value.budget)
    kept = {}
    for name, value in {**flat, **given}.items():
        with contextlib.suppress(TypeError, ValueError):  # what is not plain
            kept[name] = json.loads(json.dumps(value, default=_as_plain))
    return kept


def _as_plain(value: Any) -> Any:
    """Return what json does not know, such as a path or a mapping of its own class, as what it knows."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping | Sequence):
        return dict(value) if isinstance(value, Mapping) else list(value)
    raise TypeError(f"{type(value).__name__} is not plain")
