"""The state that a user's sampler or dataset gives of itself, if it does."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["NoStateError", "own_state"]


class NoStateError(Exception):
    """What has a ``state_dict`` does not give its state."""


def own_state(thing: Any) -> Any:
    """Return a copy of what ``thing.state_dict()`` gives now.

    Raises:
        NoStateError: If it raises, or gives what cannot be copied: neither a pass nor a checkpoint must fail by it.
    """
    try:
        return copy.deepcopy(thing.state_dict())
    except Exception as error:
        raise NoStateError(
            f"{type(thing).__name__}.state_dict() raised {type(error).__name__}: {error}"
        ) from error
