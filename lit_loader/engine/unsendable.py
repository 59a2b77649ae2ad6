"""Errors of a batch that a worker process made and the main process cannot have."""

from __future__ import annotations

from typing import Any

from lit_loader.engine.messages import Header
from lit_loader.errors import UnsendableBatchError
from lit_loader.transport import RebuildError, describe_unsendable

__all__ = ["not_rebuilt", "not_sent"]

_REMEDY = (
    "return tensors, arrays, numbers, strings or containers of them from the dataset and the collate function, or use "
    'worker_method="thread", which sends nothing'
)


def not_sent(made: Any, header: Header, error: BaseException) -> UnsendableBatchError:
    """Return the error of a batch that cannot be pickled in the worker.

    Args:
        made: The batch.
        header: Of the task.
        error: What pickling it raised.
    """
    batch = f"batch {header.number} (counted from 0)"
    try:
        culprit = describe_unsendable(made)
    except Exception:  # of a mapping of the user's, say
        culprit = f"it is a {type(made).__name__}"
    return UnsendableBatchError(
        f"{batch} could not be sent from its worker process: {culprit}, which cannot be pickled "
        f"({_told(error)}); {_REMEDY}"
    )


def not_rebuilt(number: int, error: RebuildError) -> UnsendableBatchError:
    """Return the error of a batch that cannot be unpickled in the main process."""
    return UnsendableBatchError(
        f"batch {number} (counted from 0) was sent by its worker process, but cannot be unpickled in the main process "
        f"({error}); {_REMEDY}"
    )


def _told(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name
