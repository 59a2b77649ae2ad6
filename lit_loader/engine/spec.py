"""The engine's data types: specifications of the work, tasks and their keys, messages and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch.utils.data import IterableDataset

from lit_loader.foundation.stage_times import WorkTimes
from lit_loader.memory import PageLock
from lit_loader.mixing import Partner
from lit_loader.samplers import OrderSampler, num_batches
from lit_loader.samplers.custom_ranks import Gather, GlobalBatches
from lit_loader.types import CollateFn, WorkerInitFn

OnBadSample: TypeAlias = Literal["raise", "skip", "substitute"]
"""Policy for a sample whose ``dataset[index]`` raises an error."""

WorkerMethod: TypeAlias = Literal["multiprocessing", "thread"]
"""Kind of the workers: processes or threads."""

Resume: TypeAlias = Literal["exact", "same_sample", "restart"]
"""Policy for a state that does not fit: see `lit_loader.DataLoader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSpec:
    """How batches are made: the same inline, in worker threads and in worker processes.

    Attributes:
        dataset: The dataset; a worker process has its own copy, threads share the object.
        batched: True if a task names several samples, which are collated; False if it names one, which is converted.
        collate_fn: Called with the list of samples, or with the one sample.
        builtin_collate: True if ``collate_fn`` is one of lit_loader's: it draws no random numbers and keeps no sample.
        drop_last: True if an iterable dataset's last, short batch is dropped.
        on_bad_sample: Policy for samples that raise; errors of an iterable dataset are always raised.
        stream_state: True if workers send the iterable dataset's own state with each batch, and False if they send the
            number of samples alone.
        checked_epoch: The epoch whose first samples are made twice, or None: see `lit_loader.engine.repeatability`.
    """

    dataset: Any
    batched: bool
    collate_fn: CollateFn
    builtin_collate: bool
    drop_last: bool
    on_bad_sample: OnBadSample
    stream_state: bool
    checked_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The settings that are the same for all workers of a backend.

    Attributes:
        fetch: How batches are made.
        num_workers: Number of workers.
        base_seed: Worker w is seeded with ``base_seed + w``.
        worker_init_fn: Called once in each worker, after its seeding.
        keyed: True if tasks have keys.
        default_dtype: torch's default dtype, which a process that is not forked would not have.
    """

    fetch: FetchSpec
    num_workers: int
    base_seed: int
    worker_init_fn: WorkerInitFn | None
    keyed: bool
    default_dtype: torch.dtype

    @property
    def shared_tasks(self) -> bool:
        """True if any idle worker may take the next task, because the samples do not depend on the worker."""
        return self.keyed and not isinstance(self.fetch.dataset, IterableDataset)


Seen: TypeAlias = list[list[Any]] | None
"""Collects the indices of each batch, or None if they are not needed."""


class BatchSlicing(NamedTuple):
    """How batches are sliced from the order of an `OrderSampler`; ``batch_size=None`` gives single samples."""

    sampler: OrderSampler
    batch_size: int | None
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderSpec:
    """A loader's settings, created from its attributes for each epoch; no other module uses the loader itself.

    A loader without a seed has a `LoaderSpec`, a loader with a seed a `KeyedSpec`.

    Attributes:
        fetch: How batches are made.
        is_iterable: True if the dataset is an iterable one.
        sampler: The loader's sampler.
        batch_sampler: The loader's batch sampler; in a prediction under Lightning its wrapper.
        index_sampler: The batch sampler, or the sampler without batching.
        batch_size: The loader's batch size.
        rank: This process's rank.
        world_size: Number of ranks.
        num_workers: Number of workers, or 0 to make batches in the consumer's thread.
        worker_method: "multiprocessing" or "thread".
        multiprocessing_context: Creates the processes, or None for the default.
        worker_init_fn: Called in each worker.
        generator: Draws the base seed and torch's shuffled order, or None.
        prefetch_factor: Batches that each worker makes ahead.
        persistent_workers: True if workers are kept from epoch to epoch.
        in_order: True if batches are delivered in order.
        timeout_s: Seconds to wait for a batch, or 0 for no limit.
        max_worker_restarts: How many worker processes that ended are replaced in an epoch, or None for the default.
        hang_timeout_s: Seconds that a worker process may take for one sample, or None for no limit.
        page_lock: Page-locks the slots that batches are written to, or None.
        resume: Policy for states that do not fit.
        default_dtype: torch's default dtype.
    """

    fetch: FetchSpec
    is_iterable: bool
    sampler: Any
    batch_sampler: Any
    index_sampler: Any
    batch_size: int | None
    rank: int
    world_size: int
    num_workers: int
    worker_method: WorkerMethod
    multiprocessing_context: Any
    worker_init_fn: WorkerInitFn | None
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    timeout_s: float
    max_worker_restarts: int | None
    hang_timeout_s: float | None
    page_lock: PageLock | None
    resume: Resume
    default_dtype: torch.dtype

    @property
    def keeps_workers(self) -> bool:
        """True if the workers of an epoch also serve the next one."""
        return self.persistent_workers and self.num_workers > 0

    @property
    def custom_sampler(self) -> Any:
        """The sampler or batch sampler that the user passed; torch's loader has created the other one."""
        is_batched = self.batch_size is not None or self.batch_sampler is None
        return self.sampler if is_batched else self.batch_sampler

    def count_batches(self) -> int:
        """Return the number of batches of an epoch, on this rank.

        Raises:
            TypeError: If the sampler has no length.
        """
        return len(self.index_sampler)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedSpec(LoaderSpec):
    """The settings of a loader with a seed.

    Attributes:
        seed: The loader's seed.
        slicing: How batches are sliced from an order, or None if a sampler is iterated.
        global_batches: The global batches of a custom sampler that is split over ranks, or None if it is not split.
        gather: The collective by which the ranks compare a custom sampler, or None if they need not.
        check_repeatability: True if the first samples of a dataset's first epoch are made twice and compared.
    """

    seed: int
    slicing: BatchSlicing | None
    global_batches: GlobalBatches | None
    gather: Gather | None
    check_repeatability: bool

    @property
    def counted_sampler(self) -> Any:
        """The batches (or indices) of this rank, or the global batches; its length is the loader's."""
        return self.index_sampler if self.global_batches is None else self.global_batches

    def count_batches(self) -> int:
        """Return the number of batches of an epoch, on this rank; see `LoaderSpec.count_batches`."""
        if self.slicing is None:
            return len(self.counted_sampler)
        return self.count_sliced(self.slicing, len(self.slicing.sampler))

    def count_sliced(self, slicing: BatchSlicing, num_positions: int) -> int:
        """Return the number of batches that this many positions of the order give, on this rank."""
        return num_batches(
            num_positions, batch_size=slicing.batch_size or 1, world_size=self.world_size, drop_last=slicing.drop_last
        )


class BatchKey(NamedTuple):
    """Seeds the generators for a batch and its samples.

    Attributes:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        batch: Number of the batch in the epoch, over all ranks.
        first: Position of its first sample in the global order; the others follow it.
        rank: This process's rank, which is part of the keys of an iterable dataset: it has no global order.
        num_positions: Length of the global order; later positions are duplicates. None if there are none.
    """

    seed: int
    epoch: int
    batch: int = 0
    first: int = 0
    rank: int = 0
    num_positions: int | None = None


class StreamPlace(NamedTuple):
    """A worker's position in its stream of an iterable dataset.

    Attributes:
        samples: How many samples it has taken.
        batches: How many batches it has made of them.
        ended: True if its stream has ended.
        state: The dataset's and its iterator's ``state_dict()`` there, as a pickled pair of plain values, or None if
            samples are counted.
        first: Digests of that pair before and after the epoch's first sample; None without a state.
    """

    samples: int
    batches: int
    ended: bool = False
    state: bytes | None = None
    first: str | None = None


class Task(NamedTuple):
    """One batch to make.

    Attributes:
        index: The sampler's item: an index or a container of indices; for an iterable dataset None, or a container as
            long as the batch.
        key: Seeds the generators, or None in a loader without a seed, where they are not seeded.
        number: Number of the batch in this rank's epoch.
        spares: For each sample the indices that may replace it, in order, or None if it is not to be replaced.
        places: For the first tasks of an iterable dataset, the position at which each worker begins, or None.
        partners: For each sample its partners, or None if no sample of the epoch is mixed.
    """

    index: Any
    key: BatchKey | None = None
    number: int = 0
    spares: list[list[int]] | None = None
    places: list[StreamPlace] | None = None
    partners: list[list[Partner]] | None = None


class Kind(IntEnum):
    """Kinds of message between the main process and a worker; see `lit_loader.engine.worker`."""

    # to a worker
    ITERATE = 0  # call ``iter(dataset)`` now, not at the epoch's first task
    TASK = 1
    MEASURED_TASK = 2  # its answer has the times of the worker
    END_EPOCH = 3
    REPORT = 4  # to be answered with REPORTED
    STOP = 5
    # from a worker
    RESULT = 6
    ERROR = 7
    STREAM_ENDED = 8  # the worker's iterable dataset has no more samples
    SKIPPED = 9  # the task's epoch had ended
    REPORTED = 10
    NOTICE = 11  # the text of a warning


class Message(NamedTuple):
    """A message between the main process and a worker, without its contents.

    Attributes:
        kind: Its kind.
        epoch: Number of the epoch on this backend.
        number: Number of the task in the epoch.
        slot: Number of the slot that the batch is written to, or -1 if the batch is part of the contents. In the answer
            to a task that had a slot, -1 means that the slot must not be used again.
        round: Number of the round, for REPORT and REPORTED.
    """

    kind: Kind
    epoch: int = 0
    number: int = 0
    slot: int = -1
    round: int = 0


class Result(NamedTuple):
    """The result of a task; the backend's ``open`` returns the batch, or raises the worker's error.

    Attributes:
        kind: RESULT, ERROR or STREAM_ENDED.
        number: Number of the task in its epoch.
        worker: Number of the worker.
        payload: The batch or the error, in the backend's own form.
        times: Times of the worker, or None if the task was not measured.
    """

    kind: Kind
    number: int
    worker: int
    payload: Any
    times: WorkTimes | None = None


class Batches(Protocol):
    """The batches of one epoch: of the scheduler, or of a wrapper around it.

    The wrappers are `BadSampleLog` (``on_bad_sample``), `StreamBatches` (positions in an iterable dataset),
    `TimedBatches` (how long the consumer waited; held batches), the transfer to page-locked memory or to a device, and
    `TimedTransfer`; each but `TimedBatches` is used only if it is needed.
    """

    def next_batch(self) -> Any:
        """Return the next batch.

        Raises:
            EndOfEpoch: After the last one.
        """

    def poll(self) -> bool:
        """Return whether `next_batch` would return or raise at once."""

    def wait_until_idle(self) -> None:
        """Wait until the workers have finished every task that was sent; errors are left to `next_batch`."""

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""

    def close(self) -> None:
        """Drop the epoch, and end workers that serve it alone."""


class WrappedBatches:
    """Base of wrappers around other `Batches`: a subclass changes ``next_batch``.

    Attributes:
        device_wait_s: Seconds for which ``next_batch`` has waited for the device to finish earlier work.
    """

    device_wait_s: float = 0.0

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def next_batch(self) -> Any:
        """Return the next batch, or raise an error or EndOfEpoch."""
        return self._batches.next_batch()

    def poll(self) -> bool:
        """Return whether ``next_batch`` would return or raise at once."""
        return self._batches.poll()

    def wait_until_idle(self) -> None:
        """Wait until the workers have finished every task that was sent."""
        self._batches.wait_until_idle()

    @property
    def workers(self) -> list[Any]:
        """The worker processes or threads."""
        return self._batches.workers

    def close(self) -> None:
        """Drop the epoch."""
        self._batches.close()


TransferFn: TypeAlias = Callable[[Batches], WrappedBatches]
"""Returns the batches page-locked, or on a device."""


class EndOfEpoch(Exception):
    """An epoch has no more batches."""


class BatchTimeoutError(RuntimeError):
    """No batch came for ``timeout`` seconds; the same batch may still come.

    The iterator raises it to the user as a RuntimeError, as torch does.
    """
