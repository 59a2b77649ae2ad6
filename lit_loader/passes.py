"""A loader's passes: each started as its regime says, on workers that are kept if they are to be.

NOTE [The next epoch]
    With a seed, persistent workers and an order of ours, the next epoch's first batches are made while this one's
    last are used. They are kept for the iterator that claims that epoch. If another epoch was named meanwhile, or
    something that a batch depends on has changed (see `_what_fits`), they are dropped. What cannot be seen from
    here is the dataset itself: worker processes have their own copy of it anyway; worker threads share it, so a
    dataset that is changed between epochs should not be combined with persistent worker threads.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.multiprocessing
from torch.utils.data import IterableDataset
from torch.utils.data import default_collate as torch_default_collate
from torch.utils.data import default_convert as torch_default_convert

from lit_loader.collate.default import default_collate, default_convert
from lit_loader.collate.own import is_own_collate
from lit_loader.engine import (
    DirectedRun,
    InlineRun,
    IterableFetcher,
    Pool,
    ProcessPool,
    SharedRun,
    Task,
    ThreadPool,
    WorkerSpec,
)
from lit_loader.engine.bad_samples import Run
from lit_loader.forkserver import start_forkserver
from lit_loader.planning import (
    Cut,
    Loader,
    is_watched,
    plan_seeded,
    plan_stream,
    plan_unseeded,
)
from lit_loader.resume import Progress, ResumePoint, StreamDetail, StreamRun
from lit_loader.seeding import key64

__all__ = ["MAX_WORKER_RESTARTS", "Passes", "stream_state"]

MAX_WORKER_RESTARTS: Final = 3
"""How many workers are replaced in an epoch, unless the loader is told another number."""


class _Ahead(NamedTuple):
    """A pass that was begun before anybody asked for it."""

    fits: tuple[Any, ...] | None
    run: SharedRun


def stream_state(loader: Loader) -> bool | None:
    """Return whether the batches of an iterable dataset come with its state, or None if it is a map dataset.

    A dataset that worker threads share has one state for all of them, and one state is not that of every rank: there
    samples are counted.
    """
    if not isinstance(loader.dataset, IterableDataset):
        return None
    shared = loader.worker_method == "thread" and loader.num_workers > 1
    return not shared and loader._place[1] == 1


class Passes:
    """Starts the passes of one loader and keeps its workers.

    Workers stay with their process, so that a copy of this, in another process or another loader, is empty.

    Owns: persistent workers, until `close` or until it is collected.
    """

    def __init__(self) -> None:
        self._kept: Pool | None = None
        self._kept_for: tuple[Any, ...] = ()
        self._live: list[weakref.ref[Any]] = []  # without callbacks, in which Ctrl-C would be lost
        self._ahead: _Ahead | None = None
        self._noting = threading.Lock()

    def __reduce__(self) -> tuple[type[Passes], tuple[()]]:
        return Passes, ()

    def close(self) -> None:
        """End all workers."""
        for known in self._live:
            pool = known()
            if pool is not None:
                pool.close()
        self._kept = self._ahead = None

    def forget_workers(self) -> None:
        """Let the next pass have workers of its own: those that there are have the dataset as it was."""
        self._kept = None

    # -- unseeded: torch to the letter ----------------------------------------------------------------------

    def start_unseeded(
        self, loader: Loader, progress: Progress, point: ResumePoint | None, *, again: bool
    ) -> Run:
        """Start a pass as torch does, draw for draw.

        Args:
            loader: Whose pass it is.
            progress: What the consumer receives of it.
            point: Where an epoch is gone on with, or None at its beginning.
            again: Whether an iterator over persistent workers begins another pass.
        """
        if isinstance(loader.dataset, IterableDataset):
            return self._start_unseeded_stream(loader, progress, point, again=again)
        indices, plan = plan_unseeded(loader, progress, point)
        pool = self._usable(loader)
        if not again or pool is None:
            base_seed = _draw_base_seed(loader)
            if loader.num_workers == 0:
                return InlineRun(plan, _spec(loader, base_seed).fetcher())
            pool = pool or self._new_pool(loader, base_seed)
            indices.restart()  # torch asks twice for an iterator's first pass
        return self._directed(loader, pool, plan, in_turns=loader.in_order, eager=False)

    def _start_unseeded_stream(
        self, loader: Loader, progress: Progress, point: ResumePoint | None, *, again: bool
    ) -> StreamRun:
        detail = StreamDetail.start(loader.num_workers) if point is None else point.detail
        plan = plan_stream(loader._index_sampler, places=None if point is None else detail.places)
        eager = point is None  # as in torch; a state is loaded before ``iter(dataset)``, with the first task
        pool = self._usable(loader)
        if not again or pool is None:
            base_seed = _draw_base_seed(loader)
            if loader.num_workers == 0:
                fetcher = _spec(loader, base_seed).fetcher()
                assert isinstance(fetcher, IterableFetcher)
                if eager:
                    fetcher.start(None)
                return StreamRun(InlineRun(plan, fetcher), progress, detail)
            pool = pool or self._new_pool(loader, base_seed)
        run = self._directed(loader, pool, plan, in_turns=loader.in_order, eager=eager, turn=detail.turn)
        return StreamRun(run, progress, detail)

    # -- seeded ---------------------------------------------------------------------------------------------

    def start_seeded(self, loader: Loader, progress: Progress, point: ResumePoint | None) -> Run:
        """Start the pass of an epoch, or go on with what was made of it ahead.

        Args:
            loader: Whose pass it is.
            progress: What the consumer receives of it.
            point: Where the epoch is gone on with; None: at its beginning.
        """
        ahead, self._ahead = self._ahead, None
        epoch, cut = progress.epoch, loader._cut
        following = self._following(loader, epoch) if cut is not None else None
        if ahead is not None:
            fits = point is None and ahead.fits == self._what_fits(loader, epoch, cut)
            if fits and ahead.run.claim(following):
                return ahead.run
            ahead.run.close()
        plan = plan_seeded(loader, epoch, cut, progress, point)
        if isinstance(loader.dataset, IterableDataset):
            detail = StreamDetail.start(loader.num_workers) if point is None else point.detail
            return StreamRun(self._stream(loader, plan, detail.turn), progress, detail)
        if loader.num_workers == 0:
            return InlineRun(plan, _spec(loader, 0).fetcher())
        run = self._shared(loader, plan)
        run.claim(following)
        return run

    def _stream(self, loader: Loader, plan: Iterator[Task], turn: int) -> InlineRun | DirectedRun:
        """Return a pass over an iterable dataset."""
        if loader.num_workers == 0:
            return InlineRun(plan, _spec(loader, 0).fetcher())
        pool = self._usable(loader) or self._new_seeded_pool(loader)
        return self._directed(loader, pool, plan, in_turns=loader.in_order, eager=False, turn=turn)

    def _following(self, loader: Loader, epoch: int) -> Callable[[], SharedRun | None] | None:
        """Return what begins the epoch after this one; None if there is no point in it."""
        if not loader.persistent_workers or is_watched(loader.batch_sampler):
            return None
        return partial(_run_ahead, weakref.ref(loader), epoch + 1)

    def begin_ahead(self, loader: Loader, epoch: int) -> SharedRun | None:
        """Begin the pass of an epoch that nobody has claimed yet; see NOTE [The next epoch]."""
        cut = loader._cut
        if cut is None or self._usable(loader) is None or loader._next_epoch != epoch:
            return None
        fits = self._what_fits(loader, epoch, cut)
        if self._ahead is not None:
            if self._ahead.fits == fits:
                return None
            self._ahead.run.close()
        self._ahead = _Ahead(fits, self._shared(loader, plan_seeded(loader, epoch, cut)))
        return self._ahead.run

    def _what_fits(self, loader: Loader, epoch: int, cut: Cut | None) -> tuple[Any, ...] | None:
        """Return what a pass depends on, as far as the loader knows; None if it cannot be begun ahead."""
        if cut is None:
            return None
        return (
            (epoch, loader.seed, *loader._place, self._usable(loader)),
            (cut.sampler, cut.sampler.revision, cut.sampler.seed, len(cut.sampler), cut.sampler.num_indices),
            (cut.batch_size, cut.drop_last),
            (loader.in_order, loader.timeout, loader.prefetch_factor),
        )

    # -- workers --------------------------------------------------------------------------------------------

    def _shared(self, loader: Loader, plan: Iterator[Task]) -> SharedRun:
        assert loader.prefetch_factor is not None
        pool = self._usable(loader) or self._new_seeded_pool(loader)
        return SharedRun(
            pool,
            plan,
            prefetch_factor=loader.prefetch_factor,
            in_order=loader.in_order,
            timeout_s=loader.timeout,
            owns_pool=pool is not self._kept,
        )

    def _directed(
        self, loader: Loader, pool: Pool, plan: Any, *, in_turns: bool, eager: bool, turn: int = 0
    ) -> DirectedRun:
        assert loader.prefetch_factor is not None
        return DirectedRun(
            pool,
            plan,
            prefetch_factor=loader.prefetch_factor,
            in_turns=in_turns,
            turn=turn,
            eager=eager,
            in_order=loader.in_order,
            timeout_s=loader.timeout,
            owns_pool=pool is not self._kept,
        )

    def _usable(self, loader: Loader) -> Pool | None:
        """Return the workers kept from an earlier pass, if they can be used here.

        With a seed, a loader whose functions or workers were changed gets new ones; torch's keeps them as they are.
        """
        if self._kept is None or not self._kept.usable:
            return None
        return self._kept if loader.seed is None or self._kept_for == _made_with(loader) else None

    def _new_seeded_pool(self, loader: Loader) -> Pool:
        assert loader.seed is not None
        return self._new_pool(loader, key64(loader.seed, "workers") >> 2)

    def _new_pool(self, loader: Loader, base_seed: int) -> Pool:
        spec = _spec(loader, base_seed)
        keyed = loader.seed is not None
        shared = keyed and not isinstance(loader.dataset, IterableDataset)
        pool: Pool
        if loader.worker_method == "thread":
            pool = ThreadPool(spec, shared=shared, keyed=keyed)
        else:
            context = loader.multiprocessing_context or torch.multiprocessing
            if context.get_start_method() == "forkserver":
                start_forkserver()
            most = MAX_WORKER_RESTARTS if loader.max_worker_restarts is None else loader.max_worker_restarts
            pool = ProcessPool(
                spec,
                context,
                shared=shared,
                page_lock=loader._page_lock,
                max_restarts=most if shared else 0,
                hang_timeout_s=loader.hang_timeout_s,
            )
        with self._noting:
            self._live = [*(known for known in self._live if known() is not None), weakref.ref(pool)]
        if loader.persistent_workers:
            self._kept, self._kept_for = pool, _made_with(loader)
        return pool


def _draw_base_seed(loader: Loader) -> int:
    """Draw the workers' seed as torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


def _made_with(loader: Loader) -> tuple[Any, ...]:
    """Return what workers are made with and a user may change afterwards."""
    functions = loader.collate_fn, loader.worker_init_fn, loader.on_bad_sample
    return (
        *functions,
        loader.num_workers,
        loader.worker_method,
        loader.max_worker_restarts,
        loader.hang_timeout_s,
    )


def _run_ahead(loader: weakref.ref[Loader], epoch: int) -> SharedRun | None:
    """Begin the epoch that follows, unless its loader is gone; what is wrong with it is raised when it is claimed."""
    alive = loader()
    try:
        return None if alive is None else alive._passes.begin_ahead(alive, epoch)
    except Exception:
        return None


def _fetch_collate_fn(collate_fn: Any) -> Any:
    """Return ours for torch's defaults: faster, and without shared memory, which our transport has no use for."""
    if collate_fn is torch_default_collate:
        return default_collate
    return default_convert if collate_fn is torch_default_convert else collate_fn


def _spec(loader: Loader, base_seed: int) -> WorkerSpec:
    return WorkerSpec(
        dataset=loader.dataset,
        batched=loader.batch_sampler is not None,
        collate_fn=_fetch_collate_fn(loader.collate_fn),
        own_collate=is_own_collate(loader.collate_fn),
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        base_seed=base_seed,
        num_workers=loader.num_workers,
        on_bad_sample=loader.on_bad_sample,
        stream_state=stream_state(loader),
    )
