"""Arguments of data modules: checks against the annotations, and the values that a checkpoint can keep."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, Final, TypeVar, get_args

from lit_loader.annotations.problems import shorten
from lit_loader.foundation.signatures import fits, signature_of, type_text
from lit_loader.schedules import BatchChoice, EpochRange, LinearSchedule

__all__ = ["arguments_of", "as_settings", "check_at_least", "check_types", "plain_arguments", "unexpected_argument"]

_Settings = TypeVar("_Settings")

_MAX_VALUE: Final = 80  # characters of a value that a message contains
_REMEDIES: Final = {
    "_dataset": "a list is taken for several data sets; for one list of samples, give a Dataset that returns them",
    "source": "give lit_loader.open_source(FOLDER), or one of lit_loader.datasets, such as VocSource(root=FOLDER)",
    "_sampler": "give one of lit_loader.datamodules, such as ClassBalancedSamplerConfig(), or a torch Sampler",
    "_batching": "give one such as AspectRatioBatching(num_buckets=8)",
    "batch_transforms": "give a function of a batch",
    "mixing": "give one of lit_loader.transforms, such as Mosaic(), or a list or a mapping of them",
    "_transforms": "give transforms of (image, target), or a mapping of the preset's keywords",
}


def as_settings(kind: Callable[..., _Settings], settings: _Settings | Mapping[str, Any] | None) -> _Settings:
    """Return settings as their frozen dataclass; a config or a checkpoint may hold them as a mapping of its fields.

    Raises:
        TypeError: If a field is unknown or has a wrong type.
        ValueError: If a field is out of range.
    """
    if settings is None:
        return kind()
    return kind(**settings) if isinstance(settings, Mapping) else settings


def arguments_of(owner: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the ``__init__`` of a class names, without its ``**keywords``.

    Args:
        owner: The class.
        values: ``locals()`` at the start of its ``__init__``.
    """
    # locals() also has self, **keywords and the class cell; the signature also has the keywords of parent classes.
    return {name: values[name] for name in _argument_types(owner) if name in values}


def check_types(owner: type, arguments: Mapping[str, Any]) -> None:
    """Check arguments of a class against the annotations of its ``__init__``.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If a word is none of the choices.
    """
    hints = _argument_types(owner)
    for name, value in arguments.items():
        hint = hints[name]
        if not fits(value, hint):
            expected = type_text(hint).replace("null", "None")
            remedy = next((f"; {text}" for end, text in _REMEDIES.items() if name.endswith(end)), "")
            # A wrong word among the choices of a Literal is a wrong value, not a wrong type.
            error = ValueError if isinstance(value, str) and "'" in expected else TypeError
            text = shorten(repr(value), _MAX_VALUE)
            raise error(f"{name}={text} of type {type(value).__name__} should be {expected}{remedy}")


def unexpected_argument(owner: type, name: str) -> TypeError:
    """Return the error for a keyword that a class does not take, with the argument that was probably meant."""
    hints = _argument_types(owner)
    problem = f"{owner.__name__} got an unexpected keyword argument {name!r}"
    # Fields of settings such as WorkerSettings are not arguments, although a loader has arguments of these names.
    for argument, hint in hints.items():
        for kind in get_args(hint):
            if isinstance(kind, type) and is_dataclass(kind) and name in {field.name for field in fields(kind)}:
                return TypeError(f"{problem}; it is a field of {argument}: give {argument}={kind.__name__}({name}=...)")
    matches = difflib.get_close_matches(name, hints, 1)
    remedy = f"did you mean {matches[0]!r}?" if matches else f"it takes {', '.join(sorted(hints))}"
    return TypeError(f"{problem}; {remedy}")


def check_at_least(low: float, **numbers: Any) -> None:
    """Raise ValueError for the first number that is below ``low``; None and words pass."""
    for name, value in numbers.items():
        if isinstance(value, int | float) and value < low:
            raise ValueError(f"{name}={value} must be at least {low}")


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a checkpoint can keep, so that it loads under ``weights_only=True``.

    They are None, bools, numbers, strings, paths (as strings), schedules other than functions (as mappings), and lists
    and mappings of these.
    """
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        # Functions, data sets and samplers are not plain; load_from_checkpoint() takes them as keywords.
        with contextlib.suppress(TypeError, ValueError):
            # A round trip also copies, so that later changes of a list do not change the hyperparameters.
            plain[name] = json.loads(json.dumps(value, default=_as_plain))
    return plain


def _argument_types(owner: type) -> dict[str, Any]:
    """Return the annotations of a class's arguments, including those that it passes to its parent classes."""
    signature = signature_of(owner)
    assert signature is not None  # a class has one
    return signature.types


def _as_plain(value: Any) -> Any:
    """Convert a path, a schedule, or a mapping or a sequence of a class that json does not know."""
    if isinstance(value, PurePath):
        return str(value)
    # The mapping that `as_schedule` converts back.
    if isinstance(value, LinearSchedule | EpochRange | BatchChoice):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not plain")
