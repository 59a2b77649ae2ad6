"""Statistics of a loader: times of the stages in its workers, waiting, queue depth, bytes and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

Stage: TypeAlias = Literal["read", "decode", "transform", "sample", "collate", "send"]
STAGES: Final[tuple[Stage, ...]] = ("read", "decode", "transform", "sample", "collate", "send")
"""Stages of making a batch. ``read``: bytes of files. ``decode``: pixels from bytes, or from the cache of decoded
images. ``transform``: transforms without the decoding that they cause. ``sample``: all other time in the dataset, which
is all of it for a dataset of your own. ``collate``: the collate function. ``send``: handing the batch over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Totals of a loader since it was created, over all its iterators; the difference of two is a period.

    Attributes:
        time_s: Time of the snapshot by ``time.perf_counter()``; of a difference, its duration.
        wait_s: Seconds for which the consumer waited for the engine, or made batches itself without workers.
        transfer_s: Seconds for which it waited for page-locking and copies to a device, without `wait_s`.
        num_batches: Number of delivered batches.
        num_samples: Number of samples in the batches that workers finished.
        ready_batches: Sum over delivered batches of the batches that were ready when the consumer asked.
        capacity: Sum over delivered batches of the largest number of batches that can be ready; 0 without workers.
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
