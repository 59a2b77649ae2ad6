"""Which part of an object cannot be pickled, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lit_loader.transport.pickled import encode

__all__ = ["describe_unsendable"]


def describe_unsendable(data: Any) -> str:
    """Return where in ``data`` the part is that cannot be pickled, and its type.

    Returns:
        As in "its part ['target'][2] is a _thread.lock", or "it is a function".
    """
    path, seen = "", {id(data)}
    while True:
        for step, part in _parts(data):
            if id(part) not in seen and not _can_be_sent(part):
                path, data = path + step, part
                seen.add(id(part))
                break
        else:
            kind = type(data)
            place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            what = f"a {place}{kind.__qualname__}"
            return f"its part {path} is {what}" if path else f"it is {what}"


def _can_be_sent(data: Any) -> bool:
    try:
        encode(data)
    except Exception:
        return False
    return True


def _parts(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a container or of a plain object, with the step to each."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"[{key!r}]", value
    elif isinstance(data, (list, tuple, set, frozenset)):
        names = getattr(data, "_fields", None)
        for number, part in enumerate(data):
            yield (f"[{number}]" if names is None else f".{names[number]}"), part
    elif isinstance(attributes := getattr(data, "__dict__", None), dict) and not isinstance(data, type):
        for name, value in list(attributes.items()):
            yield f".{name}", value
