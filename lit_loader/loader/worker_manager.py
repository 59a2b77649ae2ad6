"""Starts the epochs of a loader and keeps its workers from one to the next.

NOTE [The next epoch]
    With a seed, persistent workers and an `OrderSampler`, the next epoch's first batches are made while this one's last
    are used. They are kept for the iterator that claims that epoch. If another epoch was set meanwhile, or a setting
    that a batch depends on has changed (`LoaderSpec.epoch_settings`), they are dropped. A change of the dataset itself
    is not noticed. Worker processes have their own copy of it. Worker threads share it, so a dataset that is changed
    between epochs should not be combined with persistent worker threads.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
import torch.multiprocessing

from lit_loader.engine import (
    Backend,
    Batches,
    InlineBatches,
    LoaderSpec,
    ProcessBackend,
    Scheduler,
    Task,
    ThreadBackend,
    WorkerSpec,
    plan_order,
    plan_stream,
    plan_unkeyed,
)
from lit_loader.engine.worker_process import shortages_explained
from lit_loader.loader.forkserver import start_forkserver
from lit_loader.loader.lightning import begin_seen_indices, is_watched
from lit_loader.loader.resume import (
    EpochState,
    Progress,
    ReplayedSampler,
    ResumePoint,
    StreamBatches,
    StreamPosition,
    custom_tasks,
)
from lit_loader.seeding import key64

MAX_WORKER_RESTARTS: Final = 3
"""How many workers are replaced in an epoch, unless the loader is given another number."""


# Datasets whose first samples were checked, by id, since a dataset need not be hashable.
_checked: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class WorkerManager:
    """Starts the epochs of one loader and keeps its workers.

    Workers belong to their process, so a copy, in another process or another loader, has none.

    Attributes:
        ranks_compared: Whether the ranks have compared what they get from a custom sampler, and it was the same.

    Owns: persistent workers, until `close` or until it is collected.
    """

    def __init__(self) -> None:
        self.ranks_compared = False
        self._has_checked = False  # whether the first samples of an epoch were checked
        self._kept: Any = None
        self._kept_settings: tuple[Any, ...] = ()
        # without callbacks: Python loses a Ctrl-C that comes in one
        self._backends: list[weakref.ref[Any]] = []
        # the epoch that was begun before an iterator claims it, the settings that it depends on, and its batches
        self._next: tuple[int, Any, Scheduler] | None = None
        self._lock = threading.RLock()  # of the list of backends; a signal handler may begin an epoch too

    def __reduce__(self) -> tuple[type[WorkerManager], tuple[()]]:
        return WorkerManager, ()

    def close(self) -> None:
        """End all workers."""
        for reference in self._backends:
            if (backend := reference()) is not None:
                backend.close()
        self._kept = self._next = None

    def forget_workers(self) -> None:
        """Give the next epoch new workers, because those that exist have the dataset as it was before."""
        self._kept = None

    # -- epochs ---------------------------------------------------------------------------------------------

    def start(
        self,
        spec: LoaderSpec,
        progress: Progress,
        point: ResumePoint | None,
        epochs: EpochState,
        *,
        again: bool,
    ) -> Batches:
        """Return the batches of an epoch: started now, or begun ahead while the epoch before was delivered.

        Args:
            spec: Of the loader.
            progress: Counts the batches that the consumer receives.
            point: Where the epoch is resumed, or None at its beginning.
            epochs: The loader's; an epoch is begun ahead only as long as it is the next one.
            again: Whether an iterator over persistent workers, without a seed, begins another epoch.
        """
        epoch = progress.epoch
        if spec.check_repeatability and spec.seed is not None and not spec.is_iterable and spec.rank == 0:
            spec = self._with_check(spec, epoch)
        begin_next = None
        if spec.slicing is not None and spec.persistent_workers and not is_watched(spec.batch_sampler):
            begin_next = partial(_begin_next, weakref.ref(self), spec, epoch + 1, epochs)
        begun, self._next = self._next, None
        if begun is not None:
            number, settings, scheduler = begun
            fits = point is None and (number, settings) == (epoch, spec.epoch_settings)
            if fits and self._usable(spec) is not None and scheduler.claim(begin_next):
                return scheduler
            scheduler.close()
        backend = None if spec.num_workers == 0 else self._usable(spec)
        num_workers = spec.num_workers if backend is None else backend.num_workers
        replayed: ReplayedSampler | None = None
        position = StreamPosition.start(num_workers) if point is None else point.detail
        tasks: Iterator[Task]
        if spec.is_iterable:
            tasks = plan_stream(spec, epoch, places=() if point is None else position.places)
        elif spec.slicing is not None:
            start = 0 if point is None else point.position
            tasks = plan_order(spec, epoch, start=start, seen=begin_seen_indices(spec.batch_sampler))
        elif spec.seed is not None:
            tasks = custom_tasks(spec, progress, point, begin_seen_indices(spec.batch_sampler))
            self.ranks_compared = self.ranks_compared or spec.gather is not None
        else:
            replayed = ReplayedSampler(spec, progress, point)
            tasks = plan_unkeyed(replayed, before=0 if point is None else point.position)
        base_seed = 0 if spec.seed is None else key64(spec.seed, "workers") >> 2
        is_first = spec.seed is None and (backend is None or not again)
        if is_first:
            # as torch does: drawn for each iterator, or once for an iterator over persistent workers
            base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=spec.generator).item())
        # Without a seed at once, as torch does. A state must be loaded before ``iter(dataset)``, and it comes with the
        # first task.
        iterate = spec.is_iterable and spec.seed is None and point is None
        made: Scheduler | InlineBatches
        if spec.num_workers == 0:
            made = InlineBatches(tasks, spec.fetch, iterate=iterate)
        else:
            backend = backend or self._new_backend(spec, base_seed)
            if is_first and replayed is not None:
                replayed.restart()  # torch calls iter() on the sampler twice, the second time after it starts workers
            turn = position.turn if spec.is_iterable else 0
            made = self._schedule(spec, tasks, backend, turn=turn, iterate=iterate)
            try:
                made.claim(begin_next)
            except BaseException:  # Ctrl-C, say: persistent workers would keep the epoch's batches
                made.close()
                raise
        return StreamBatches(made, progress, position) if spec.is_iterable else made

    def _with_check(self, spec: LoaderSpec, epoch: int) -> LoaderSpec:
        """Return the settings by which an epoch's first samples are checked, if the dataset's were not before."""
        dataset = spec.fetch.dataset
        if self._has_checked or _checked.get(id(dataset)) is dataset:
            return spec
        self._has_checked = True
        with contextlib.suppress(TypeError):  # a list, for example, has no weak references
            _checked[id(dataset)] = dataset
        return replace(spec, fetch=replace(spec.fetch, checked_epoch=epoch))

    def _schedule(
        self, spec: LoaderSpec, tasks: Iterator[Task], backend: Backend, turn: int = 0, iterate: bool = False
    ) -> Scheduler:
        assert spec.prefetch_factor is not None
        num_workers = backend.num_workers  # of kept workers, which may be another number than the spec's
        ahead = spec.prefetch_factor * num_workers
        by_any_worker = spec.seed is not None and not spec.is_iterable
        if by_any_worker:
            ahead += num_workers  # the batch that each worker is making, in addition to those that wait
        return Scheduler(
            tasks,
            backend,
            ahead=ahead,
            dealing="any" if by_any_worker else "turns" if spec.in_order else "least_busy",
            in_order=spec.in_order,
            timeout_s=spec.timeout_s,
            owns_backend=backend is not self._kept,
            turn=turn,
            iterate=iterate,
        )

    # -- workers --------------------------------------------------------------------------------------------

    def _usable(self, spec: LoaderSpec) -> Any:
        """Return the workers kept from an earlier epoch, or None if there are none that can be used.

        With a seed, a loader whose settings of workers were changed gets new ones; without one they are kept as they
        are, as in torch.
        """
        if self._kept is None or not self._kept.usable:
            return None
        return self._kept if spec.seed is None or self._kept_settings == spec.worker_settings else None

    def _new_backend(self, spec: LoaderSpec, base_seed: int) -> Backend:
        workers = WorkerSpec(
            fetch=spec.fetch,
            num_workers=spec.num_workers,
            base_seed=base_seed,
            worker_init_fn=spec.worker_init_fn,
            keyed=spec.seed is not None,
            default_dtype=spec.default_dtype,
        )
        backend: ThreadBackend | ProcessBackend
        if spec.worker_method == "thread":
            backend = ThreadBackend(workers)
        else:
            context = spec.multiprocessing_context or torch.multiprocessing
            if context.get_start_method() == "forkserver":
                with shortages_explained(spec.num_workers):
                    start_forkserver()
            given = spec.max_worker_restarts
            backend = ProcessBackend(
                workers,
                context,
                page_lock=spec.page_lock,
                max_restarts=(MAX_WORKER_RESTARTS if given is None else given) if workers.shared_tasks else 0,
                hang_timeout_s=spec.hang_timeout_s,
            )
        with self._lock:
            alive = [reference for reference in self._backends if reference() is not None]
            self._backends = [*alive, weakref.ref(backend)]
        if spec.persistent_workers:
            self._kept, self._kept_settings = backend, spec.worker_settings
        return backend


def _begin_next(
    reference: weakref.ref[WorkerManager], spec: LoaderSpec, epoch: int, epochs: EpochState
) -> Scheduler | None:
    """Begin an epoch before an iterator claims it, unless its loader is gone: see NOTE [The next epoch]."""
    manager = reference()
    backend = None if manager is None else manager._usable(spec)
    if manager is None or backend is None or manager._next is not None or epochs.next != epoch:
        return None
    try:
        scheduler = manager._schedule(spec, plan_order(spec, epoch), backend)
        manager._next = epoch, spec.epoch_settings, scheduler
    except Exception:  # raised again when that epoch is claimed, and not by a batch of this one
        return None
    return scheduler
