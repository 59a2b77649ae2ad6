"""The loader: torch's constructor and attributes, in front of an engine of our own.

NOTE [Two regimes]
    ``seed=None``   torch to the letter: a base seed drawn from ``generator``, worker w seeded with base + w,
                    whole batches dealt to workers in turns, the sampler iterated when ``iter()`` is called
    ``seed=int``    every sample has a key of its own (seed, epoch, position), so that a batch is the same
                    bits whichever worker makes it, and any idle one does; orders of ours are cut into global
                    batches by slicing; an iterator claims its epoch at its first ``next()``
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from lit_loader.arguments import (
    check_arguments,
    check_batch_sampler,
    check_iterable_now,
    check_replacement,
    check_worker_method,
)
from lit_loader.device import CudaPageLock, checked_device, delivery, find_page_lock
from lit_loader.engine import BadSample, BadSampleLog, OnBadSample
from lit_loader.errors import ResumeWarning
from lit_loader.global_batches import GlobalBatches, find_global_batches
from lit_loader.injection import settle_rebuilding, taken_as_ours, unwrapped
from lit_loader.iterator import EngineRun, LengthClaim, LoaderIterator
from lit_loader.passes import Passes
from lit_loader.planning import Cut, find_cut, index_sampler
from lit_loader.rank_agreement import Gather
from lit_loader.reporting import check_bad_samples, reporting_run
from lit_loader.resume import Progress, StateRefusedError
from lit_loader.samplers import RandomSampler, SequentialSampler, num_batches
from lit_loader.standing import Standing
from lit_loader.states import Resume, check_resume
from lit_loader.types import CollateFn, WorkerInitFn

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

# What torch's loader shows in the profiler, so that traces of both can be compared.
_INLINE_LABEL = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_WORKERS_LABEL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class DataLoader(TorchDataLoader[T_co]):
    """torch's ``DataLoader`` with the same bits everywhere, on an engine of our own.

    Every argument of ``torch.utils.data.DataLoader`` is taken with torch's meaning; see torch's
    documentation for those. With ``seed=None`` (the default) the loader behaves as torch's does.

    Args:
        dataset: A map or an iterable dataset.
        batch_size: Samples a batch, on each rank; None: no batching.
        shuffle: Draw a new order each epoch.
        sampler: A sampler of ours (`lit_loader.samplers`) or any iterable of indices. With a seed, torch's own
            ``SequentialSampler`` and ``RandomSampler`` (without replacement, num_samples or generator) are taken as
            ours: they know neither seed nor rank, and Lightning puts the first in others' place to overfit. With a seed
            and several ranks, any other sampler is iterated as a whole by every rank, with draws keyed by seed and
            epoch, and each rank takes its part of every global batch, as of an order of ours. One that gives each rank
            its own part is taken as it is: a ``DistributedSampler``, or one that shows the number of ranks and the rank
            as ints (``num_replicas`` and ``rank``; ``world_size``, ``num_shards``, ... are known too). In the first
            ``next()`` of a loader's first epoch the ranks of the process group compare the number of batches and a hash
            of the epoch's indices; all ranks must come there, and one that differs is refused on all of them. Of a
            sampler without a length, or with a ``state_dict``, only the first global batch is compared; of one that
            gives each rank its own part, only the number of batches. Without a seed every rank gets what it would with
            torch's loader; where Lightning replaces the sampler and that is not what it gives, one warning says so.
        batch_sampler: Any iterable of containers of indices. With a seed, torch's ``BatchSampler`` is cut like
            ``batch_size``. Of any other, ``world_size`` consecutive batches make a global batch, of which each rank
            takes one; an incomplete last one is filled up with the first batches, marked as duplicates. What is shown
            as ``loader.sampler`` beside it is there for Lightning to see.
        num_workers: Workers; 0: batches are made in this process and thread.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Copy tensors to page-locked memory before they are returned, as torch does. With ``device``, the
            shared memory that worker processes write to is page-locked instead.
        drop_last: Leave out the last batch if it is not full.
        timeout: Seconds to wait for a batch from workers; 0: for ever.
        worker_init_fn: Called in each worker with its number, after the worker's seeding. With a seed, what it
            seeds is overridden for each sample.
        multiprocessing_context: A start method or a context.
        generator: Draws the base seed and torch's shuffled order; refused with a seed, which replaces it.
        seed: Makes batch b of epoch e a function of (seed, e, b, dataset, sampler, global batch size).
        rank: This process's number; None: from the initialised process group, else 0.
        world_size: How many ranks share the order; None: from the initialised process group, else 1.
        worker_method: "multiprocessing" or "thread". Threads share the dataset object and need no memory of
            their own, which pays where samples are long calls that let go of the GIL. Each has a worker info and a
            seed of its own, and torch's draws in it are its own. A dataset that draws from the generators of ``random``
            or ``numpy.random``, which threads share, is refused if there is a seed.
        max_worker_restarts: With a seed and a map dataset: how many worker processes that ended (out of memory,
            killed, crashed) are replaced in an epoch, with a warning; what they had in hand is made again, the same
            bits. None: 3. One more, or any without a seed, raises `lit_loader.errors.WorkerDiedError`, as in torch.
        hang_timeout_s: Seconds that a worker process may be at one sample (without a seed, or with ``__getitems__``:
            one batch), while a batch is waited for. The Python stacks of one that takes longer are printed to standard
            error, it is killed, and counts as ended. None: for ever.
        on_bad_sample: What becomes of a sample whose ``dataset[index]`` raises an ``Exception``, but for MemoryError.
            "raise": it is raised, the sample named. "skip": the batch goes without it; a batch that nothing is left of
            raises `lit_loader.errors.BadBatchError`, and is never left out. "substitute", with a seed and a sampler of
            ours: another index of the sampler's order takes its place, drawn from the sample's own key, at most three
            tries. The last two need a map dataset without ``__getitems__``; see `bad_samples` for what is told.
        max_bad_samples: How many samples may be bad in an epoch on each rank: the batch that brings more raises
            `lit_loader.errors.TooManyBadSamplesError`. None: 100.
        device: Where batches are when they are returned; None: where they were made. The next batch is copied on a
            side stream while this one is used, if workers have it ready; ``pin_memory=True`` lets such a copy run
            beside everything else. "cpu": nothing is copied. Tensors are moved wherever they stand in tuples, lists,
            mappings, named tuples and dataclasses, and any object that has a ``to()`` as a whole.
        prefetch_factor: Batches that each worker makes ahead; with a seed, besides the one in its hand.
        persistent_workers: Keep the workers from epoch to epoch. With a seed and an order of ours, the next
            epoch's first batches are made before this one ends.
        pin_memory_device: Deprecated by torch, and ignored as torch does.
        in_order: Deliver batches in order.
        resume: What `load_state_dict` does with a state that does not fit. "exact": refuse it. "same_sample": take one
            of another global batch size, and go on from the same sample. "restart": leave it aside, with a warning, as
            every loader without a seed does.

    Raises:
        TypeError: If the dataset is a DataPipe, ``seed`` is no int, or ``device`` is of another type.
        ValueError: As torch does, and for a rank outside of its world, a generator beside a seed, a context
            beside worker threads, an unknown ``worker_method``, a policy on bad samples that cannot be kept,
            or a device that is not here.

    Determinism: see NOTE [Two regimes] in this module. Outside the promise: generators that a dataset owns
        privately, and sums whose bits depend on the number of intra-op threads.
    Owns: persistent workers, until `close`, until it is collected, or until the interpreter exits.
    """

    seed: int | None
    rank: int | None
    world_size: int | None
    worker_method: Literal["multiprocessing", "thread"]
    max_worker_restarts: int | None
    hang_timeout_s: float | None
    on_bad_sample: OnBadSample
    max_bad_samples: int | None
    device: torch.device | None
    resume: Resume

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: WorkerInitFn | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        worker_method: Literal["multiprocessing", "thread"] = "multiprocessing",
        max_worker_restarts: int | None = None,
        hang_timeout_s: float | None = None,
        on_bad_sample: OnBadSample = "raise",
        max_bad_samples: int | None = None,
        device: str | torch.device | None = None,
        resume: Resume = "exact",
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        check_arguments(dataset, seed, rank, world_size, generator)
        check_worker_method(worker_method, multiprocessing_context)
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.worker_method = worker_method
        self.max_worker_restarts, self.hang_timeout_s = max_worker_restarts, hang_timeout_s
        self.on_bad_sample, self.max_bad_samples = on_bad_sample, max_bad_samples
        self._bad_sample_log: BadSampleLog | None = None
        self.device = checked_device(device)
        check_resume(resume)
        self.resume = resume
        self._passes = Passes()
        self._standing = Standing()
        self._alike = False
        ours = seed is not None and sampler is None and batch_sampler is None
        if ours and not isinstance(dataset, IterableDataset):
            sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)  # type: ignore[arg-type] # has a length
            shuffle = None
        if seed is not None:
            check_batch_sampler(batch_sampler)
            sampler, batch_sampler = taken_as_ours(sampler, batch_sampler)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        settle_rebuilding(self, sampler, batch_sampler)
        check_bad_samples(self)
        check_replacement(
            max_worker_restarts,
            hang_timeout_s,
            processes=num_workers > 0 and worker_method == "multiprocessing",
            keyed=seed is not None and not isinstance(dataset, IterableDataset),
        )

    # -- epochs, ranks, length ----------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next iterator claims; a sampler that has ``set_epoch`` hears it too.

        Without a seed that is all it does: torch's samplers know no epochs.

        Raises:
            ValueError: If ``epoch`` is negative.
        """
        self._standing.name(self, epoch)

    @property
    def _next_epoch(self) -> int:
        return self._standing.epochs.next

    @property
    def _cut(self) -> Cut | None:
        """How batches are sliced from an order of ours; None: an index sampler is iterated, as in torch."""
        return None if self.seed is None else find_cut(self.sampler, self.batch_sampler)

    @property
    def _place(self) -> tuple[int, int]:
        """Return rank and world size: as given, else the process group's, else 0 of 1."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1

    @property
    def _global_batches(self) -> GlobalBatches | None:
        """What a rank's part of a user's sampler is cut from; None: it is taken as it is."""
        if self.seed is None or self._cut is not None or isinstance(self.dataset, IterableDataset):
            return None
        return find_global_batches(self.sampler, unwrapped(self.batch_sampler), self._place[1])

    @property
    def _gather(self) -> Gather | None:
        """What the ranks compare a user's sampler by; None: they have, or are not those of the process group."""
        if self._alike or not (dist.is_available() and dist.is_initialized()):
            return None
        ranks = dist.get_world_size()
        return _gathered if ranks > 1 and self._place == (dist.get_rank(), ranks) else None

    def _ranks_compared(self) -> None:
        self._alike = True

    def __len__(self) -> int:
        cut = self._cut is not None or self._global_batches is not None
        return self._count_batches()() if cut else super().__len__()

    def _count_batches(self) -> Callable[[], int]:
        """Return what counts the batches of a pass, without a reference to the loader."""
        cut, indices, world_size = self._cut, index_sampler(self), self._place[1]
        if cut is None:
            return lambda: len(indices)
        size = cut.batch_size or 1
        return lambda: num_batches(
            len(cut.sampler), batch_size=size, world_size=world_size, drop_last=cut.drop_last
        )

    # -- iteration ----------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[T_co]:
        """Return an iterator over one epoch."""
        if self.seed is not None or not self.persistent_workers or self.num_workers == 0:
            return self._get_iterator()
        iterator: Any = self._iterator
        if iterator is None:
            iterator = self._iterator = self._get_iterator()
        else:  # torch's persistent iterator is one object, started again by each iter()
            again = partial(self._start_pass, again=True)
            iterator.restart(again, lazy=False, claim=self._length_claim())
        return cast("LoaderIterator[T_co]", iterator)

    def _get_iterator(self) -> LoaderIterator[T_co]:
        check_iterable_now(
            num_workers=self.num_workers, prefetch_factor=self.prefetch_factor, timeout=self.timeout
        )
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        return LoaderIterator(
            self._start_pass,
            lazy=self.seed is not None,
            has_workers=self.num_workers > 0,
            deliver=delivery(
                pin_memory=self.pin_memory,
                pin_memory_device=self.pin_memory_device,
                device=self.device,
                from_slots=self._page_lock is not None and self.num_workers > 0,
            ),
            num_batches=self._count_batches(),
            label=_WORKERS_LABEL if self.num_workers else _INLINE_LABEL,
            claim=self._length_claim(),
        )

    def _start_pass(self, *, again: bool = False) -> tuple[EngineRun, Progress]:
        progress, point = self._standing.claim(self)
        try:
            if self.seed is None:
                run = self._passes.start_unseeded(self, progress, point, again=again)
            else:
                run = self._passes.start_seeded(self, progress, point)
        except (
            StateRefusedError
        ) as error:  # only without a seed, where a state is never in the way of an epoch
            self._standing.give_back(progress, None)
            warnings.warn(f"the epoch begins anew: {error}", ResumeWarning, stacklevel=4)
            return self._start_pass(again=again)
        except BaseException:
            self._standing.give_back(progress, point)
            raise
        return self._reporting(run, progress), progress

    def _reporting(self, run: EngineRun, progress: Progress) -> EngineRun:
        """Return the pass with its bad samples recorded; with "raise" there are none, and it is returned as it is."""
        self._bad_sample_log = None
        if self.on_bad_sample != "raise":
            run, self._bad_sample_log = reporting_run(self, run, progress)
        return run

    # -- state --------------------------------------------------------------------------------------------

    def state_dict(self, *, num_held: int = 0) -> dict[str, Any]:
        """Return where the consumer is: what it takes to go on with the next batch, in this process or another.

        It counts what was received, of the pass that was begun last, so it may be taken at any moment: before, between
        and after batches and epochs, and while workers are ahead. After an epoch's last batch it says: the next epoch.
        No worker is started and nothing is iterated. See `load_state_dict` for what may change until it is loaded.

        Args:
            num_held: How many of the batches received last are not to count, at most 4: the consumer has them in hand,
                unused (Lightning's fetcher holds one of a loader without a length).

        Returns:
            A small dict of plain values: JSON, and loadable under ``weights_only=True``; with a seed the same on every
            rank. A
            loader that cannot be resumed (with ``in_order=False``, say) gives ``{"resumable": False, "reason": ...}``
            and warns (`lit_loader.errors.NotResumableWarning`). Without a seed the state of a shuffled epoch holds
            that of torch's generator, 7 KB.

        Raises:
            ValueError: If ``num_held`` is out of range.
        """
        return self._standing.state(self, num_held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state: the next iterator's first batch is the one that the saving loader's consumer had not got.

        Once: the iterator after that begins the next epoch. An iterator that lives goes on as it was, unless it has not
        begun. With a sampler of ours it takes as long as beginning an epoch, wherever the state was taken, and the
        number and kind of workers, their start method, and rank and world size (with the same global batch) may be
        others. Without a seed the same indices follow, and what the dataset draws is not repeated; one warning says so.

        Args:
            state_dict: What `state_dict` gave.

        Raises:
            ValueError: With a seed, if it is malformed, cannot be resumed or does not fit this loader; see ``resume``.
                Not if Lightning loads a state that says that it cannot be resumed. Where it is not raised, the state
                is left aside with a `lit_loader.errors.ResumeWarning`, and the epoch begins anew.
        """
        self._standing.load(self, state_dict)

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """The bad samples of the epoch that was begun last, as far as its batches were delivered.

        They stay until another iterator begins an epoch; of two that live it is the later one's. At an epoch's end a
        `lit_loader.errors.BadSamplesWarning` sums them up. `lit_loader.append_bad_samples` writes them to a file.
        """
        return () if self._bad_sample_log is None else tuple(self._bad_sample_log.records)

    @property
    def _page_lock(self) -> CudaPageLock | None:
        """What page-locks the memory that worker processes write batches to."""
        return find_page_lock(self.pin_memory, self.device)

    def close(self) -> None:
        """End the loader's workers; its live iterators end with them. The loader can be iterated again."""
        self._iterator = None
        self._passes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _length_claim(self) -> LengthClaim | None:
        """Return the length an iterable dataset told, if it was asked, to warn as torch does if more comes."""
        told: int | None = self._IterableDataset_len_called
        return None if told is None else LengthClaim(told, str(self.dataset), self.num_workers > 0)

    def __getstate__(self) -> dict[str, Any]:
        # a live iterator stays with this process; a copy makes its own
        return {**self.__dict__, "_iterator": None, "_bad_sample_log": None, "_alike": False}


def _gathered(value: Any) -> list[Any]:
    """Return the values of all ranks of the process group."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
