"""The epochs of a loader: the number of the next one, the progress of this one, and a state that was loaded."""

from __future__ import annotations

import threading
from typing import Any

from lit_loader.engine import LoaderSpec
from lit_loader.resume.custom_samplers import SamplerPosition, begin_custom
from lit_loader.resume.progress import MAX_HELD, Progress, ResumePoint
from lit_loader.resume.state import length_of, load_point, save_state, stream_dataset_state
from lit_loader.resume.streams import StreamPosition


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
        # the epoch that was set before a state was saved; Lightning sets it once more when it resumes, without effect
        self._ignored: int | None = None
        self._num_sampler_sets = self._sampler_epoch = 0  # of the sampler, when it was looked at last
        self._progress: Progress | None = None
        self._point: ResumePoint | None = None
        # what `state_dict` returns if a signal handler calls it while an epoch is being claimed
        self._point_meanwhile: ResumePoint | None = None
        # the state of an iterable dataset before the epoch that was begun last
        self._dataset_before: Any = None
        # Iterators in two threads claim two epochs. Reentrant, because a signal handler may save a checkpoint while its
        # thread holds it.
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        copied = (
            "next",
            "_last_set",
            "_was_set",
            "_ignored",
            "_num_sampler_sets",
            "_sampler_epoch",
            "_point",
        )
        return {name: self.__dict__[name] for name in copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(EpochState().__dict__)  # what is not copied is as in a new one
        self.__dict__.update(state)

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
        if spec.slicing is not None:
            sampler = spec.slicing.sampler
            if sampler.num_epochs_set == self._num_sampler_sets:
                return None
            self._num_sampler_sets = sampler.num_epochs_set
            return sampler.epoch
        # torch's DistributedSampler, for example
        custom = getattr(spec.batch_sampler, "sampler", spec.sampler)
        epoch = getattr(custom, "epoch", None) if hasattr(custom, "set_epoch") else None
        if not isinstance(epoch, int) or epoch == self._sampler_epoch:
            return None
        self._sampler_epoch = epoch
        return epoch

    def _set(self, epoch: int) -> None:
        if epoch != self._ignored:
            self.next = self._last_set = epoch
            self._was_set, self._ignored = True, None

    def claim(self, spec: LoaderSpec) -> tuple[Progress, ResumePoint | None]:
        """Begin the next epoch: return its progress, and the point at which it is resumed, or None."""
        with self._lock:
            here = self._point_meanwhile = self._next_point(spec, 0)
            try:
                point = self._pending(spec)
                self._dataset_before = stream_dataset_state(spec)
                # Persistent workers continue with their datasets as the epoch before has left them, if it was not
                # broken off.
                first = (
                    here.detail if here.position == 0 and isinstance(here.detail, StreamPosition) else None
                )
                progress = _begin_progress(spec, self.next, self._last_set, point, first)
                self._progress, self._point = progress, None
                self.next, self._was_set, self._ignored = self.next + 1, False, None
                return progress, point
            finally:
                self._point_meanwhile = None

    def unclaim(self, progress: Progress, point: ResumePoint | None) -> None:
        """Undo `claim` because the epoch could not be started; the next iterator claims it again."""
        with self._lock:
            if self._progress is progress:
                self.next = progress.epoch
                self._progress, self._point = None, point

    def is_next(self, epoch: int) -> bool:
        """Whether an epoch is the next one to be claimed."""
        return epoch == self.next

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self, spec: LoaderSpec, num_held: int) -> dict[str, Any]:
        """Return the loader's state, see `lit_loader.DataLoader.state_dict`."""
        if not 0 <= num_held <= MAX_HELD:
            raise ValueError(f"num_held={num_held} must lie in 0 to {MAX_HELD}")
        with self._lock:
            point, progress = self._next_point(spec, num_held), self._progress
            pending = self._point_meanwhile is not None or self._pending(spec) is not None
            begun = not pending and progress is not None and point.epoch == progress.epoch
            before = self._dataset_before if begun else stream_dataset_state(spec)
            # torch draws one base seed for an iterator over persistent workers, before its first epoch
            drawn = begun or (progress is not None and spec.persistent_workers and spec.num_workers > 0)
            return save_state(spec, point, base_seed_drawn=drawn, dataset_before=before)

    def load_state_dict(self, spec: LoaderSpec, state: Any) -> bool:
        """Resume from a state, see `lit_loader.DataLoader.load_state_dict`; return whether it changed the dataset."""
        point = load_point(spec, state)
        if point is None:
            self._point = None  # also of a state that was loaded before this one
            return False
        with self._lock:
            if spec.slicing is None and point.last_set is not None:
                self.set_epoch(spec, point.last_set)  # on a sampler that has epochs
            self._sync_from_sampler(spec)
            self.next, self._last_set, self._ignored = point.epoch, point.last_set, point.last_set
            self._was_set = False
            self._point, self._progress = point, None
        return "dataset_state" in state or spec.is_iterable

    def _pending(self, spec: LoaderSpec) -> ResumePoint | None:
        """Return the point that was loaded, if no other epoch was set since."""
        self._sync_from_sampler(spec)
        point = self._point
        if point is None or point.epoch != self.next:
            return None
        # The state was saved in an epoch that was counted, not set (a short loader beside a long one, which Lightning
        # iterates again). If the epoch is set now, it is a new one, and begins at its beginning.
        anew = self._was_set and point.last_set is not None and point.position > 0
        return None if anew else point

    def _next_point(self, spec: LoaderSpec, num_held: int) -> ResumePoint:
        """Return where the next batch is."""
        if self._point_meanwhile is not None:
            return self._point_meanwhile
        pending, progress = self._pending(spec), self._progress
        if pending is not None:
            return pending
        if progress is None or self._was_set:
            return ResumePoint(self.next, 0, self._last_set)
        position, detail, complete = progress.reached(held=num_held)
        if not complete and spec.seed is None and not num_held and position:
            # only here, because torch's loader does not call the sampler's ``len`` while it is iterated
            complete = position == length_of(spec.index_sampler)
        if complete:
            return ResumePoint(self.next, 0, progress.last_set, _detail_of_next(spec, detail))
        return ResumePoint(progress.epoch, position, progress.last_set, detail)


def _detail_of_next(spec: LoaderSpec, detail: Any) -> Any:
    """Return what is needed to begin the epoch after one that ended with this detail, or None."""
    if isinstance(detail, SamplerPosition) and detail.state is not None:
        return SamplerPosition(state=detail.state)
    # Workers that are not persistent get new copies of the dataset, and without workers the loader's own is used.
    keeps = spec.persistent_workers and spec.num_workers > 0
    return detail.next_epoch() if isinstance(detail, StreamPosition) and keeps else None


def _begin_progress(
    spec: LoaderSpec, epoch: int, last_set: int | None, point: ResumePoint | None, first: Any
) -> Progress:
    """Return the progress of an epoch that begins now, at a point or at the epoch's beginning.

    Args:
        spec: Of the loader.
        epoch: The epoch.
        last_set: The epoch that was set last.
        point: Where it is resumed, or None.
        first: The detail of the epoch's beginning, or None if there is none.
    """
    start = 0 if point is None else point.position
    first = first if point is None else point.detail
    if spec.slicing is not None:
        sampler = spec.slicing.sampler
        return Progress(
            epoch,
            last_set,
            start=start,
            stride=(spec.slicing.batch_size or 1) * spec.world_size,
            num_batches=spec.count_sliced(len(sampler) - start),
            first=sampler.revision,
        )
    total = None
    if spec.seed is None:
        if spec.fetch.on_bad_sample != "raise":  # otherwise torch's loader does not call ``len`` either
            total = length_of(spec.index_sampler)
    elif not spec.is_iterable:
        total = length_of(spec.counted_sampler)
        first = first or begin_custom(spec)
    # a user's length may be an estimate, and less than what was received already
    left = None if total is None or total <= start else total - start
    return Progress(epoch, last_set, start=start, num_batches=left, first=first)
