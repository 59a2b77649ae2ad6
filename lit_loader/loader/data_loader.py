"""The loader: torch's constructor and attributes, in front of lit_loader's engine.

NOTE [Two regimes]
    ``seed=None``   The same as torch's loader, draw for draw: a base seed is drawn from ``generator``, worker w is
                    seeded with base + w, the workers make whole batches in turns, and the sampler is iterated when
                    ``iter()`` is called.
    ``seed=int``    Every sample has its own key (seed, epoch, position), so a batch is the same bits whichever worker
                    makes it, and any idle worker does. Global batches are slices of an `OrderSampler`'s order. An
                    iterator claims its epoch at its first ``next()``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader.collate.default import is_builtin_collate, replace_torch_collate
from lit_loader.engine import (
    BadSample,
    BadSampleLog,
    Batches,
    BatchSlicing,
    FetchSpec,
    LoaderSpec,
    OnBadSample,
    Resume,
    WorkerMethod,
)
from lit_loader.errors import ResumeWarning
from lit_loader.loader.arguments import (
    check_arguments,
    check_bad_samples,
    check_batch_sampler,
    check_choice,
    check_replacement,
)
from lit_loader.loader.device import checked_device, find_page_lock, make_transfer
from lit_loader.loader.iterator import IterationHooks, LoaderIterator
from lit_loader.loader.lightning import (
    register_rebuild_hook,
    replace_torch_samplers,
    seen_indices,
    unwrapped,
)
from lit_loader.loader.resume import EpochState, Progress, StateRefusedError
from lit_loader.loader.worker_manager import WorkerManager
from lit_loader.samplers import OrderSampler, RandomSampler, SequentialSampler
from lit_loader.samplers.custom_ranks import find_global_batches
from lit_loader.types import CollateFn, WorkerInitFn

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

MAX_BAD_SAMPLES: Final = 100
"""How many bad samples an epoch may have on each rank, unless the loader is given another number."""


# arguments that the `LoaderSpec` has under the same name and as they are
_SETTINGS: Final = (
    *("sampler", "batch_sampler", "batch_size", "seed", "generator", "in_order", "resume", "prefetch_factor"),
    *("num_workers", "worker_method", "multiprocessing_context", "worker_init_fn", "persistent_workers"),
    *("max_worker_restarts", "hang_timeout_s", "check_repeatability"),
)


class DataLoader(TorchDataLoader[T_co]):
    """torch's ``DataLoader`` whose batches, with a seed, are the same bits on any number and kind of workers.

    Every argument of ``torch.utils.data.DataLoader`` has torch's meaning; see torch's documentation for those. With
    ``seed=None`` (the default) the loader behaves as torch's does.

    Args:
        dataset: A map or an iterable dataset.
        batch_size: Samples a batch, on each rank, or None for no batching.
        shuffle: Draw a new order each epoch.
        sampler: One of lit_loader's samplers (`lit_loader.samplers`) or any iterable of indices. With a seed, torch's
            own ``SequentialSampler`` and ``RandomSampler`` (without replacement, num_samples or generator) are replaced
            by lit_loader's: torch's take neither seed nor rank, and Lightning sets a ``SequentialSampler`` for
            ``overfit_batches``. With a seed and several ranks, every rank iterates all of any other sampler, with draws
            keyed by seed and epoch, and takes its part of every global batch, as with an `OrderSampler`. A sampler that
            gives each rank its own part is used as it is: a ``DistributedSampler``, or one with the number of ranks and
            the rank as int attributes (``num_replicas`` and ``rank``, or ``world_size``, ``num_shards``, ...). In the
            first ``next()`` of a loader's first epoch the ranks of the process group compare the number of batches and
            a hash of the epoch's indices; all ranks must call it, and if one differs, every rank raises. For a sampler
            without a length, or with a ``state_dict``, only the first global batch is compared; for one that gives each
            rank its own part, only the number of batches. Without a seed every rank gets what it would with torch's
            loader.
        batch_sampler: Any iterable of containers of indices. With a seed, torch's ``BatchSampler`` is sliced like
            ``batch_size``. With any other, ``world_size`` consecutive batches make a global batch, of which each rank
            takes one; an incomplete last one is filled up with the first batches, marked as duplicates. Beside a batch
            sampler, ``loader.sampler`` only serves Lightning, which looks at it.
        num_workers: Number of workers, or 0 to make batches in this process and thread.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Copy tensors to page-locked memory before they are returned, as torch does; with a seed and workers
            in a thread, while the batch before is used. With ``device``, the shared memory that worker processes write
            to is page-locked instead.
        drop_last: Leave out the last batch if it is not full.
        timeout: Seconds to wait for a batch from workers, or 0 for no limit.
        worker_init_fn: Called in each worker with its number, after the worker's seeding. With a seed, what it
            seeds is overridden for each sample.
        multiprocessing_context: A start method or a context.
        generator: Draws the base seed and torch's shuffled order; refused with a seed, which replaces it.
        seed: Makes batch b of epoch e a function of (seed, e, b, dataset, sampler, global batch size), or None to draw
            as torch's loader does.
        rank: This process's rank, or None for that of the initialised process group, else 0.
        world_size: How many ranks share the order, or None for the size of the initialised process group, else 1.
        worker_method: "multiprocessing" or "thread". Threads share the dataset object and need no copy of it, which
            pays where samples are long calls that release the GIL. Each thread has its own worker info, seed and torch
            generator. If there is a seed, a dataset that draws from the generators of ``random`` or ``numpy.random``,
            which threads share, brings a `lit_loader.errors.SharedGeneratorWarning`.
        max_worker_restarts: With a seed and a map dataset: how many worker processes that ended (out of memory,
            killed, crashed) are replaced in an epoch, each with a warning, or None for 3. The batches that such a
            worker was making are made again, the same bits. One more, or any without a seed, raises
            `lit_loader.errors.WorkerDiedError`, as in torch.
        hang_timeout_s: Seconds that a worker process may take for one sample (without a seed, or with
            ``__getitems__``: for one batch) while a batch is waited for, or None for no limit. The Python stacks of one
            that takes longer are printed to standard error; it is killed and replaced like one that ended.
        on_bad_sample: What happens if ``dataset[index]`` raises an ``Exception`` other than MemoryError. "raise": it is
            raised and names the sample. "skip": the batch is made without the sample; a batch without any sample left
            raises `lit_loader.errors.BadBatchError` and is never left out. "substitute", with a seed and one of
            lit_loader's samplers: another index of the sampler's order, drawn from the sample's own key, takes its
            place, in at most three tries. The last two need a map dataset without ``__getitems__``; `bad_samples`
            lists the samples that failed.
        max_bad_samples: How many samples may be bad in an epoch on each rank, or None for 100. The batch that exceeds
            it raises `lit_loader.errors.TooManyBadSamplesError`.
        device: Where batches are when they are returned, or None for where they were made. The next batch is copied on
            a side stream while this one is used, if workers have it ready; ``pin_memory=True`` makes that copy
            asynchronous. "cpu" copies nothing. Tensors in tuples, lists, mappings, named tuples and dataclasses are
            moved, and any object that has a ``to()`` as a whole.
        prefetch_factor: Batches that each worker makes ahead; with a seed, in addition to the one that it is making.
        persistent_workers: Keep the workers from epoch to epoch. With a seed and one of lit_loader's samplers, the
            next epoch's first batches are made before this one ends.
        pin_memory_device: Deprecated by torch, and ignored as torch does.
        in_order: Deliver batches in order.
        check_repeatability: With a seed and a map dataset: make up to eight samples of the first epoch a second time
            from the same key, once for each dataset, and warn with a `lit_loader.errors.PrivateGeneratorWarning` if one
            differs: then the dataset, or a transform, draws from a generator of its own, and the seed does not fix its
            batches. Turn it off for a dataset whose ``__getitem__`` counts its calls or has other effects.
        resume: What `load_state_dict` does with a state that does not fit. "exact": refuse it. "same_sample": accept
            one of another global batch size, and continue at the same sample. "restart": ignore it with a warning, as
            every loader without a seed does.

    Raises:
        TypeError: If the dataset is a DataPipe, ``seed`` or ``num_workers`` is not an int, or ``device`` is of another
            type.
        RuntimeError: If ``device`` is not the name of a device.
        ValueError: As torch does, and for a rank outside of the world size, a generator beside a seed, a context
            beside worker threads, an unknown ``worker_method``, a policy on bad samples that is not possible here, or a
            device that is not available.

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
        check_arguments(
            dataset, seed, rank, world_size, generator, num_workers, worker_method, multiprocessing_context
        )
        check_choice("resume", resume, Resume)
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.worker_method = worker_method
        self.max_worker_restarts, self.hang_timeout_s = max_worker_restarts, hang_timeout_s
        self.on_bad_sample, self.max_bad_samples = on_bad_sample, max_bad_samples
        self._bad_sample_log: BadSampleLog | None = None
        self.device = checked_device(device)
        self.resume = resume
        self.check_repeatability = check_repeatability
        self._worker_manager, self._epochs = WorkerManager(), EpochState()
        self._hooks = IterationHooks()
        is_default = seed is not None and sampler is None and batch_sampler is None
        if is_default and not isinstance(dataset, IterableDataset):
            sized = cast("Sized", dataset)  # as of any map dataset; the samplers refuse one without a length
            sampler = RandomSampler(sized) if shuffle else SequentialSampler(sized)
            shuffle = None
        if seed is not None:
            check_batch_sampler(batch_sampler)
            sampler, batch_sampler = replace_torch_samplers(sampler, batch_sampler)
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
        if seed is not None:
            register_rebuild_hook(self, sampler, batch_sampler)
        batched, sliced = self.batch_sampler is not None, self._slicing is not None
        check_bad_samples(on_bad_sample, max_bad_samples, dataset, batched=batched, sliced=sliced)
        keyed = seed is not None and not isinstance(dataset, IterableDataset)
        check_replacement(max_worker_restarts, hang_timeout_s, processes=self._has_processes, keyed=keyed)

    # -- the specification ----------------------------------------------------------------------------------

    def _spec(self) -> LoaderSpec:
        """Return the loader's settings as they are now; no other module gets the loader itself."""
        has_group = dist.is_available() and dist.is_initialized()
        of_group = (dist.get_rank(), dist.get_world_size()) if has_group else (0, 1)
        rank, world_size = of_group
        if self.rank is not None and self.world_size is not None:
            rank, world_size = self.rank, self.world_size
        # The ranks can compare what a custom sampler gives them only if these are those of the process group.
        compares = has_group and world_size > 1 and (rank, world_size) == of_group
        is_iterable, slicing = isinstance(self.dataset, IterableDataset), self._slicing
        fetch = FetchSpec(
            dataset=self.dataset,
            batched=self.batch_sampler is not None,
            collate_fn=replace_torch_collate(self.collate_fn),
            builtin_collate=is_builtin_collate(self.collate_fn),
            drop_last=self.drop_last,
            on_bad_sample=self.on_bad_sample,
            # A state cannot be split where worker threads share the dataset, and on several ranks the saved one is that
            # of one rank. In both cases samples are counted instead.
            stream_state=(self.worker_method != "thread" or self.num_workers <= 1) and world_size == 1,
        )
        global_batches = None
        if self.seed is not None and slicing is None and not is_iterable:
            global_batches = find_global_batches(self.sampler, unwrapped(self.batch_sampler), world_size)
        return LoaderSpec(
            **{name: getattr(self, name) for name in _SETTINGS},
            fetch=fetch,
            index_sampler=self._index_sampler,
            slicing=slicing,
            global_batches=global_batches,
            rank=rank,
            world_size=world_size,
            gather=_gather if compares and not self._worker_manager.ranks_compared else None,
            timeout_s=self.timeout,
            default_dtype=torch.get_default_dtype(),
            page_lock=find_page_lock(self.pin_memory and self._has_processes, self.device),
        )

    @property
    def _slicing(self) -> BatchSlicing | None:
        """How batches are sliced from the order of an `OrderSampler`, or None if a sampler is iterated, as in torch."""
        if self.seed is None:
            return None
        if self.batch_sampler is None:
            return BatchSlicing(self.sampler, None, False) if isinstance(self.sampler, OrderSampler) else None
        batches = unwrapped(self.batch_sampler)
        if type(batches) is BatchSampler and isinstance(batches.sampler, OrderSampler):
            return BatchSlicing(batches.sampler, batches.batch_size, batches.drop_last)
        return None

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
        spec = self._spec()
        is_cut = spec.slicing is not None or spec.global_batches is not None
        return spec.count_batches() if is_cut else super().__len__()

    # -- iteration ------------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[T_co]:
        """Return an iterator over one epoch."""
        if self.seed is not None:
            return self._get_iterator()
        keeps_iterator = self.persistent_workers and self.num_workers > 0
        iterator = cast("LoaderIterator[T_co] | None", self._iterator if keeps_iterator else None)
        if iterator is None:
            iterator = self._get_iterator()
        else:  # as in torch, where each iter() restarts the one iterator of persistent workers
            iterator.restart(partial(self._start_epoch, again=True), self._IterableDataset_len_called)
        iterator.begin()
        if keeps_iterator:
            self._iterator = iterator
        return iterator

    def _get_iterator(self) -> LoaderIterator[T_co]:
        # as in torch, when the loader is iterated
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
            # Without a seed a batch that is taken ahead would have the sampler draw earlier than torch's loader does.
            ahead=self.seed is not None,
        )
        return LoaderIterator(
            self._start_epoch, spec, transfer, self._IterableDataset_len_called, self._hooks
        )

    def _start_epoch(self, *, again: bool = False) -> tuple[Batches, Progress]:
        """Claim the next epoch and start it; return its batches and the progress that counts them."""
        spec, epochs = self._spec(), self._epochs
        progress, point = epochs.claim(spec)
        try:
            batches = self._worker_manager.start(spec, progress, point, epochs, again=again)
        except StateRefusedError as error:  # only without a seed, where a state never prevents an epoch
            epochs.unclaim(progress, None)
            warnings.warn(f"the epoch begins anew: {error}", ResumeWarning, stacklevel=4)
            return self._start_epoch(again=again)
        except BaseException:
            epochs.unclaim(progress, point)
            raise
        self._bad_sample_log = None
        if spec.fetch.on_bad_sample != "raise":
            batches = self._bad_sample_log = BadSampleLog(
                batches,
                epoch=progress.epoch,
                rank=spec.rank,
                max_bad_samples=MAX_BAD_SAMPLES if self.max_bad_samples is None else self.max_bad_samples,
                num_batches=progress.num_batches,
                seen=seen_indices(spec.batch_sampler),
            )
        return batches, progress

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self, *, num_held: int = 0) -> dict[str, Any]:
        """Return the state from which a loader, in this process or another, continues with the next batch.

        It counts the batches that were received of the epoch that was begun last, so it may be called at any time:
        before, between and after batches and epochs, and while workers are ahead. After an epoch's last batch the state
        is that of the beginning of the next epoch. No worker is started and nothing is iterated. See `load_state_dict`
        for what may change until it is loaded.

        Args:
            num_held: How many of the batches received last do not count, at most 4, because the consumer has not used
                them yet (Lightning's fetcher holds one of a loader without a length).

        Returns:
            A small dict of plain values: JSON, and loadable under ``weights_only=True``; with a seed the same on every
            rank. A loader that cannot be resumed (because of ``in_order=False``, for example) returns
            ``{"resumable": False, "reason": ...}`` and warns (`lit_loader.errors.NotResumableWarning`). Without a seed
            the state of a shuffled epoch holds that of torch's generator, 7 KB.

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
            state_dict: What `state_dict` returned.
            strict: Raise if the state cannot be resumed, whatever the loader's ``resume``. By default a state with
                ``resumable=False``, which was saved with a warning, is ignored with another one, because Lightning
                loads states by itself and a run must not fail there. Without a seed every state that does not fit is.

        Raises:
            ValueError: With a seed, if the state is malformed or does not fit this loader; see ``resume``. With
                ``strict``, if the state cannot be resumed. Where it is not raised, the state is ignored with a
                `lit_loader.errors.ResumeWarning`, and the epoch begins anew.
        """
        if self._epochs.load_state_dict(self._spec(), state_dict, strict=strict):
            self._worker_manager.forget_workers()

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """The bad samples in the batches that were delivered of the epoch that was begun last.

        They are kept until another iterator begins an epoch. At an epoch's end a `lit_loader.errors.BadSamplesWarning`
        sums them up. `lit_loader.append_bad_samples` writes them to a file.
        """
        return () if self._bad_sample_log is None else tuple(self._bad_sample_log.records)

    @property
    def wait_s(self) -> float:
        """Seconds that iterators of this loader have waited so far: for workers, or while batches were made here.

        Page-locking and copies to a device do not count, nor does waiting for the device.
        """
        return self._hooks.wait_s

    @property
    def check_batch(self) -> Callable[[Any], None] | None:
        """Called with each batch before it is page-locked or moved to a device, or None.

        The error that it raises is raised in place of the batch. Values of a batch can be read there without waiting
        for a device. It may be set at any time. Loaders that Lightning rebuilds, and pickled ones, begin with None.
        """
        return self._hooks.check_batch

    @check_batch.setter
    def check_batch(self, check: Callable[[Any], None] | None) -> None:
        self._hooks.check_batch = check

    def close(self) -> None:
        """End the loader's workers; its live iterators end with them. The loader can be iterated again."""
        self._iterator = None
        self._worker_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # iterators and workers belong to this process; a copy makes its own
        return {**self.__dict__, "_iterator": None, "_bad_sample_log": None, "_hooks": IterationHooks()}


def _gather(value: Any) -> list[Any]:
    """Return the values of all ranks of the process group."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
