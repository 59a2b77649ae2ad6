"""Lists of transforms as text, one line for each, for summaries and errors."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, Final

from torch import nn
from torchvision.transforms import v2

from lit_loader.foundation.escaping import printable
from lit_loader.mixing import Mix
from lit_loader.schedules import Schedule
from lit_loader.transforms.extra_transform import ExtraTransform
from lit_loader.transforms.scheduled import ScheduledTransform
from lit_loader.transforms.visibility import UpdateVisibility

__all__ = ["describe"]

_MAX_LENGTH: Final = 96
# Arguments that are shown even if they have their default.
_ALWAYS_SHOWN: Final = ("magnitude", "num_ops", "p", "size")
_CONTAINERS: Final = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)
_SEQUENCES: Final = (v2.Compose, nn.Sequential)


def describe(transforms: Any) -> list[str]:
    """Return one line of text for each transform, in the order in which they are applied.

    A `ScheduledTransform` is a line with its schedules, in full length. A preset with schedules is a line for each of
    them, then the transforms of the first epoch.

    A mix, and a transform of torchvision or lit_loader, is its class with its probability, its size, and the arguments
    that differ from their defaults, such as ``RandomHorizontalFlip(p=0.5)``. Everything else is its ``repr``. Lines are
    without control characters and have at most 96 characters. `UpdateVisibility`, which changes no pixel, is left out.

    Args:
        transforms: A transform or a `lit_loader.Mix`, a composition such as a preset returns, or a list of them.
    """
    lines = []
    for transform in _parts(transforms):
        if isinstance(transform, ScheduledTransform):
            lines += _schedule_lines(transform)
        else:
            lines.append(_shortened(_text(transform)))
    return lines


def _schedule_lines(transform: ScheduledTransform) -> list[str]:
    # Not shortened: records of checkpoints compare these lines, and schedules may differ at their end.
    first_transform = transform.examples()[0]
    if not transform.arguments:
        return [f"{'; '.join(describe(first_transform))} {transform.when}"]
    if not isinstance(first_transform, _SEQUENCES):
        return [printable(str(transform))]
    schedules = [f"{name}: {schedule}" for name, schedule in transform.schedules().items()]
    return [*map(printable, schedules), *describe(first_transform)]


def _parts(transforms: Any) -> Iterator[Any]:
    if isinstance(transforms, list | tuple):
        parts: Sequence[Any] = transforms
    elif isinstance(transforms, _SEQUENCES):
        parts = transforms.transforms if isinstance(transforms, v2.Compose) else list(transforms)
    else:
        # A step of a preset may be a transform that the user added.
        transform = transforms.transform if isinstance(transforms, ExtraTransform) else transforms
        if not isinstance(transform, UpdateVisibility):
            yield transform
        return
    for part in parts:
        yield from _parts(part)


def _text(transform: Any) -> str:
    if isinstance(transform, ScheduledTransform):
        return str(transform)
    kind = type(transform)
    name = kind.__name__
    if isinstance(transform, _CONTAINERS):
        parts = ", ".join(map(_text, _parts(list(transform.transforms))))
        chance = f", p={_value_text(transform.p)}" if hasattr(transform, "p") else ""
        return f"{name}([{parts}]{chance})"
    is_known = isinstance(transform, nn.Module) and kind.__module__.startswith(("torchvision.", "lit_loader."))
    if is_known or isinstance(transform, Mix):
        inner = getattr(transform, "transform", None)
        arguments = [] if inspect.ismethod(inner) or inner is None else [_repr(inner)]
        return f"{name}({', '.join([*arguments, *_arguments(transform)])})"
    return _repr(transform)


def _repr(value: Any) -> str:
    # The default repr of an object or a function holds its address, which differs in every run.
    if getattr(type(value), "__repr__", None) is object.__repr__:
        return f"{type(value).__name__}()"
    if inspect.isroutine(value) or isinstance(value, type):
        return str(getattr(value, "__qualname__", value))
    return repr(value)


def _arguments(transform: Any) -> Iterator[str]:
    """Yield the arguments of a transform that are plain values, as ``name=value``."""
    for name, parameter in inspect.signature(type(transform).__init__).parameters.items():
        value = getattr(transform, name, None)
        is_plain = _is_plain(value)
        if is_plain and (name in _ALWAYS_SHOWN or not _equal(value, parameter.default)):
            yield f"{name}={_value_text(value)}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, Real | str | enum.Enum | Schedule)


def _equal(value: Any, default: Any) -> bool:
    """Return True if a stored value is the default; torchvision stores numbers and tuples as lists."""
    if isinstance(value, list | tuple):
        return list(value) == (list(default) if isinstance(default, list | tuple) else [default])
    return bool(value == default)


def _value_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Schedule):
        return f"({value})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _shortened(text: str) -> str:
    """Return text as one line without control characters, with its end replaced by dots if it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 3]}..."
