"""The loader: torch's constructor and attributes, in front of lit_loader's engine.

NOTE [Two regimes]
    ``seed=None``   The same as torch's loader, draw for draw: a base seed is drawn from ``generator``, worker w is
                    seeded with base + w, the workers make whole batches in turns, and the sampler is iterated when
                    ``iter()`` is called. See `TorchEpochs`.
    ``seed=int``    Every sample has its own key (seed, epoch, position), so a batch is the same bits whichever worker
                    makes it, and any idle worker does. Global batches are slices of an `OrderSampler`'s order. An
                    iterator claims its epoch at its first ``next()``. See `KeyedEpochs`.
    The constructor chooses the class, and `DataLoader._spec` the specification; nothing else asks for the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset

from lit_loader.collate.default import is_builtin_collate, replace_torch_collate
from lit_loader.engine import (
    BadSample,
    BadSampleLog,
    Batches,
    BatchRecord,
    BatchSlicing,
    FetchSpec,
    KeyedSpec,
    LoaderSpec,
    LoaderStats,
    OnBadSample,
    Resume,
    WorkerMethod,
)
from lit_loader.loader.arguments import (
    check_arguments,
    check_bad_samples,
    check_batch_sampler,
    check_choice,
    check_mixing,
    check_replacement,
    check_sampler_length,
)
from lit_loader.loader.device import checked_device, find_page_lock, make_transfer
from lit_loader.loader.iterator import IterationHooks, LoaderIterator
from lit_loader.loader.lightning import register_rebuild_hook, replace_torch_samplers, seen_indices, unwrapped
from lit_loader.loader.read_ahead import EpochStreams, ReadAhead
from lit_loader.loader.resume import EpochState, KeyedEpochs, Progress, TorchEpochs
from lit_loader.loader.worker_manager import WorkerManager
from lit_loader.samplers import RandomSampler, SequentialSampler
from lit_loader.samplers.custom_ranks import find_global_batches
from lit_loader.types import CollateFn, WorkerInitFn

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

MAX_BAD_SAMPLES: Final = 100
"""How many bad samples an epoch may have on each rank, unless the loader is given another number."""


# Fields of `LoaderSpec` with the name of the loader's attribute. Listed once, because each saved state makes a spec.
_ATTRIBUTES_OF_SPEC: Final = tuple(
    field.name
    for field in fields(LoaderSpec)
    if field.name
    not in ("fetch", "is_iterable", "index_sampler", "rank", "world_size", "timeout_s", "default_dtype", "page_lock")
)


class DataLoader(TorchDataLoader[T_co]):
    """torch's ``DataLoader`` whose batches, with a seed, are the same bits on any number and kind of workers.

    Every argument of ``torch.utils.data.DataLoader`` has torch's meaning; see torch's documentation for those. With
    ``seed=None`` (the default) the loader behaves as torch's does.

    Args:
        dataset: A map or an iterable dataset.
        batch_size: Samples per batch, on each rank, or None for no batching.
        shuffle: Draw a new order each epoch.
        sampler: One of lit_loader's samplers (`lit_loader.samplers`), created for the length of the dataset, or any
            iterable of indices. With a seed, torch's own ``SequentialSampler`` and ``RandomSampler`` (without
            replacement, num_samples or generator) are replaced by lit_loader's: torch's take neither seed nor rank, and
            Lightning sets a ``SequentialSampler`` for ``overfit_batches``. With a seed and several ranks, every rank
            iterates any other sampler completely, with draws keyed by seed and epoch, and takes its part of every
            global batch, as with an `OrderSampler`. A sampler that already gives each rank its own part is used
            unchanged: a ``DistributedSampler``, or one with the number of ranks and the rank as int attributes
            (``num_replicas`` and ``rank``, or ``world_size``, ``num_shards``, ...). In the first ``next()`` of a
            loader's first epoch the ranks of the process group compare the number of batches and a hash of the epoch's
            indices; all ranks must call it, and if one differs, every rank raises. For a sampler without a length, or
            with a ``state_dict``, only the first global batch is compared; for one that gives each rank its own part,
            only the number of batches. Without a seed every rank gets the same batches as with torch's loader.
        batch_sampler: Any iterable of containers of indices. With a seed, torch's ``BatchSampler`` is sliced like
            ``batch_size``. With any other, ``world_size`` consecutive batches make a global batch, and each rank takes
            one of them; an incomplete last one is filled up with the first batches, marked as duplicates. Next to a
            batch sampler, ``loader.sampler`` only serves Lightning, which looks at it.
        num_workers: Number of workers, or 0 to make batches in this process and thread.
        collate_fn: Makes a batch from a list of samples.
        pin_memory: Copy tensors to page-locked memory before they are returned, as torch does; with a seed and workers
            in a thread, while the batch before is used. With ``device``, the shared memory that worker processes write
            to is page-locked instead.
        drop_last: Leave out the last batch if it is not full.
        timeout: Seconds to wait for a batch from workers, or 0 for no limit.
        worker_init_fn: Called in each worker with its number, after the worker is seeded. With a seed, the generators
            that it seeds are seeded again for each sample.
        multiprocessing_context: A start method or a context.
        generator: Draws the base seed and torch's shuffled order; refused with a seed, which replaces it.
        seed: Makes batch b of epoch e a function of (seed, e, b, dataset, sampler, global batch size), or None to draw
            as torch's loader does.
        rank: This process's rank, or None for the rank in the initialised process group, else 0.
        world_size: How many ranks share the order, or None for the size of the initialised process group, else 1.
        worker_method: "multiprocessing" or "thread". Threads share the dataset object and need no copy of it, which
            pays off where samples are long calls that release the GIL. Each thread has its own worker info, seed and
            torch generator. With a seed, a dataset that draws from the generators of ``random`` or ``numpy.random``,
            which threads share, causes a `lit_loader.errors.SharedGeneratorWarning`.
        max_worker_restarts: With a seed and a map dataset: how many worker processes that ended (out of memory,
            killed, crashed) are replaced in an epoch, each with a warning, or None for 3. The batches that such a
            worker was making are made again, the same bits. One more, or any without a seed, raises
            `lit_loader.errors.WorkerDiedError`, as in torch.
        hang_timeout_s: Seconds that a worker process may take for one sample (without a seed, or with
            ``__getitems__``: for one batch) while the consumer waits, or None for no limit. The Python stacks of one
            that takes longer are printed to standard error; it is killed and replaced like one that ended.
        on_bad_sample: What happens if ``dataset[index]`` raises an ``Exception`` other than MemoryError. "raise": it is
            raised and names the sample. "skip": the batch is made without the sample; a batch without any sample left
            raises `lit_loader.errors.BadBatchError` and is never left out. "substitute", with a seed and one of
            lit_loader's samplers: another index of the sampler's order, drawn from the sample's own key, replaces it,
            in at most three tries. The last two need a map dataset without ``__getitems__``; `bad_samples` lists the
            samples that failed.
        max_bad_samples: How many samples may be bad in an epoch on each rank, or None for 100. The batch that exceeds
            it raises `lit_loader.errors.TooManyBadSamplesError`.
        device: Device of the returned batches, or None to leave them where they were made. The next batch is copied on
            a side stream while this one is used, if workers have it ready; ``pin_memory=True`` makes that copy
            asynchronous. "cpu" copies nothing. Tensors in tuples, lists, mappings, named tuples and dataclasses are
            moved, and any object that has a ``to()`` as a whole.
        prefetch_factor: Batches that each worker makes ahead; with a seed, in addition to the one that it is making.
        persistent_workers: Keep the workers from epoch to epoch. With a seed and one of lit_loader's samplers, the
            next epoch's first batches are made before this one ends.
        pin_memory_device: Deprecated by torch, and ignored as in torch.
        in_order: Deliver batches in order.
        check_repeatability: With a seed and a map dataset: make up to eight samples of the first epoch a second time
            from the same key, once for each dataset, and warn with a `lit_loader.errors.PrivateGeneratorWarning` if one
            differs: then the dataset, or a transform, draws from a generator of its own, and the seed does not fix its
            batches. Turn it off for a dataset whose ``__getitem__`` counts its calls or has other effects.
        resume: What `load_state_dict` does with a state that does not fit. "exact": raise ValueError. "same_sample":
            accept one of another global batch size, and continue at the same sample. "restart": ignore it with a
            warning, as every loader without a seed does.

    Raises:
        TypeError: If the dataset is a DataPipe, ``seed`` or ``num_workers`` is not an int, or ``device`` is of another
            type.
        RuntimeError: If ``device`` is not the name of a device.
        ValueError: As torch does, and for a rank outside of the world size, a generator with a seed, a context with
            worker threads, an unknown ``worker_method``, a policy on bad samples that is not possible here, or a device
            that is not available.

    Determinism: see NOTE [Two regimes] in this module. Not covered: generators that a dataset owns privately, and sums
        whose bits depend on the number of intra-op threads.
    Owns: persistent workers, until `close`, until it is collected, or until the interpreter exits.
    """

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
        worker_method: WorkerMethod = "multiprocessing",
        max_worker_restarts: int | None = None,
        hang_timeout_s: float | None = None,
        on_bad_sample: OnBadSample = "raise",
        max_bad_samples: int | None = None,
        device: str | torch.device | None = None,
        check_repeatability: bool = True,
        resume: Resume = "exact",
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        check_arguments(dataset, seed, rank, world_size, generator, num_workers, worker_method, multiprocessing_context)
        self._set_up_order(seed, rank, world_size, resume, check_repeatability)
        self._set_up_workers(worker_method, max_worker_restarts, hang_timeout_s, on_bad_sample, max_bad_samples)
        self.device = checked_device(device)
        check_sampler_length(dataset, sampler, batch_sampler)
        if seed is not None:
            shuffle, sampler, batch_sampler = _seeded_samplers(dataset, shuffle, sampler, batch_sampler)
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
        self._complete(sampler, batch_sampler)

    def _set_up_order(
        self, seed: int | None, rank: int | None, world_size: int | None, resume: Resume, check_repeatability: bool
    ) -> None:
        check_choice("resume", resume, Resume)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.resume = resume
        self.check_repeatability = check_repeatability
        self._epochs: EpochState[Any] = TorchEpochs() if seed is None else KeyedEpochs()

    def _set_up_workers(
        self,
        worker_method: WorkerMethod,
        max_worker_restarts: int | None,
        hang_timeout_s: float | None,
        on_bad_sample: OnBadSample,
        max_bad_samples: int | None,
    ) -> None:
        self.worker_method = worker_method
        self.max_worker_restarts = max_worker_restarts
        self.hang_timeout_s = hang_timeout_s
        self.on_bad_sample = on_bad_sample
        self.max_bad_samples = max_bad_samples
        self._bad_sample_log: BadSampleLog | None = None
        self._worker_manager = WorkerManager()
        self._read_ahead: ReadAhead | None = None
        self._hooks = IterationHooks()

    def _complete(self, sampler: Any, batch_sampler: Any) -> None:
        """Complete the constructor with the steps that need the attributes that torch's constructor sets."""
        is_keyed = self.seed is not None
        if is_keyed:
            register_rebuild_hook(self, sampler, batch_sampler)
        # Torch's constructor creates a batch sampler if there is a batch size.
        is_batched = self.batch_sampler is not None
        is_sliced = self._slicing is not None
        check_bad_samples(self.on_bad_sample, self.max_bad_samples, self.dataset, batched=is_batched, sliced=is_sliced)
        check_mixing(self.dataset, self.seed, sampler, batch_sampler, sliced=is_sliced)
        # Only samples with keys can be made again by another worker with the same bits.
        is_remakable = is_keyed and not isinstance(self.dataset, IterableDataset)
        check_replacement(
            self.max_worker_restarts, self.hang_timeout_s, processes=self._has_processes, keyed=is_remakable
        )

    # -- the specification ----------------------------------------------------------------------------------

    def _spec(self) -> LoaderSpec:
        """Return the loader's present settings; no other module gets the loader itself."""
        # Asked for each epoch: users initialise the process group after they have made the loader.
        group = (0, 1)
        if dist.is_available() and dist.is_initialized():
            group = (dist.get_rank(), dist.get_world_size())
        rank, world_size = group
        if self.rank is not None and self.world_size is not None:
            rank = self.rank
            world_size = self.world_size
        fetch = FetchSpec(
            dataset=self.dataset,
            batched=self.batch_sampler is not None,
            collate_fn=replace_torch_collate(self.collate_fn),
            builtin_collate=is_builtin_collate(self.collate_fn),
            drop_last=self.drop_last,
            on_bad_sample=self.on_bad_sample,
            # A state cannot be split where worker threads share the dataset, and on several ranks only one rank's state
            # is saved. In both cases samples are counted instead.
            stream_state=(self.worker_method != "thread" or self.num_workers <= 1) and world_size == 1,
        )
        settings = {
            "fetch": fetch,
            "is_iterable": isinstance(self.dataset, IterableDataset),
            "index_sampler": self._index_sampler,
            "rank": rank,
            "world_size": world_size,
            "timeout_s": self.timeout,
            "default_dtype": torch.get_default_dtype(),
            "page_lock": find_page_lock(self.pin_memory and self._has_processes, self.device),
        }
        settings |= {name: getattr(self, name) for name in _ATTRIBUTES_OF_SPEC}
        if (self.seed is None) is not self._epochs.begins_at_iter:
            raise ValueError(
                f"seed was changed to {self.seed!r}, and a loader keeps or lacks a seed for life; make a new loader"
            )
        if self.seed is None:
            return LoaderSpec(**settings)
        slicing = self._slicing
        global_batches = None
        if slicing is None and not settings["is_iterable"]:
            global_batches = find_global_batches(self.sampler, unwrapped(self.batch_sampler), world_size)
        # The ranks can compare a custom sampler's indices only if the process group has the same rank and world size.
        can_compare = world_size > 1 and (rank, world_size) == group
        return KeyedSpec(
            **settings,
            seed=self.seed,
            slicing=slicing,
            global_batches=global_batches,
            gather=_gather if can_compare else None,
            check_repeatability=self.check_repeatability,
        )

    @property
    def _slicing(self) -> BatchSlicing | None:
        """How batches are sliced from the order of an `OrderSampler`, or None if a sampler is iterated, as in torch."""
        return self._epochs.slicing(self.sampler, self.batch_sampler)

    @property
    def _has_processes(self) -> bool:
        return self.num_workers > 0 and self.worker_method == "multiprocessing"

    # -- epochs and length ----------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iterator claims, also on a sampler that has ``set_epoch``.

        Without a seed only the sampler's is set: nothing else depends on an epoch there.

        Raises:
            ValueError: If ``epoch`` is negative.
        """
        self._epochs.set_epoch(self._spec(), epoch)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            return super().__len__()
        return self._spec().count_batches()

    # -- iteration ------------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[T_co]:
        """Return an iterator over one epoch."""
        if not self._epochs.begins_at_iter:
            # With a seed ``iter()`` alone changes nothing: the first ``next()`` claims the epoch.
            return self._get_iterator()
        keeps_iterator = self.persistent_workers and self.num_workers > 0
        iterator = cast("LoaderIterator[T_co] | None", self._iterator if keeps_iterator else None)
        if iterator is None:
            iterator = self._get_iterator()
        else:
            # As in torch: each iter() restarts the one iterator of persistent workers.
            iterator.restart(partial(self._start_epoch, restarted=True), self._IterableDataset_len_called)
        iterator.begin()
        if keeps_iterator:
            self._iterator = iterator
        return iterator

    def _get_iterator(self) -> LoaderIterator[T_co]:
        # Torch too checks these when the loader is iterated: a user may have changed the attributes.
        if self.num_workers > 0:
            if not self.prefetch_factor:
                raise AssertionError(f"prefetch_factor={self.prefetch_factor} must be above 0 for workers")
            self.check_worker_number_rationality()
        elif self.timeout:
            raise AssertionError(f"timeout={self.timeout} needs workers; num_workers=0 requires timeout == 0")
        spec = self._spec()
        transfer = make_transfer(
            self.pin_memory,
            self.pin_memory_device,
            self.device,
            from_slots=spec.page_lock is not None,
            # A batch taken ahead would have a sampler without a seed draw earlier than in torch's loader.
            ahead=not self._epochs.begins_at_iter,
        )
        return LoaderIterator(self._start_epoch, spec, transfer, self._IterableDataset_len_called, self._hooks)

    def _start_epoch(self, *, restarted: bool = False) -> tuple[Batches, Progress]:
        """Claim the next epoch and start it; return its batches and the progress that counts them."""
        spec = self._spec()
        epochs = self._epochs
        progress, point = epochs.claim(spec)
        try:
            # First, because workers read at once.
            streams = self._tell_stores(spec, progress)
            batches = self._worker_manager.start(
                spec, progress, point, epochs, self._hooks.counters, restarted=restarted
            )
        except BaseException:
            # After Ctrl-C, too: the next iterator must not begin an epoch later than this one.
            epochs.unclaim(progress, point)
            raise
        if streams is not None and self._read_ahead is not None:
            batches = self._read_ahead.follow(batches, streams)
        self._bad_sample_log = None
        if spec.fetch.on_bad_sample != "raise":
            batches = self._bad_sample_log = BadSampleLog(
                batches,
                epoch=progress.epoch,
                rank=spec.rank,
                max_bad_samples=MAX_BAD_SAMPLES if self.max_bad_samples is None else self.max_bad_samples,
                num_batches=progress.num_batches,
                seen=seen_indices(spec.batch_sampler),
                counters=self._hooks.counters,
            )
        return batches, progress

    def _tell_stores(self, spec: LoaderSpec, progress: Progress) -> EpochStreams | None:
        """Tell the stores of the images the order of an epoch, and return the streams; None without such stores."""
        dataset = self.dataset
        if not (hasattr(dataset, "stored_samples") or isinstance(dataset, Subset)):
            return None
        slicing = self._slicing
        if slicing is None or not isinstance(spec, KeyedSpec):
            return None
        if self._read_ahead is None or self._read_ahead.dataset is not dataset:
            self._read_ahead = ReadAhead(dataset)
        return self._read_ahead.begin(spec, slicing, progress.epoch, progress.start)

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self, *, num_held: int = 0) -> dict[str, Any]:
        """Return the state from which a loader, in this process or another, continues with the next batch.

        It counts the batches received in the epoch that was begun last, so it may be called at any time: before,
        between and after batches and epochs, and while workers are ahead. After an epoch's last batch it returns the
        state at the beginning of the next epoch. No worker is started and nothing is iterated. See `load_state_dict`
        for the settings that may change until it is loaded.

        Args:
            num_held: How many of the batches received last do not count, at most 4, because the consumer has not used
                them yet (Lightning's fetcher holds one batch if the loader has no length).

        Returns:
            A small dict of plain values: JSON, and loadable under ``weights_only=True``; with a seed the same on every
            rank. A loader that cannot be resumed (because of ``in_order=False``, for example) returns
            ``{"resumable": False, "reason": ...}`` and warns (`lit_loader.errors.NotResumableWarning`). Without a seed
            the state of a shuffled epoch includes the state of torch's generator, 7 KB.

        Raises:
            ValueError: If ``num_held`` is out of range.
        """
        return self._epochs.state_dict(self._spec(), num_held)

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = False) -> None:
        """Continue from a state: the next iterator's first batch is the first one that was not received before.

        This holds for one iterator; the one after it begins the next epoch. An iterator that has begun is not affected.
        With one of lit_loader's samplers it takes as long as beginning an epoch, wherever the state was saved, and the
        number and kind of workers, their start method, and rank and world size (with the same global batch) may
        differ. Without a seed the same indices follow, the dataset's draws are not repeated, and there is one warning.

        Args:
            state_dict: A state returned by `state_dict`.
            strict: True to raise for every state that cannot be resumed. By default a loader without a seed ignores
                such a state with a warning, a loader with ``resume="restart"`` too, and every loader ignores a state
                with ``resumable=False``, which was saved with a warning: Lightning loads states without arguments, and
                its run must not fail there.

        Raises:
            ValueError: If the state is malformed, cannot be resumed or does not fit this loader, and is not ignored.
                An ignored state causes a `lit_loader.errors.ResumeWarning`, and the epoch starts over.
        """
        if self._epochs.load_state_dict(self._spec(), state_dict, strict=strict):
            # The present workers have copies of the dataset before its state was loaded.
            self._worker_manager.backend = None

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """The bad samples in the delivered batches of the epoch that was begun last.

        They are kept until another iterator begins an epoch. At an epoch's end a `lit_loader.errors.BadSamplesWarning`
        sums them up. `lit_loader.append_bad_samples` writes them to a file.
        """
        return () if self._bad_sample_log is None else tuple(self._bad_sample_log.records)

    @property
    def wait_s(self) -> float:
        """Seconds that iterators of this loader have waited so far: for workers, or while batches were made here.

        Page-locking and copies to a device do not count, nor does waiting for the device.
        """
        return self._hooks.counters.wait_s

    def stats(self, *, restart_idle: bool = False) -> LoaderStats:
        """Return the times, counts and faults of this loader so far; the difference of two results is a period.

        The first call begins to measure how batches are made, so make it before the loop: batches that were begun
        earlier count only in ``num_batches``, ``wait_s``, ``transfer_s``, ``hold_s`` and the numbers of faults.

        Batches count when they arrive from their worker; batches of a dropped epoch do not count. Without workers
        all stages run in the consumer's thread. A pickled copy of the loader begins at zero.

        Args:
            restart_idle: If True, workers count as idle only from now on. Otherwise a worker that has waited since the
                last validation, for example, adds all that time to ``idle_s`` with its next batch.
        """
        return self._hooks.counters.stats(self.num_workers, restart_idle=restart_idle)

    def batch_records(self) -> list[BatchRecord]:
        """Return when and how the recent batches were made, at most 256, in the order in which they arrived.

        The first call of this or of `stats` begins to measure.
        """
        return self._hooks.counters.batch_records()

    def hold_batches(self, num_batches: int) -> None:
        """Let the consumer run its next steps without waiting and while the workers are idle, to measure them alone.

        The next ``next()`` that needs a batch first collects this many, or those that the epoch has left, and waits
        until the workers have finished all their tasks. The collected batches are then returned without a new task.
        Batches, their order and states are the same as without this call; the batches are only made earlier, and are
        in memory at the same time. The time of collecting is ``hold_s`` in `stats`, and not part of ``wait_s``.
        With ``device`` or ``pin_memory``, workers may begin again during the last of these steps.

        Args:
            num_batches: Number of batches; 0 withdraws an earlier call for which no batch was collected yet.

        Raises:
            ValueError: If ``num_batches`` is below 0, or the loader has no seed: its draws, which training may share,
                would come in another order.
        """
        if type(num_batches) is not int or num_batches < 0:
            raise ValueError(f"num_batches={num_batches!r} is not an int of at least 0")
        if self.seed is None:
            raise ValueError("hold_batches needs a loader with a seed, whose batches may be made earlier; pass seed=0")
        self._hooks.num_to_hold = num_batches

    @property
    def check_batch(self) -> Callable[[Any], None] | None:
        """Called with each batch before it is page-locked or moved to a device, or None.

        If it raises an error, the iterator raises that error instead of returning the batch. It can read values without
        waiting for a device. It may be set at any time. Loaders that Lightning rebuilds, and pickled ones, begin with
        None.
        """
        return self._hooks.check_batch

    @check_batch.setter
    def check_batch(self, check: Callable[[Any], None] | None) -> None:
        self._hooks.check_batch = check

    def close(self) -> None:
        """End the loader's workers; its live iterators end with them. The loader can be iterated again."""
        self._iterator = None
        self._worker_manager.close()
        if self._read_ahead is not None:
            self._read_ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Iterators and workers belong to this process; a copy makes its own.
        return {
            **self.__dict__,
            "_iterator": None,
            "_bad_sample_log": None,
            "_read_ahead": None,
            "_hooks": IterationHooks(),
        }


def _seeded_samplers(dataset: Any, shuffle: bool | None, sampler: Any, batch_sampler: Any) -> tuple[Any, Any, Any]:
    """Return the ``shuffle``, ``sampler`` and ``batch_sampler`` that a loader with a seed passes to torch's."""
    check_batch_sampler(batch_sampler)
    # Instead of the samplers of torch's constructor, which take neither seed nor rank. A dataset without a length is
    # refused by them; torch refuses ``shuffle`` next to a sampler, so it is None from here on.
    if sampler is None and batch_sampler is None and not isinstance(dataset, IterableDataset):
        return None, (RandomSampler if shuffle else SequentialSampler)(dataset), None
    return shuffle, *replace_torch_samplers(sampler, batch_sampler)


def _gather(value: Any) -> list[Any]:
    """Return the values of all ranks of the process group."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
