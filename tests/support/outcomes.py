"""The batches of an epoch, with the errors that came instead of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def outcomes_of(loader: Iterable[Any]) -> list[Any]:
    """Iterate once, and return each batch, or the error instead of it."""
    outcomes = []
    iterator = iter(loader)
    while True:
        try:
            outcomes.append(next(iterator))
        except StopIteration:
            return outcomes
        except Exception as error:
            # The frames of a traceback refer to the list, which would be a reference cycle.
            outcomes.append(error.with_traceback(None))
