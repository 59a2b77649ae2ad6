"""The kinds of workers, and the batches of an epoch with the errors that came instead of some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "thread": {"num_workers": 2, "worker_method": "thread"},
}
# For tests to which the start method of processes makes no difference.
FEW_BACKENDS = {name: BACKENDS[name] for name in ("inline", "fork", "thread")}


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
