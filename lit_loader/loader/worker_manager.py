"""Starts the epochs of a loader and keeps its workers from one to the next.

NOTE [The next epoch]
    With a seed, persistent workers and an `OrderSampler`, the next epoch's first batches are made while this one's last
    are used. They are kept for the iterator that claims that epoch. If another epoch was set meanwhile, or a setting
    that a batch depends on has changed (`EpochState.epoch_settings`), they are dropped. A change of the dataset itself
    is not noticed. Worker processes have their own copy of it. Worker threads share it, so do not combine persistent
    worker threads with a dataset that is changed between epochs.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any, Final

import torch.multiprocessing

from lit_loader.engine import (
    Backend,
    Batches,
    Counters,
    InlineBatches,
    LoaderSpec,
    ProcessBackend,
    Scheduler,
    ThreadBackend,
    WorkerSpec,
)
from lit_loader.engine.worker_process import shortages_explained
from lit_loader.loader.forkserver import start_forkserver
from lit_loader.loader.resume import EpochPlan, EpochState, Progress, ResumePoint, StreamBatches, StreamPosition

MAX_WORKER_RESTARTS: Final = 3
"""How many workers are replaced in an epoch, unless the loader is given another number."""


class WorkerManager:
    """Starts the epochs of one loader and keeps its workers.

    Workers belong to their process, so a copy, in another process or another loader, has none.

    Attributes:
        backend: The persistent workers, or None if there are none. Set to None, the next epoch gets new ones.
        next_epoch: The epoch that was begun before an iterator claims it, the settings that it depends on, and its
            batches, or None: see NOTE [The next epoch].

    Owns: persistent workers, until `close` or until it is collected.
    """

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.next_epoch: tuple[int, Any, Scheduler] | None = None
        # The settings that the persistent workers were started with.
        self._settings: tuple[Any, ...] = ()
        # Weak references without callbacks: Python loses a Ctrl-C that arrives in a callback.
        self._backends: list[weakref.ref[Backend]] = []
        # Guards the list of backends. Reentrant, because a signal handler may begin an epoch meanwhile.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[WorkerManager], tuple[()]]:
        # Workers belong to this process and this loader.
        return WorkerManager, ()

    def close(self) -> None:
        """End all workers."""
        # Workers of epochs that are still iterated too, not the persistent ones alone.
        for reference in self._backends:
            if (backend := reference()) is not None:
                backend.close()
        self.backend = None
        self.next_epoch = None

    # -- epochs ---------------------------------------------------------------------------------------------

    def start(
        self,
        spec: LoaderSpec,
        progress: Progress,
        point: ResumePoint | None,
        epochs: EpochState[Any],
        counters: Counters,
        *,
        restarted: bool,
    ) -> Batches:
        """Return the batches of an epoch: started now, or begun ahead while the epoch before was delivered.

        Args:
            spec: The loader's settings.
            progress: Counts the batches that the consumer receives.
            point: Where the epoch is resumed, or None at its beginning.
            epochs: The loader's epochs; the next one may be begun ahead.
            counters: The loader's counters.
            restarted: True if an iterator over persistent workers begins another epoch, as in torch.
        """
        epoch = progress.epoch
        settings = epochs.epoch_settings(spec)
        begin_next = None
        if settings is not None:
            # The scheduler calls it when it has sent this epoch's last task. It holds a weak reference, because workers
            # must not keep the loader alive; not a WeakMethod, whose callback would lose a Ctrl-C.
            begin_next = partial(_begin_next, weakref.ref(self), spec, epoch + 1, epochs, counters)
        # Taken first, so that an error below does not leave it for a later epoch.
        prepared, self.next_epoch = self.next_epoch, None
        if prepared is not None:
            prepared_epoch, prepared_settings, scheduler = prepared
            fits = point is None and (prepared_epoch, prepared_settings) == (epoch, settings)
            if fits and self._usable(spec, epochs) is not None and scheduler.claim(begin_next):
                return scheduler
            scheduler.close()
        backend = None if spec.num_workers == 0 else self._usable(spec, epochs)
        plan = epochs.plan(spec, progress, point, new_iterator=backend is None or not restarted)
        num_workers = spec.num_workers
        batches: Scheduler | InlineBatches
        if num_workers == 0:
            batches = InlineBatches(plan.tasks, plan.fetch, counters, iterate=plan.iterate)
        else:
            if backend is None:
                backend = self._new_backend(spec, plan, epochs, counters)
            if plan.on_workers_started is not None:
                plan.on_workers_started()
            # The number of kept workers may differ from the loader's setting, as in torch.
            num_workers = backend.num_workers
            batches = self._schedule(spec, plan, backend, counters)
            try:
                batches.claim(begin_next)
            except BaseException:
                # Ctrl-C, for example: persistent workers would keep the epoch's batches.
                batches.close()
                raise
        if not spec.is_iterable:
            return batches
        # Only the worker knows the position in its stream, and sends it with every batch.
        return StreamBatches(batches, progress, plan.position or StreamPosition.start(num_workers))

    def begin_next(self, spec: LoaderSpec, epoch: int, epochs: EpochState[Any], counters: Counters) -> Scheduler | None:
        """Begin an epoch before an iterator claims it: see NOTE [The next epoch]."""
        backend = self._usable(spec, epochs)
        if backend is None or self.next_epoch is not None or epochs.next != epoch:
            return None
        try:
            plan = epochs.plan(spec, Progress(epoch, None), None, new_iterator=False)
            scheduler = self._schedule(spec, plan, backend, counters)
            self.next_epoch = (epoch, epochs.epoch_settings(spec), scheduler)
        except Exception:
            # Raised again when that epoch is claimed; a batch of this epoch must not raise it.
            return None
        return scheduler

    def _schedule(self, spec: LoaderSpec, plan: EpochPlan, backend: Backend, counters: Counters) -> Scheduler:
        assert spec.prefetch_factor is not None
        num_ahead = spec.prefetch_factor * backend.num_workers
        by_any_worker = plan.keyed and not spec.is_iterable
        if by_any_worker:
            # Each worker is making one more batch, in addition to those that wait. Torch counts it among them.
            num_ahead += backend.num_workers
        return Scheduler(
            plan.tasks,
            backend,
            ahead=num_ahead,
            dealing="any" if by_any_worker else "turns" if spec.in_order else "least_busy",
            in_order=spec.in_order,
            timeout_s=spec.timeout_s,
            owns_backend=backend is not self.backend,
            turn=0 if plan.position is None else plan.position.turn,
            iterate=plan.iterate,
            counters=counters,
        )

    # -- workers --------------------------------------------------------------------------------------------

    def _usable(self, spec: LoaderSpec, epochs: EpochState[Any]) -> Backend | None:
        """Return the workers kept from an earlier epoch, or None if there are none that can be used."""
        backend = self.backend
        if backend is None or not backend.usable:
            return None
        return backend if self._settings == epochs.worker_settings(spec) else None

    def _new_backend(self, spec: LoaderSpec, plan: EpochPlan, epochs: EpochState[Any], counters: Counters) -> Backend:
        workers = WorkerSpec(
            fetch=plan.fetch,
            num_workers=spec.num_workers,
            base_seed=plan.base_seed,
            worker_init_fn=spec.worker_init_fn,
            keyed=plan.keyed,
            default_dtype=spec.default_dtype,
        )
        backend: Backend
        if spec.worker_method == "thread":
            backend = ThreadBackend(workers)
        else:
            context = spec.multiprocessing_context or torch.multiprocessing
            if context.get_start_method() == "forkserver":
                with shortages_explained(spec.num_workers):
                    start_forkserver()
            # Samples without a key cannot be made again with the same bits.
            max_restarts = 0
            if workers.shared_tasks:
                limit = spec.max_worker_restarts
                max_restarts = MAX_WORKER_RESTARTS if limit is None else limit
            backend = ProcessBackend(
                workers,
                context,
                page_lock=spec.page_lock,
                max_restarts=max_restarts,
                hang_timeout_s=spec.hang_timeout_s,
                counters=counters,
            )
        with self._lock:
            alive = [reference for reference in self._backends if reference() is not None]
            self._backends = [*alive, weakref.ref(backend)]
        if spec.persistent_workers:
            self.backend = backend
            self._settings = epochs.worker_settings(spec)
        return backend


def _begin_next(
    manager_reference: weakref.ref[WorkerManager],
    spec: LoaderSpec,
    epoch: int,
    epochs: EpochState[Any],
    counters: Counters,
) -> Scheduler | None:
    manager = manager_reference()
    return None if manager is None else manager.begin_next(spec, epoch, epochs, counters)
