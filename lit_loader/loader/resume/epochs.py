"""The epochs of a loader: the number of the next one, the progress of this one, and a state that was loaded."""

from __future__ import annotations

import threading
from typing import Any

from lit_loader.engine import LoaderSpec
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.custom_samplers import SamplerPosition, find_stateful, state_or_none
from lit_loader.loader.resume.progress import MAX_HELD, Progress, ResumePoint
from lit_loader.loader.resume.state import length_of, load_point, save_state, stream_dataset_state
from lit_loader.loader.resume.streams import StreamPosition


class EpochState:
    """Counts a loader's epochs and the batches that were received of the one that was begun last.

    Epochs are counted, or set on the loader or on its sampler, because Lightning calls ``set_epoch`` of the sampler.
    A copy, in another loader or process, has the number of the next epoch, and no progress of iterators.

    Attributes:
        next: The epoch that the next iterator claims, from 0.
    """

    def __init__(self) -> None:
        self.next = 0
        # the last argument of ``set_epoch``; later epochs may have been counted
        self._last_set: int | None = None
        self._was_set = False  # whether an epoch was set since the last one was claimed
        self._sampler_mark: Any = 0  # see `_epoch_of_sampler`
        self._expected_mark: Any = None  # see `expect_set`
        self._progress: Progress | None = None
        # of the previous epoch, if it was finished: a consumer may hold batches of both
        self._previous: Progress | None = None
        # that was loaded, until an epoch is claimed or another one is set
        self._point: ResumePoint | None = None
        # Iterators in two threads claim two epochs. Reentrant, because a signal handler may save a checkpoint while its
        # thread holds it.
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_previous": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    # -- setting and claiming epochs ------------------------------------------------------------------------

    def set_epoch(self, spec: LoaderSpec, epoch: int) -> None:
        """Set the next epoch, on the samplers too.

        Raises:
            ValueError: If it is negative.
        """
        if epoch < 0:
            raise ValueError(f"epoch={epoch} is negative; epochs count from 0")
        for sampler in (spec.sampler, spec.batch_sampler, getattr(spec.batch_sampler, "sampler", None)):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        self._epoch_of_sampler(spec)
        self._set(epoch)

    def _sync_from_sampler(self, spec: LoaderSpec) -> None:
        """Take over the epoch that was set on the sampler."""
        epoch = self._epoch_of_sampler(spec)
        if epoch is not None:
            self._set(epoch)

    def _epoch_of_sampler(self, spec: LoaderSpec) -> int | None:
        """Return the epoch that was set on the sampler since the last call, or None if none was."""
        sampler: Any = getattr(unwrapped(spec.batch_sampler), "sampler", spec.sampler)
        epoch = getattr(sampler, "epoch", None) if hasattr(sampler, "set_epoch") else None
        # only an OrderSampler counts; of torch's DistributedSampler, for example, a change is noticed
        mark = getattr(sampler, "num_epochs_set", epoch)
        if not isinstance(epoch, int) or mark == self._sampler_mark:
            return None
        self._sampler_mark = mark
        if mark == self._expected_mark:
            self._expected_mark = None
            return None
        return epoch

    def expect_set(self, spec: LoaderSpec, epoch: int) -> None:
        """Ignore the next ``set_epoch`` of the sampler, because the current epoch continues.

        Lightning calls ``set_epoch`` after it has fetched the first batch of loaders without a length.
        """
        with self._lock:
            self._sync_from_sampler(spec)
            sampler: Any = getattr(unwrapped(spec.batch_sampler), "sampler", spec.sampler)
            if isinstance(mark := getattr(sampler, "num_epochs_set", None), int):
                self._expected_mark = mark + 1
                self._last_set = epoch
                if self._progress is not None:
                    self._progress.last_set = epoch

    def _set(self, epoch: int) -> None:
        point = self._point
        if point is not None:
            if epoch == point.last_set:
                return  # Lightning sets it once more when it resumes
            # If the state was saved in an epoch that was counted, not set (a short loader beside a long one, which
            # Lightning iterates again), an epoch that is set now is a new one, and begins at its beginning.
            is_other = epoch != point.epoch or (point.last_set is not None and point.position > 0)
            self._point = None if is_other else point._replace(last_set=int(epoch))
        self.next = self._last_set = int(epoch)
        self._was_set = True

    def claim(self, spec: LoaderSpec) -> tuple[Progress, ResumePoint | None]:
        """Begin the next epoch: return its progress, and the point at which it is resumed, or None."""
        with self._lock:
            here, point = self._next_point(spec, 0), self._point
            if point is None:
                # Persistent workers continue with their datasets as the epoch before has left them, if it was not
                # broken off.
                keeps = here.epoch == self.next and isinstance(here.detail, StreamPosition)
                here = ResumePoint(self.next, 0, self._last_set, here.detail if keeps else None)
            progress = _begin_progress(spec, here)
            is_finished = self._progress is not None and self._progress.reached()[2]
            self._previous = self._progress if is_finished else None
            # all at once, because a signal handler may save a state at any time
            self._progress, self._point, self._was_set, self.next = progress, None, False, self.next + 1
            return progress, point

    def unclaim(self, progress: Progress, point: ResumePoint | None) -> None:
        """Undo `claim` because the epoch could not be started; the next iterator claims it again."""
        with self._lock:
            if self._progress is progress:
                self.next = progress.epoch
                self._progress, self._previous, self._point = None, None, point

    @property
    def has_point(self) -> bool:
        """Whether a state was loaded and no iterator has begun there yet."""
        return self._point is not None

    def forget_point(self) -> None:
        """Begin the epoch of a state that was loaded as any other epoch, with the dataset as the state left it."""
        self._point = None

    def num_received(self, num_held: int = 0) -> int:
        """Return how many batches were received of the epoch in which the consumer is, without the last ``num_held``.

        The epoch before counts if all batches of the last one are among those.
        """
        with self._lock:
            current = 0 if self._progress is None else self._progress.num_received
            if num_held < current or self._previous is None:
                return max(0, current - num_held)
            return max(0, self._previous.num_received - (num_held - current))

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self, spec: LoaderSpec, num_held: int) -> dict[str, Any]:
        """Return the loader's state, see `lit_loader.DataLoader.state_dict`."""
        if not 0 <= num_held <= MAX_HELD:
            raise ValueError(f"num_held={num_held} must lie in 0 to {MAX_HELD}")
        with self._lock:
            point = self._next_point(spec, num_held)
            for progress in (self._progress, self._previous):
                if progress is not None and self._point is None and point.epoch == progress.epoch:
                    return save_state(
                        spec, point, base_seed_drawn=True, dataset_before=progress.dataset_before
                    )
            progress = self._progress
            # torch draws one base seed for an iterator over persistent workers, before its first epoch
            drawn = progress is not None and spec.persistent_workers and spec.num_workers > 0
            before = stream_dataset_state(spec)
            return save_state(spec, point, base_seed_drawn=drawn, dataset_before=before)

    def load_state_dict(self, spec: LoaderSpec, state: Any, *, strict: bool) -> bool:
        """Resume from a state, see `lit_loader.DataLoader.load_state_dict`; return whether it changed the dataset."""
        point = load_point(spec, state, strict=strict)
        with self._lock:
            self._point = None  # also of a state that was loaded before this one
            if point is None:
                return False
            if spec.slicing is None and point.last_set is not None:
                self.set_epoch(spec, point.last_set)  # on a sampler that has epochs
            self._sync_from_sampler(spec)
            self.next, self._last_set, self._was_set = point.epoch, point.last_set, False
            self._point, self._progress, self._previous = point, None, None
            self._expected_mark = None
        return state["dataset_state"] is not None or spec.is_iterable

    def _next_point(self, spec: LoaderSpec, num_held: int) -> ResumePoint:
        """Return where the next batch is."""
        self._sync_from_sampler(spec)
        point, progress = self._point, self._progress
        if point is not None:
            return point
        if progress is None or self._was_set:
            return ResumePoint(self.next, 0, self._last_set)
        if num_held > progress.num_received and self._previous is not None:
            num_held -= progress.num_received
            progress = self._previous
        position, detail, complete = progress.reached(held=num_held)
        if not complete and spec.seed is None and not num_held and position:
            # only here, because torch's loader does not call the sampler's ``len`` while it is iterated
            complete = position == length_of(spec.index_sampler)
        if complete:
            number = self.next if progress is self._progress else progress.epoch + 1
            return ResumePoint(number, 0, progress.last_set, _detail_of_next(spec, detail))
        return ResumePoint(progress.epoch, position, progress.last_set, detail)


def _detail_of_next(spec: LoaderSpec, detail: Any) -> Any:
    """Return what is needed to begin the epoch after one that ended with this detail, or None."""
    if isinstance(detail, SamplerPosition) and detail.sampler_state is not None:
        return SamplerPosition(sampler_state=detail.sampler_state)
    # Workers that are not persistent get new copies of the dataset, and without workers the loader's own is used.
    keeps = spec.persistent_workers and spec.num_workers > 0
    return detail.next_epoch() if isinstance(detail, StreamPosition) and keeps else None


def _begin_progress(spec: LoaderSpec, point: ResumePoint) -> Progress:
    """Return the progress of an epoch that begins now, at a point."""
    epoch, start, last_set, first = point
    if spec.slicing is not None:
        sampler, stride = spec.slicing.sampler, (spec.slicing.batch_size or 1) * spec.world_size
        count, first = spec.count_sliced(len(sampler) - start), sampler.revision
        return Progress(epoch, last_set, start=start, stride=stride, num_batches=count, first=first)
    # without a seed torch's loader does not call ``len`` either
    is_asked = spec.seed is not None or spec.fetch.on_bad_sample != "raise"
    total = length_of(spec.counted_sampler) if is_asked else None
    if first is None and spec.seed is not None and not spec.is_iterable:
        first = SamplerPosition(sampler_state=state_or_none(find_stateful(spec)))
    # a user's length may be an estimate, and less than what was received already
    left = None if total is None or total <= start else total - start
    before = stream_dataset_state(spec)
    return Progress(epoch, last_set, start=start, num_batches=left, first=first, dataset_before=before)
