"""Samples that raise: they are named in their error, or recorded, counted and reported while the epoch goes on.

NOTE [When bad samples count]
    The records of bad samples are sent with their batch and count when it is delivered. So every backend has the same
    count at every batch, batches that are made ahead count for their own epoch, and batches that are never delivered do
    not count. A batch whose collate function raises is not delivered, and neither are its records.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lit_loader.engine.spec import Batches, EndOfEpoch, Seen, WrappedBatches
from lit_loader.errors import BadBatchError, BadSamplesWarning, TooManyBadSamplesError

NUM_SPARES: Final = 3
"""Indices that replace a bad sample, one after the other, before its batch fails."""

_MAX_CHARACTERS = 1000  # of a message that is kept
_MAX_SHOWN = 3  # samples in a summary
# Frames from `BadSampleLog._report` up to the consumer's loop: `next_batch`, and three in `iterator.py`.
_CONSUMER = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """One call of ``dataset[index]`` that failed and was not raised; a replacement that failed too is another one.

    Attributes:
        epoch: The epoch, from 0; set when the batch is delivered.
        rank: The rank whose batch it was for; set when the batch is delivered.
        batch: Number of the batch in this rank's epoch, from 0.
        row: The sample's place in the batch, from 0.
        position: Its position in the global order, or None without a seed.
        index: The index into the loader's dataset.
        file: The file of the error, or else ``dataset.sample_path(index)``, or None if there is neither.
        error: Name of the error's type.
        message: The error's message, at most 1,000 characters.
        replaced_by: The index whose sample took its place in the batch, or None.
    """

    epoch: int = 0
    rank: int = 0
    batch: int
    row: int
    position: int | None
    index: Any
    file: str | None
    error: str
    message: str
    replaced_by: Any = None

    def __str__(self) -> str:
        file = "" if self.file is None else f", file {self.file}"
        return f"sample {self.index}{file}: {self.error}: {self.message}"


class PartialBatch(NamedTuple):
    """Samples, or a batch, with the records of the samples that failed.

    Attributes:
        made: The samples that did not fail, or the batch.
        bad_samples: Records of those that failed.
        is_lost: Whether no batch can be delivered.
    """

    made: Any
    bad_samples: list[BadSample]
    is_lost: bool


# -- naming a sample in its error --------------------------------------------------------------------------


def name_sample(error: Exception, dataset: Any, inner: Any, given: Iterable[Any], row: int) -> None:
    """Add the sample's name to an error as a note.

    Args:
        error: What ``dataset[inner]`` raised.
        dataset: The dataset that raised it.
        inner: The index into that dataset.
        given: The batch's indices into the loader's own dataset, which may be a `Subset` of that one.
        row: The sample's place in the batch.
    """
    try:
        index = list(given)[row]
    except Exception:  # the indices of an iterator are gone
        return
    file = file_of(error, dataset, inner)
    _note(error, f"sample {text_of(index)}" if file is None else f"sample {text_of(index)}, file {file}")


def name_batch(error: Exception, indices: Any) -> None:
    """Add the indices that ``__getitems__`` was called with to its error as a note."""
    _note(error, f"one of the samples {text_of(indices)}")


def stop_iteration_as_error(error: StopIteration, source: str) -> RuntimeError:
    """Return the RuntimeError that replaces a StopIteration which would end the epoch, as in generators (PEP 479).

    Args:
        error: The StopIteration; the caller chains it.
        source: Name of the code that raised it.
    """
    raised = RuntimeError(
        f"{source} raised StopIteration, which would end the epoch here without an error; catch it, as from a bare "
        "next(), or raise another error"
    )
    notes = getattr(error, "__notes__", None)
    for note in notes if isinstance(notes, list) else ():
        _note(raised, str(note))
    return raised


def _note(error: Exception, text: str) -> None:
    """Add a note to an error, once: a dataset may raise the same object again and again."""
    with contextlib.suppress(Exception):  # the error's class may define __notes__ or add_note itself
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


def file_of(error: Exception, dataset: Any, index: Any) -> str | None:
    """Return the error's ``filename``, or else the dataset's ``sample_path(index)``, or None if there is neither."""
    with contextlib.suppress(Exception):  # raised by user code; its first error is the one to raise
        name: Any = getattr(error, "filename", None)
        is_path = isinstance(name, (str, bytes, os.PathLike))
        return os.fsdecode(name if is_path else dataset.sample_path(index))
    return None


def text_of(thing: Any) -> str:
    """Return ``str(thing)``, at most 1,000 characters of it."""
    try:
        text = str(thing)
    except Exception:  # raised by user code
        return f"(a {type(thing).__name__})"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


# -- recording and reporting -------------------------------------------------------------------------------


def append_bad_samples(path: Path | str, records: Iterable[BadSample], **labels: Any) -> None:
    """Append records to a file, one JSON object a line; there is no file if there are no records.

    Args:
        path: The file; folders that are missing are made.
        records: Of any epochs and ranks.
        labels: Keys and values that each line begins with, such as ``stage="train"``.

    Raises:
        OSError: If the file cannot be written.
    """
    lines = [json.dumps({**labels, **asdict(record)}, default=str) + "\n" for record in records]
    if not lines:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(lines)


def summarize(records: list[BadSample]) -> str:
    """Return how many samples are bad and what the first ones are."""
    replaced = sum(record.replaced_by is not None for record in records)
    counts = f"{len(records)} bad sample{'s' * (len(records) != 1)} ({replaced} replaced)"
    more = len(records) - _MAX_SHOWN
    shown = [str(record) for record in records[:_MAX_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    return f"{counts}: {'; '.join(shown)}"


class BadSampleLog(WrappedBatches):
    """Batches of one epoch whose bad samples are recorded as they are delivered: see NOTE [When bad samples count].

    They are reported with the epoch's last batch; those of batches beyond the number told, at the epoch's end.

    Args:
        batches: The epoch.
        epoch: Its number.
        rank: This process's rank.
        max_bad_samples: How many bad samples the epoch may have.
        num_batches: How many batches it has, so that the report comes with the last one, after which a consumer may
            ask for no more. If None, the report comes at the epoch's end.
        seen: The indices of each batch, which are corrected to those that are delivered, or None if they are not
            wanted.

    Attributes:
        records: The bad samples of the batches delivered so far, in order.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        epoch: int,
        rank: int,
        max_bad_samples: int,
        num_batches: int | None,
        seen: Seen,
    ) -> None:
        super().__init__(batches)
        self._num_batches, self._seen = num_batches, seen
        self.epoch, self.rank, self.max_bad_samples = epoch, rank, max_bad_samples
        self.records: list[BadSample] = []
        self._num_delivered = self._num_reported = 0

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfEpoch: After the last one.
            TooManyBadSamplesError: If there were too many bad samples; the iteration may go on.
            BadBatchError: If the batch has no sample left; the iteration may go on.
            Exception: As the wrapped batches do.
        """
        try:
            batch = self._batches.next_batch()
        except EndOfEpoch:
            self._report()
            raise
        self._num_delivered += 1
        if type(batch) is PartialBatch:
            self._correct_seen(batch.bad_samples)
            batch = self._record(batch)
        if self._num_delivered == self._num_batches:
            try:
                self._report()
            except BadSamplesWarning:
                self._num_reported = 0  # raised again at the epoch's end, so that the batch is not lost
        return batch

    def _record(self, partial: PartialBatch) -> Any:
        """Record the samples that failed, and return the batch.

        Raises:
            TooManyBadSamplesError: If the epoch has more bad samples than allowed.
            BadBatchError: If the batch has no sample left.
        """
        bad = [replace(record, epoch=self.epoch, rank=self.rank) for record in partial.bad_samples]
        self.records += bad
        if len(self.records) > self.max_bad_samples:
            raise TooManyBadSamplesError(
                f"{len(self.records)} bad samples in epoch {self.epoch} on rank {self.rank}, and max_bad_samples="
                f"{self.max_bad_samples} is the most; the last: {self.records[-1]}; mend these samples or leave them "
                "out (loader.bad_samples lists them), or give a larger max_bad_samples"
            )
        if not partial.is_lost:
            return partial.made
        row = next(record.row for record in bad if record.replaced_by is None)
        tries = [record for record in bad if record.row == row]
        where = f"batch {bad[0].batch} of epoch {self.epoch} on rank {self.rank}"
        if len(tries) == 1:
            raise BadBatchError(
                f"{where} has no sample left, all {len(bad)} are bad; the first: {tries[0]}; mend them or leave "
                'them out, give a larger batch_size, or on_bad_sample="substitute"'
            )
        raise BadBatchError(
            f"{where}: a sample is bad and so are the {len(tries) - 1} that were to replace it; "
            f"{'; '.join(map(str, tries))}; mend them or leave them out of the sampler, or give "
            'on_bad_sample="skip"'
        )

    def _report(self) -> None:
        """Warn of the epoch's bad samples, if there are any that were not reported."""
        if len(self.records) > self._num_reported:
            self._num_reported = len(self.records)
            where = f"epoch {self.epoch}, rank {self.rank}"
            text = f"{where}: {summarize(self.records)}; loader.bad_samples lists them all"
            warnings.warn(text, BadSamplesWarning, stacklevel=_CONSUMER)

    def _correct_seen(self, bad: list[BadSample]) -> None:
        number = bad[0].batch
        if self._seen is None or number >= len(self._seen):
            return
        replaced = {record.row: record.replaced_by for record in bad}
        indices = [replaced.get(row, index) for row, index in enumerate(self._seen[number])]
        self._seen[number] = [index for index in indices if index is not None]
