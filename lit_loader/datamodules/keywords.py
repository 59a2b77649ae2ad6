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

from lit_loader.foundation.signatures import fits, signature_of, type_text

__all__ = [
    "check_arguments",
    "check_at_least",
    "flat_signature",
    "given_arguments",
    "plain_arguments",
    "take_fields",
]

_Settings = TypeVar("_Settings")
_Init = TypeVar("_Init", bound=Callable[..., None])

_REMEDIES: Final = {
    "source": "give one of lit_loader.datasets, such as VocSource(root=FOLDER)",
    "_sampler": "give one of lit_loader.datamodules, such as ClassBalancedSamplerConfig(), or a torch Sampler",
    "_batching": "give one such as AspectRatioBatching(num_buckets=8)",
    "batch_transforms": "give a function of a batch",
    "_transforms": "give transforms of (image, target), or a mapping of the preset's keywords",
}
_WHOLE_SETTINGS: Final = ("workers", "reading")  # not in a flat signature; `take_fields` checks them
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def take_fields(
    kind: type[_Settings], given: _Settings | None, keywords: Mapping[str, Any]
) -> tuple[_Settings, dict[str, Any]]:
    """Return settings whose fields may stand among other keywords, and the keywords that are left.

    Args:
        kind: The class of the settings.
        given: What it was given, or None for the defaults; a field among ``keywords`` has precedence.
        keywords: Fields of the settings, and others.

    Raises:
        TypeError: If the settings or a field are of a wrong type.
        ValueError: If a field is out of range.
    """
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{given!r} of type {type(given).__name__} should be {kind.__name__}(...) or None")
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


def check_arguments(owner: type, given: Mapping[str, Any]) -> None:
    """Refuse arguments that a class does not take, or not in this type.

    Raises:
        TypeError: For the first that is unknown, with the nearest that is known, or is of a wrong type.
        ValueError: If a word is none of the choices.
    """
    signature = signature_of(owner)
    assert signature is not None  # a class
    for name, value in given.items():
        if name in _WHOLE_SETTINGS:
            continue
        if name not in signature.types:
            near = difflib.get_close_matches(name, signature.types, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(signature.types))}"
            raise TypeError(f"{owner.__name__} got an unexpected keyword argument {name!r}; {hint}")
        if not fits(value, signature.types[name]):
            wanted = type_text(signature.types[name]).replace("null", "None")
            remedy = next((f"; {text}" for end, text in _REMEDIES.items() if name.endswith(end)), "")
            error = ValueError if isinstance(value, str) and "'" in wanted else TypeError
            raise error(f"{name}={value!r} of type {type(value).__name__} should be {wanted}{remedy}")


def check_at_least(low: float, **given: Any) -> None:
    """Raise ValueError for the first number that is below ``low``; other values are let through."""
    for name, value in given.items():
        if isinstance(value, int | float) and value < low:
            raise ValueError(f"{name}={value} must be at least {low}")


def given_arguments(instance: object) -> dict[str, Any]:
    """Return the arguments of the outermost running ``__init__`` of an instance, a subclass's own included."""
    given: dict[str, Any] = {}
    frame: Any = inspect.currentframe()
    while (frame := frame.f_back).f_code.co_name == "__init__":
        names, _, rest, values = inspect.getargvalues(frame)
        if not names or values[names[0]] is not instance:
            break
        given = {name: values[name] for name in names[1:]} | (values[rest] if rest else {})
    return given


def plain_arguments(arguments: Mapping[str, Any], *settings: type) -> dict[str, Any]:
    """Return the arguments that a checkpoint can keep, so that it loads under ``weights_only=True``.

    They are None, bools, numbers, strings, paths (as strings), and lists and mappings of these.

    Args:
        arguments: Of a constructor.
        *settings: Dataclasses of which not the whole is kept, but every field.
    """
    given = dict(arguments)
    flat: dict[str, Any] = {}
    for name, value in list(given.items()):
        if isinstance(value, settings):
            flat.update(asdict(given.pop(name)))
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
