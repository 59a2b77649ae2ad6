"""Statistics of a loader: times of the stages in its workers, waiting, queue depth, bytes and faults."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from lit_loader.foundation.stage_times import STAGES, Stage, WorkTimes

__all__ = ["BatchRecord", "Counters", "LoaderStats", "STAGES", "Stage"]

_MAX_RECORDS: Final = 256
_MAX_NEW: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Totals of a loader since it was created, over all its iterators; the difference of two is a period.

    Attributes:
        time_s: Time of the snapshot by ``time.perf_counter()``; of a difference, its duration.
        wait_s: Seconds for which the consumer waited for the engine, or made batches itself without workers.
        transfer_s: Seconds for which it waited for page-locking and for copies to a device to be started, without
            `wait_s`, and without waiting for the device to finish earlier work.
        hold_s: Seconds in which batches were collected after ``hold_batches``; not part of `wait_s`.
        num_batches: Number of delivered batches.
        num_samples: Number of samples in the batches that workers finished.
        ready_batches: Sum, over the times at which the engine was asked for a batch, of the batches that workers had
            ready. A batch that is not delivered yet is still missing in it.
        capacity: Sum over the same times of the largest number of batches that could be ready; 0 without workers.
        received_bytes: Bytes that worker processes handed over; 0 for threads and without workers.
        read_bytes: Bytes of files that datasets of lit_loader read.
        num_restarts: Number of worker processes that ended and were replaced.
        num_bad_samples: Number of samples that were skipped or replaced.
        num_workers: Number of workers; of a difference, of the later snapshot.
        stage_s: Seconds in each of `STAGES`, summed over workers, or of the consumer without workers.
        cpu_s: CPU seconds of the threads that made the batches.
        idle_s: Seconds for which workers waited for a task, summed over workers.
    """

    time_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    hold_s: float = 0.0
    num_batches: int = 0
    num_samples: int = 0
    ready_batches: int = 0
    capacity: int = 0
    received_bytes: int = 0
    read_bytes: int = 0
    num_restarts: int = 0
    num_bad_samples: int = 0
    num_workers: int = 0
    stage_s: Mapping[Stage, float]
    cpu_s: float = 0.0
    idle_s: float = 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        values: dict[str, Any] = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name not in ("stage_s", "num_workers")
        }
        stage_s = {stage: self.stage_s[stage] - earlier.stage_s[stage] for stage in STAGES}
        return LoaderStats(**values, stage_s=stage_s, num_workers=self.num_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Times of one batch, by ``time.perf_counter()`` of this machine.

    Attributes:
        worker: Number of the worker, or 0 without workers.
        number: Number of the batch in its epoch on this rank.
        num_samples: Number of its samples.
        start_s: Time at which the worker began it.
        end_s: Time at which it was handed over.
        stage_s: Seconds in each of `STAGES`; they add up to the time between.
    """

    worker: int
    number: int
    num_samples: int
    start_s: float
    end_s: float
    stage_s: Mapping[Stage, float]


class Counters:
    """Sums of a loader over all its iterators, which its consumers and its engine add to.

    Runs in: the consumer's threads. If several of them use one loader at the same time, some of its batches may be
    missing in the sums.

    Attributes:
        wait_s: See `LoaderStats`, as for the following.
        transfer_s: Seconds of the transfer.
        hold_s: Seconds in which batches were collected.
        num_batches: Number of delivered batches.
        ready_batches: Sum of ready batches.
        capacity: Sum of capacities.
        num_restarts: Number of replaced workers.
        num_bad_samples: Number of bad samples.
        is_measuring: True from the first `stats` or `batch_records` on. Before it, tasks are not measured, because that
            makes tiny batches slower: without workers, four samples take twice the time.
        is_holding: True while batches are collected, which are not asked for at the consumer's pace.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.transfer_s = 0.0
        self.hold_s = 0.0
        self.num_batches = 0
        self.ready_batches = 0
        self.capacity = 0
        self.num_restarts = 0
        self.num_bad_samples = 0
        self.is_measuring = False
        self.is_holding = False
        # Sums of the fields of `WorkTimes`; the sums of batch numbers and end times are meaningless.
        self._sums = WorkTimes()
        # Time from which workers count as idle.
        self._idle_start_s = 0.0
        # Not part of the sums yet: adding up many at a time costs less than adding one by one.
        self._new: deque[WorkTimes] = deque()
        self._recent: deque[tuple[int, WorkTimes]] = deque(maxlen=_MAX_RECORDS)

    def add(self, worker: int, times: WorkTimes, is_batch: bool) -> None:
        """Add the times of a worker's answer; a batch also gets a `BatchRecord`."""
        self._new.append(times)
        if is_batch:
            self._recent.append((worker, times))
        if len(self._new) >= _MAX_NEW:
            self._add_up()

    def _add_up(self) -> None:
        rows: list[WorkTimes] = []
        # Another thread may empty it at the same time.
        with contextlib.suppress(IndexError):
            while True:
                rows.append(self._new.popleft())
        if self._idle_start_s:
            rows = [_without_idle_before(self._idle_start_s, times) for times in rows]
        self._sums = WorkTimes(*map(sum, zip(self._sums, *rows, strict=True)))

    def stats(self, num_workers: int, *, restart_idle: bool = False) -> LoaderStats:
        """Return the present totals of a loader with this number of workers: see `DataLoader.stats`."""
        self.is_measuring = True
        self._add_up()
        if restart_idle:
            self._idle_start_s = time.perf_counter()
        sums = self._sums
        return LoaderStats(
            time_s=time.perf_counter(),
            wait_s=self.wait_s,
            transfer_s=self.transfer_s,
            hold_s=self.hold_s,
            num_batches=self.num_batches,
            num_samples=sums.num_samples,
            ready_batches=self.ready_batches,
            capacity=self.capacity,
            received_bytes=sums.sent_bytes,
            read_bytes=sums.read_bytes,
            num_restarts=self.num_restarts,
            num_bad_samples=self.num_bad_samples,
            num_workers=num_workers,
            stage_s=dict(zip(STAGES, sums.stage_s, strict=True)),
            cpu_s=sums.cpu_s,
            idle_s=sums.idle_s,
        )

    def batch_records(self) -> list[BatchRecord]:
        """Return the records of the recent batches, in the order in which they arrived, and measure from now on."""
        self.is_measuring = True
        return [
            BatchRecord(
                worker=worker,
                number=times.number,
                num_samples=times.num_samples,
                start_s=times.end_s - sum(times.stage_s),
                end_s=times.end_s,
                stage_s=dict(zip(STAGES, times.stage_s, strict=True)),
            )
            # A copy, because another thread may add one meanwhile.
            for worker, times in list(self._recent)
        ]


def _without_idle_before(start_s: float, times: WorkTimes) -> WorkTimes:
    """Return the times of an answer without idle time before ``start_s``."""
    # A worker is idle first, and then makes its batch.
    work_start_s = times.end_s - sum(times.stage_s)
    return times._replace(idle_s=min(times.idle_s, max(0.0, work_start_s - start_s)))
