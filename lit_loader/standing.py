"""Where a loader stands: the next epoch, how far the consumer is in this one, and a state that was loaded."""

from __future__ import annotations

import threading
from typing import Any

from torch.utils.data import IterableDataset

from lit_loader.epochs import EpochCount
from lit_loader.planning import Cut, index_sampler
from lit_loader.resume import MOST_HELD, Progress, ResumePoint, SamplerDetail, StreamDetail, beginning
from lit_loader.samplers import num_batches
from lit_loader.states import Resumable, known_length, resume_point, saved_state, stream_dataset_state

__all__ = ["Standing"]


class Standing:
    """Counts a loader's epochs and what the consumer received of the one that was begun last.

    A copy, in another loader or process, knows the next epoch and nothing of iterators that live here.

    Attributes:
        epochs: Which epoch comes next.
    """

    def __init__(self) -> None:
        self.epochs = EpochCount()
        self._progress: Progress | None = None
        self._point: ResumePoint | None = None
        self._meanwhile: ResumePoint | None = None  # what a signal's handler is told while a pass begins
        # the state of an iterable dataset before the pass that was begun last
        self._dataset_before: Any = None
        # two threads' passes are two epochs; a signal's handler may save a checkpoint in the middle of either
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "_point": self._point}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc] # a copy begins as one that was made
        self.__dict__.update(state)

    def name(self, loader: Resumable, epoch: int) -> None:
        """Name the next epoch."""
        self.epochs.name(epoch, **_samplers(loader))

    def claim(self, loader: Resumable) -> tuple[Progress, ResumePoint | None]:
        """Return the progress of the pass that begins now, and where it begins, and move on to the next epoch."""
        with self._lock:
            here = self._meanwhile = self._next(loader, 0)
            try:
                point, epochs = self._pending(loader), self.epochs
                self._dataset_before = stream_dataset_state(loader)
                # persistent workers go on with the datasets that the epoch before left; not if it was broken off
                first = here.detail if here.position == 0 and isinstance(here.detail, StreamDetail) else None
                progress = _begin_progress(loader, loader._cut, epochs.next, epochs.named, point, first)
                self._progress, self._point = progress, None
                epochs.claim()
                return progress, point
            finally:
                self._meanwhile = None

    def give_back(self, progress: Progress, point: ResumePoint | None) -> None:
        """Undo `claim`: the pass could not be started, and the next one is to try it again."""
        with self._lock:
            if self._progress is progress:
                self.epochs.give_back(progress.epoch)
                self._progress, self._point = None, point

    def state(self, loader: Resumable, num_held: int) -> dict[str, Any]:
        """Return the loader's state, see `lit_loader.DataLoader.state_dict`."""
        if not 0 <= num_held <= MOST_HELD:
            raise ValueError(f"num_held={num_held} must lie in 0 to {MOST_HELD}")
        with self._lock:
            point, progress = self._next(loader, num_held), self._progress
            pending = self._meanwhile is not None or self._pending(loader) is not None
            begun = not pending and progress is not None and point.epoch == progress.epoch
            before = self._dataset_before if begun else stream_dataset_state(loader)
            # of an iterator over persistent workers torch draws a base seed once, before its first pass
            drawn = begun or (progress is not None and loader.persistent_workers and loader.num_workers > 0)
            return saved_state(loader, point, base_seed_drawn=drawn, dataset_before=before)

    def load(self, loader: Resumable, state: Any) -> None:
        """Go on from a state, see `lit_loader.DataLoader.load_state_dict`."""
        point = resume_point(loader, state)
        if point is None:
            self._point = None  # the epoch begins anew, also if a state that fitted was loaded before
            return
        with self._lock:
            if loader._cut is None and point.named is not None:
                self.epochs.name(point.named, **_samplers(loader))  # to a sampler that knows epochs
            self.epochs.hear(**_samplers(loader))
            self.epochs.resume(point.epoch, point.named)
            self._point, self._progress = point, None
        if "dataset_state" in state or isinstance(loader.dataset, IterableDataset):
            loader._passes.forget_workers()

    def _pending(self, loader: Resumable) -> ResumePoint | None:
        """Return the point that was loaded, if no other epoch was named since."""
        self.epochs.hear(**_samplers(loader))
        point = self._point
        if point is None or point.epoch != self.epochs.next:
            return None
        # counted on from a named epoch (a short loader beside a long one), and that number is named only now: whole
        anew = self.epochs.renamed and point.named is not None and point.position > 0
        return None if anew else point

    def _next(self, loader: Resumable, num_held: int) -> ResumePoint:
        """Return where the next batch is."""
        if self._meanwhile is not None:
            return self._meanwhile
        pending, progress, epochs = self._pending(loader), self._progress, self.epochs
        if pending is not None:
            return pending
        if progress is None or epochs.renamed:
            return ResumePoint(epochs.next, 0, epochs.named)
        position, detail, complete = progress.reached(held=num_held)
        if not complete and loader.seed is None and not num_held and position:
            complete = position == known_length(loader._index_sampler)  # not asked before: torch does not
        if complete:
            return ResumePoint(epochs.next, 0, progress.named, _detail_of_next(loader, detail))
        return ResumePoint(progress.epoch, position, progress.named, detail)


def _samplers(loader: Resumable) -> dict[str, Any]:
    return {"cut": loader._cut, "sampler": loader.sampler, "batch_sampler": loader.batch_sampler}


def _detail_of_next(loader: Resumable, detail: Any) -> Any:
    """Return what it takes to begin the epoch after one that ended with this detail."""
    if isinstance(detail, SamplerDetail) and detail.state is not None:
        return SamplerDetail(state=detail.state)
    # other workers' datasets are made anew for each epoch, and without workers it is the loader's own dataset
    keeps = loader.persistent_workers and loader.num_workers > 0
    return detail.next_epoch() if isinstance(detail, StreamDetail) and keeps else None


def _begin_progress(
    loader: Resumable, cut: Cut | None, epoch: int, named: int | None, point: ResumePoint | None, first: Any
) -> Progress:
    """Return the progress of a pass that begins now, at a point or at the epoch's beginning.

    Args:
        loader: The loader.
        cut: How it slices an order, if it does.
        epoch: The epoch.
        named: The epoch that was named last.
        point: Where it is gone on with, or None.
        first: What is known of the epoch's beginning.
    """
    start = 0 if point is None else point.position
    if loader.seed is None:  # torch asks nobody's length
        counted = loader.on_bad_sample != "raise"
        total = known_length(loader._index_sampler) if counted else None
        left = None if total is None or total <= start else total - start
        return Progress(
            epoch, named, start=start, num_batches=left, first=first if point is None else point.detail
        )
    if cut is not None:
        size, world_size = cut.batch_size or 1, loader._place[1]
        of_order = num_batches(
            len(cut.sampler) - start, batch_size=size, world_size=world_size, drop_last=cut.drop_last
        )
        return Progress(
            epoch,
            named,
            start=start,
            stride=size * world_size,
            num_batches=of_order,
            first=cut.sampler.revision,
        )
    first = first if point is None else point.detail
    if isinstance(loader.dataset, IterableDataset):
        return Progress(epoch, named, start=start, first=first)
    total = known_length(index_sampler(loader))
    left = None if total is None or total <= start else total - start  # a user's length may be an estimate
    first = first or beginning(loader.batch_sampler, loader.sampler)
    return Progress(epoch, named, start=start, num_batches=left, first=first)
