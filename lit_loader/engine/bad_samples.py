"""Bad samples on the consumer's side: what is recorded of an epoch, how many it may have, and the report at its end.

NOTE [When they count]
    What failed travels with its batch and counts when the batch is delivered, in the order in which the consumer gets
    them. So every backend counts the same at every batch, batches of the next epoch that are made ahead count for that
    one, and what was made and never delivered does not count. A batch that raises something else (its collate function,
    say) is not delivered, and neither are its records.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from lit_loader.engine.failures import Failure, Flawed
from lit_loader.engine.task import EndOfPass
from lit_loader.errors import BadBatchError, BadSamplesWarning, TooManyBadSamplesError

__all__ = ["BadSample", "BadSampleLog", "ReportingRun", "append_bad_samples", "summary_of"]

_MOST_SHOWN = 3
_CONSUMER = 5  # frames up from `BadSampleLog.report`: the run, the iterator's two, and whose loop it is


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """One call of ``dataset[index]`` that failed and was not raised; a replacement that failed too is another one.

    Attributes:
        epoch: The epoch, from 0.
        rank: The process that asked for it.
        batch: Number of the batch in this rank's epoch, from 0.
        position: The sample's position in the global order; None without a seed.
        index: What the loader's dataset was asked for.
        file: The file that the error names, or that ``dataset.sample_path(index)`` does; None: neither does.
        error: Name of the error's type.
        message: The error's message, at most 1,000 characters.
        replaced_by: The index whose sample took its place in the batch; None: none did.
    """

    epoch: int
    rank: int
    batch: int
    position: int | None
    index: Any
    file: str | None
    error: str
    message: str
    replaced_by: Any = None

    def __str__(self) -> str:
        file = "" if self.file is None else f", file {self.file}"
        return f"sample {self.index}{file}: {self.error}: {self.message}"


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


def summary_of(records: list[BadSample]) -> str:
    """Return how many samples are bad and what the first ones are."""
    replaced = sum(record.replaced_by is not None for record in records)
    counts = f"{len(records)} bad sample{'s' * (len(records) != 1)} ({replaced} replaced)"
    more = len(records) - _MOST_SHOWN
    shown = [str(record) for record in records[:_MOST_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    return f"{counts}: {'; '.join(shown)}"


class BadSampleLog:
    """The bad samples of one pass: see NOTE [When they count].

    Args:
        epoch: The epoch of the pass.
        rank: This process's number.
        max_bad_samples: How many of them the pass may have.

    Attributes:
        records: What was delivered so far, in order.
    """

    def __init__(self, *, epoch: int, rank: int, max_bad_samples: int) -> None:
        self.epoch, self.rank, self.max_bad_samples = epoch, rank, max_bad_samples
        self.records: list[BadSample] = []
        self._num_reported = 0

    def deliver(self, flawed: Flawed) -> Any:
        """Record what failed, and return the batch.

        Raises:
            TooManyBadSamplesError: If this brings the count over the bound, or it was over it before.
            BadBatchError: If there is no batch to deliver.
        """
        self.records += [
            BadSample(
                epoch=self.epoch,
                rank=self.rank,
                batch=failure.batch,
                position=failure.position,
                index=failure.index,
                file=failure.file,
                error=failure.error,
                message=failure.message,
                replaced_by=failure.replaced_by,
            )
            for failure in flawed.failures
        ]
        if len(self.records) > self.max_bad_samples:
            raise TooManyBadSamplesError(
                f"{len(self.records)} bad samples in epoch {self.epoch} on rank {self.rank}, and max_bad_samples="
                f"{self.max_bad_samples} is the most; the last: {self.records[-1]}; mend these samples or leave them "
                "out (loader.bad_samples lists them), or give a larger max_bad_samples"
            )
        if flawed.lost:
            raise BadBatchError(self._why_lost(flawed.failures))
        return flawed.made

    def _why_lost(self, failures: list[Failure]) -> str:
        recorded = self.records[-len(failures) :]
        row = next(failure.row for failure in failures if failure.replaced_by is None)
        tries = [record for record, failure in zip(recorded, failures, strict=True) if failure.row == row]
        where = f"batch {failures[0].batch} of epoch {self.epoch} on rank {self.rank}"
        if len(tries) == 1:
            return (
                f"{where} has no sample left, all {len(failures)} are bad; the first: {tries[0]}; mend them or leave "
                'them out, give a larger batch_size, or on_bad_sample="substitute"'
            )
        listed = "; ".join(map(str, tries))
        return (
            f"{where}: a sample is bad and so are the {len(tries) - 1} that were to replace it; {listed}; mend them or "
            'leave them out of the sampler, or give on_bad_sample="skip"'
        )

    def report(self, *, final: bool) -> None:
        """Warn of what was not reported yet.

        Args:
            final: Whether it counts as reported even if the warning is made an error.
        """
        if len(self.records) == self._num_reported:
            return
        num_reported = len(self.records)
        if final:
            self._num_reported = num_reported
        where = f"epoch {self.epoch}, rank {self.rank}"
        text = f"{where}: {summary_of(self.records)}; loader.bad_samples lists them all"
        warnings.warn(text, BadSamplesWarning, stacklevel=_CONSUMER)
        self._num_reported = num_reported


class Run(Protocol):
    """A pass."""

    def next_batch(self) -> Any:
        """Return the next batch or raise EndOfPass."""

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""

    def poll(self) -> bool:
        """Whether `next_batch` would return or raise at once."""

    def close(self) -> None:
        """Drop the pass."""


class ReportingRun:
    """A pass whose bad samples are recorded as its batches are delivered, and reported with the last one.

    Args:
        run: The pass.
        log: Its records.
        num_batches: How many batches it has, as a consumer that knows it asks for no more; None: not known, and the
            report comes when there are no more.
        seen: The indices of each batch, which are brought in line with what is delivered; None: nobody reads them.
    """

    def __init__(
        self, run: Run, log: BadSampleLog, *, num_batches: int | None, seen: list[list[Any]] | None
    ) -> None:
        self._run, self._log, self._num_batches, self._seen = run, log, num_batches, seen
        self._num_delivered = 0

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfPass: After the last one.
            TooManyBadSamplesError: If there were too many bad samples; the iteration may go on.
            BadBatchError: If nothing is left of the batch; the iteration may go on.
            Exception: As the pass does.
        """
        try:
            batch = self._run.next_batch()
        except EndOfPass:
            self._log.report(final=True)
            raise
        self._num_delivered += 1
        if type(batch) is Flawed:
            self._correct_seen(batch.failures)
            batch = self._log.deliver(batch)
        if self._num_delivered == self._num_batches:
            try:
                self._log.report(final=False)
            except BadSamplesWarning:  # warnings are errors here: raised at the end, not in the batch's place
                return batch
        return batch

    def _correct_seen(self, failures: list[Failure]) -> None:
        number = failures[0].batch
        if self._seen is None or number >= len(self._seen):
            return
        replaced = {failure.row: failure.replaced_by for failure in failures}
        indices = [replaced.get(row, index) for row, index in enumerate(self._seen[number])]
        self._seen[number] = [index for index in indices if index is not None]

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self._run.workers

    def poll(self) -> bool:
        """Whether `next_batch` would return or raise at once."""
        return self._run.poll()

    def close(self) -> None:
        """Drop the pass."""
        self._run.close()
