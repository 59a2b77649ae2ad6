"""Bad samples: an error names its sample, or samples that raise are recorded and reported while the epoch continues.

NOTE [When bad samples count]
    The records of bad samples travel with their batch and count when it is delivered. So every backend has the same
    count at every batch, a batch that workers prefetch counts for its own epoch, and a batch that is never delivered
    does not count. A batch whose collate function raises is not delivered, and neither are its records.
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
from lit_loader.engine.stats import Counters
from lit_loader.errors import BadBatchError, BadSamplesWarning, TooManyBadSamplesError
from lit_loader.foundation.counts import counted

NUM_SPARES: Final = 3
"""Indices that replace a bad sample, one after the other, before its batch fails."""

_MAX_CHARACTERS = 1000  # of an error message in a record
_MAX_SHOWN = 3  # samples in a summary
# Frames between `BadSampleLog._report` and the loop of the consumer: `next_batch`, and three in `iterator.py`.
_CONSUMER_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """Record of one call of ``dataset[index]`` that failed; a replacement that also failed has a record of its own.

    Attributes:
        epoch: The epoch, from 0; set when the batch is delivered.
        rank: The rank whose batch it belongs to; set when the batch is delivered.
        batch: Number of the batch in this rank's epoch, from 0.
        row: The sample's place in the batch, from 0.
        position: Its position in the global order, or None without a seed.
        index: The index into the loader's dataset.
        partner_of: Index of the mixed sample if this one was read as its partner, else None.
        file: The file that the error names, or ``dataset.sample_path(index)``, or None if there is neither.
        error: Name of the error's type.
        message: The error's message, at most 1,000 characters.
        replaced_by: The index whose sample is used instead, or None.
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
    partner_of: Any = None

    def __str__(self) -> str:
        return f"{_name(self.index, self.file, self.partner_of)}: {self.error}: {self.message}"


def _name(index: Any, file: str | None, partner_of: Any) -> str:
    """Return the name of a sample in messages; ``partner_of`` is the index of the mixed sample, or None."""
    name = f"sample {text_of(index)}" if file is None else f"sample {text_of(index)}, file {file}"
    return name if partner_of is None else f"{name}, a partner of sample {text_of(partner_of)}"


class PartialBatch(NamedTuple):
    """Samples, or a batch, with the records of the samples that failed.

    Attributes:
        contents: The samples that did not fail, or the batch.
        bad_samples: Records of the samples that failed.
        is_lost: True if no batch can be delivered.
    """

    contents: Any
    bad_samples: list[BadSample]
    is_lost: bool


# -- naming a sample in its error --------------------------------------------------------------------------


def name_sample(
    error: Exception,
    dataset: Any,
    dataset_index: Any,
    loader_indices: Iterable[Any],
    row: int,
    *,
    partner_of: Any = None,
) -> None:
    """Add the sample's name to an error as a note.

    Args:
        error: The error that ``dataset[dataset_index]`` raised.
        dataset: The dataset that raised it.
        dataset_index: The index into that dataset.
        loader_indices: The batch's indices into the loader's dataset, which may be a `Subset` of that one.
        row: The sample's place among these indices.
        partner_of: Index of the mixed sample whose partner this one is, or None.
    """
    try:
        index = list(loader_indices)[row]
    except Exception:
        # The indices were an iterator, which is exhausted now.
        return
    _note(error, _name(index, file_of(error, dataset, dataset_index), partner_of))


def name_batch(error: Exception, indices: Any) -> None:
    """Add the indices of a ``__getitems__`` call to its error as a note."""
    _note(error, f"one of the samples {text_of(indices)}")


def stop_iteration_as_error(error: StopIteration, source: str) -> RuntimeError:
    """Convert a StopIteration, which would end the epoch, to a RuntimeError, as generators do (PEP 479).

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
    """Add a note to an error once, because a dataset may raise the same object again and again."""
    # The error's class may define __notes__ or add_note itself.
    with contextlib.suppress(Exception):
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)


def file_of(error: Exception, dataset: Any, index: Any) -> str | None:
    """Return the error's ``filename``, or the dataset's ``sample_path(index)``, or None if there is neither."""
    # User code may fail here too, and its first error is the one to raise.
    with contextlib.suppress(Exception):
        name: Any = getattr(error, "filename", None)
        is_path = isinstance(name, (str, bytes, os.PathLike))
        return os.fsdecode(name if is_path else dataset.sample_path(index))
    return None


def text_of(value: Any) -> str:
    """Return ``str(value)``, at most 1,000 characters of it."""
    try:
        text = str(value)
    except Exception:
        # The class may define ``__str__`` itself.
        return f"(a {type(value).__name__})"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


# -- recording and reporting -------------------------------------------------------------------------------


def append_bad_samples(path: Path | str, records: Iterable[BadSample], **labels: Any) -> None:
    """Append records to a file, one JSON object per line. Without records no file is created.

    Args:
        path: The file; missing folders are created.
        records: Records of any epochs and ranks.
        labels: Keys and values at the start of each line, such as ``stage="train"``.

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
    """Return the number of bad samples and a description of the first ones."""
    num_replaced = sum(record.replaced_by is not None for record in records)
    counts = f"{counted(len(records), 'bad sample')} ({num_replaced} replaced)"
    descriptions = [str(record) for record in records[:_MAX_SHOWN]]
    if len(records) > _MAX_SHOWN:
        descriptions.append(f"and {len(records) - _MAX_SHOWN} more")
    return f"{counts}: {'; '.join(descriptions)}"


class BadSampleLog(WrappedBatches):
    """Record the bad samples of an epoch as its batches are delivered: see NOTE [When bad samples count].

    A warning reports them with batch number ``num_batches``, and the bad samples of later batches at the epoch's end.

    Args:
        batches: The epoch.
        epoch: Its number.
        rank: This process's rank.
        max_bad_samples: How many bad samples the epoch may have.
        num_batches: Number of batches of the epoch, or None if unknown. A consumer that knows it may stop after the
            last batch, which therefore triggers the report.
        seen: The indices of each batch, which are corrected to the delivered ones, or None if they have no reader.
        counters: The loader's counters, or None for new ones.

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
        counters: Counters | None = None,
    ) -> None:
        super().__init__(batches)
        self._counters = counters or Counters()
        self.epoch = epoch
        self.rank = rank
        self.max_bad_samples = max_bad_samples
        self.records: list[BadSample] = []
        self._num_batches = num_batches
        self._seen = seen
        self._num_delivered = 0
        self._num_reported = 0

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfEpoch: After the last one.
            TooManyBadSamplesError: If there were too many bad samples. The iteration may continue.
            BadBatchError: If the batch has no sample left. The iteration may continue.
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
                # The user turned the warning into an error. Raise it at the epoch's end: here the batch would be lost.
                self._num_reported = 0
        return batch

    def _record(self, partial: PartialBatch) -> Any:
        """Record the samples that failed, and return the batch.

        Raises:
            TooManyBadSamplesError: If the epoch has more bad samples than allowed.
            BadBatchError: If the batch has no sample left.
        """
        bad = [replace(record, epoch=self.epoch, rank=self.rank) for record in partial.bad_samples]
        self.records += bad
        self._counters.num_bad_samples += len(bad)
        if len(self.records) > self.max_bad_samples:
            raise TooManyBadSamplesError(
                f"{len(self.records)} bad samples in epoch {self.epoch} on rank {self.rank} exceed max_bad_samples="
                f"{self.max_bad_samples}; the last: {self.records[-1]}; repair these samples or leave them out "
                "(loader.bad_samples lists them), or raise max_bad_samples"
            )
        if not partial.is_lost:
            return partial.contents
        unreplaced = [record for record in bad if record.replaced_by is None]
        attempts = [record for record in unreplaced if record.row == unreplaced[0].row]
        where = f"batch {bad[0].batch} of epoch {self.epoch} on rank {self.rank}"
        if len(attempts) == 1:
            raise BadBatchError(
                f"{where} has no sample left, all {len(bad)} are bad; the first: {attempts[0]}; repair them or leave "
                'them out, raise batch_size, or set on_bad_sample="substitute"'
            )
        raise BadBatchError(
            f"{where}: a {'sample' if attempts[0].partner_of is None else 'partner'} is bad and so are its "
            f"{len(attempts) - 1} replacements; "
            f"{'; '.join(map(str, attempts))}; repair them or leave them out of the sampler, or set "
            'on_bad_sample="skip"'
        )

    def _report(self) -> None:
        """Warn of the epoch's bad samples if some of them were not reported yet."""
        if len(self.records) > self._num_reported:
            self._num_reported = len(self.records)
            where = f"epoch {self.epoch}, rank {self.rank}"
            text = f"{where}: {summarize(self.records)}; loader.bad_samples lists them all"
            warnings.warn(text, BadSamplesWarning, stacklevel=_CONSUMER_LEVEL)

    def _correct_seen(self, bad: list[BadSample]) -> None:
        """Replace the indices of bad samples by the indices of their replacements, or remove them."""
        number = bad[0].batch
        if self._seen is None or number >= len(self._seen):
            return
        # A mixed sample whose partner was replaced keeps its own index.
        replacement_by_row = {
            record.row: record.replaced_by for record in bad if record.partner_of is None or record.replaced_by is None
        }
        indices = [replacement_by_row.get(row, index) for row, index in enumerate(self._seen[number])]
        self._seen[number] = [index for index in indices if index is not None]
