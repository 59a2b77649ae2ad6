"""What is known of a sample that could not be made: named in its error, or kept beside the batch that lacks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import length_hint
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "Failure",
    "Flawed",
    "NUM_SPARES",
    "OnBadSample",
    "failure_of",
    "name_batch",
    "name_sample",
    "name_sample_before",
    "stop_iteration_as_error",
]

OnBadSample: TypeAlias = Literal["raise", "skip", "substitute"]
"""What becomes of a sample whose making raises an error."""

NUM_SPARES: Final = 3
"""Indices that stand in for a bad sample, one after the other, before its batch fails."""

_MOST_CHARACTERS = 1000  # of a message that is kept
_MOST_NAMED = 32  # indices in a note


class Failure(NamedTuple):
    """One call of ``dataset[index]`` that raised an error which was not raised further.

    Attributes:
        batch: Number of the batch in this rank's epoch.
        row: The sample's place in the batch.
        position: Its position in the global order; None without a seed.
        index: What the loader's dataset was asked for.
        file: The sample's file, where it is known.
        error: Name of the error's type.
        message: The error's message, cut off after 1,000 characters.
        replaced_by: The index that took its place in the batch; None: none did.
    """

    batch: int
    row: int
    position: int | None
    index: Any
    file: str | None
    error: str
    message: str
    replaced_by: Any = None


class Flawed(NamedTuple):
    """Samples, or a batch, with what failed while they were made.

    Attributes:
        made: The samples that there are, or the batch.
        failures: What failed.
        lost: Whether there is no batch to deliver.
    """

    made: Any
    failures: list[Failure]
    lost: bool = False


def failure_of(
    error: Exception, dataset: Any, index: Any, given: Any, *, batch: int, row: int, position: int | None
) -> Failure:
    """Return what is kept of an error.

    Args:
        error: What ``dataset[index]`` raised.
        dataset: The dataset that raised it.
        index: Into that dataset.
        given: The index into the loader's own dataset, which may be a `Subset` of this one.
        batch: Number of the batch.
        row: The sample's place in the batch.
        position: Its position in the order.
    """
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be read)"
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]}..."
    return Failure(
        batch, row, position, given, _file_of(error, dataset, index), type(error).__name__, message
    )


def name_sample(error: Exception, dataset: Any, index: Any, given: Any) -> None:
    """Note on an error which sample it is of; arguments as for `failure_of`."""
    file = _file_of(error, dataset, index)
    _note(error, f"sample {_shown(given)}" if file is None else f"sample {_shown(given)}, file {file}")


def name_sample_before(
    error: Exception, dataset: Any, indices: Any, left: Iterator[Any], *, given: Any = None
) -> None:
    """Note on an error that it is of the sample that an iterator over indices gave last, if that can be told.

    Args:
        error: What was raised.
        dataset: What raised it.
        indices: Of the samples.
        left: The iterator over ``indices``.
        given: The indices into the loader's own dataset; None: they are the same.
    """
    try:
        number = len(indices) - length_hint(left, len(indices)) - 1
        if number < 0:
            return  # an iterator that does not know how much is left
        index = list(indices)[number]
        first = index if given is None else list(given)[number]
    except Exception:
        return
    name_sample(error, dataset, index, first)


def name_batch(error: Exception, indices: Any) -> None:
    """Note on an error of ``__getitems__`` which samples were asked for."""
    try:
        named = list(indices)
    except Exception:
        return
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    _note(error, f"one of the samples {', '.join(map(_shown, named[:_MOST_NAMED]))}{more}")


def stop_iteration_as_error(error: StopIteration, source: str) -> RuntimeError:
    """Return what is raised in the place of a StopIteration that would end the epoch, as in generators (PEP 479).

    Args:
        error: What was raised; the caller chains it.
        source: Whose code raised it.
    """
    told = RuntimeError(
        f"{source} raised StopIteration, which would end the epoch here without a word; catch it, as from a bare "
        "next(), or raise another error"
    )
    notes = getattr(error, "__notes__", None)
    for note in notes if isinstance(notes, list) else ():
        _note(told, str(note))
    return told


def _note(error: Exception, text: str) -> None:
    """Add a note to an error, once: a dataset may raise the same object again and again."""
    try:
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)
    except Exception:  # it has notes of its own making
        return


def _file_of(error: Exception, dataset: Any, index: Any) -> str | None:
    """Return the file that an error speaks of, else the one that the dataset names for the sample."""
    try:
        name = getattr(error, "filename", None)
        if isinstance(name, (str, bytes, os.PathLike)):
            return os.fsdecode(name)
        find = getattr(dataset, "sample_path", None)
        return os.fsdecode(find(index)) if callable(find) else None
    except Exception:  # of the user's code, whose first error is the one to be heard
        return None


def _shown(index: Any) -> str:
    try:
        text = str(index)
    except Exception:
        return f"(a {type(index).__name__})"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
