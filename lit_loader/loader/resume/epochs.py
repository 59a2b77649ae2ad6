"""The epochs of a loader: the number of the next one, the progress of this one, and a state that was loaded."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from lit_loader.engine import BatchSlicing, FetchSpec, Task
from lit_loader.loader.lightning import unwrapped
from lit_loader.loader.resume.progress import MAX_HELD, Progress, ResumePoint
from lit_loader.loader.resume.state import SpecT, StateRules, stream_dataset_state
from lit_loader.loader.resume.streams import StreamPosition


class EpochPlan(NamedTuple):
    """How an epoch is started.

    Attributes:
        tasks: The batches to make, in order.
        fetch: How batches are made.
        keyed: True if tasks have keys.
        base_seed: Worker w of new workers is seeded with ``base_seed + w``.
        iterate: True if ``iter(dataset)`` of an iterable dataset is called now, not at the first task.
        position: Where the epoch of an iterable dataset resumes, or None for its beginning.
        on_workers_started: Called when new workers were started, or None.
    """

    tasks: Iterator[Task]
    fetch: FetchSpec
    keyed: bool
    base_seed: int
    iterate: bool = False
    position: StreamPosition | None = None
    on_workers_started: Callable[[], None] | None = None


class EpochState(StateRules[SpecT]):
    """Counts a loader's epochs and the batches that were received of the one that was begun last.

    A loader with a seed has `KeyedEpochs`, a loader without one `TorchEpochs`.

    Epochs are counted, or set on the loader or on its sampler, because Lightning calls ``set_epoch`` of the sampler.
    A copy, in another loader or process, has the number of the next epoch, and no progress of iterators.

    Attributes:
        next: The epoch that the next iterator claims, from 0.
        begins_at_iter: True if ``iter(loader)`` begins an epoch, and False if an iterator's first ``next()`` does.
    """

    begins_at_iter: ClassVar[bool]

    def __init__(self) -> None:
        self.next = 0
        # the last argument of ``set_epoch``; later epochs may have been counted
        self._last_set: int | None = None
        # True if an epoch was set since the last one was claimed
        self._was_set = False
        # the sampler's epoch, or its count of calls of ``set_epoch``, when it was last read
        self._sampler_mark: Any = 0
        # the mark after a call of ``set_epoch`` that changes nothing
        self._expected_mark: Any = None
        self._progress: Progress | None = None
        # The previous epoch, if it was finished: a consumer may hold batches of both.
        self._previous: Progress | None = None
        # The point that was loaded, until an epoch is claimed or another one is set.
        self._point: ResumePoint | None = None
        # Iterators in two threads claim two epochs. Reentrant, because a signal handler may save a checkpoint while its
        # thread holds it.
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        # Iterators belong to this process. A lock cannot be pickled.
        return {**self.__dict__, "_progress": None, "_previous": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    # -- the rules of a subclass ----------------------------------------------------------------------------

    @abc.abstractmethod
    def plan(self, spec: SpecT, progress: Progress, point: ResumePoint | None, *, new_iterator: bool) -> EpochPlan:
        """Return how an epoch that was claimed is started.

        Args:
            spec: The loader's settings.
            progress: Of the epoch. It receives a detail for each batch of a custom sampler, from which the epoch can be
                resumed.
            point: Where the epoch is resumed, or None at its beginning.
            new_iterator: False if an iterator over persistent workers begins another epoch.
        """

    @abc.abstractmethod
    def _count_batches(self, spec: SpecT) -> int | None:
        """Return how many batches an epoch of a custom sampler or an iterable dataset has, or None if unknown."""

    def _begin_progress(self, spec: SpecT, point: ResumePoint) -> Progress:
        """Return the progress of an epoch that begins now, at a point."""
        start = point.position
        total = self._count_batches(spec)
        return Progress(
            point.epoch,
            point.last_set,
            start=start,
            # A user's length may be an estimate, and less than the number of batches received already.
            num_batches=None if total is None or total <= start else total - start,
            first=point.detail,
            dataset_before=stream_dataset_state(spec),
        )

    def slicing(self, sampler: Any, batch_sampler: Any) -> BatchSlicing | None:
        """Return how batches are sliced from the order of an `OrderSampler`, or None if a sampler is iterated."""
        return None

    def worker_settings(self, spec: SpecT) -> tuple[Any, ...]:
        """Return the settings that end kept workers when they change; none in torch."""
        return ()

    def epoch_settings(self, spec: SpecT) -> tuple[Any, ...] | None:
        """Return the settings that an epoch begun ahead depends on, or None if the next epoch is not begun ahead."""
        return None

    def _is_complete(self, spec: SpecT, position: int) -> bool:
        """Return True if an epoch without a known length is over at a position."""
        return False

    # -- setting and claiming epochs ------------------------------------------------------------------------

    def set_epoch(self, spec: SpecT, epoch: int) -> None:
        """Set the next epoch, also on the samplers.

        Raises:
            ValueError: If it is negative.
        """
        if epoch < 0:
            raise ValueError(f"epoch={epoch} is negative; epochs count from 0")
        for sampler in (spec.sampler, spec.batch_sampler, getattr(spec.batch_sampler, "sampler", None)):
            # Torch's plain samplers have none.
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        self._epoch_of_sampler(spec)
        self._set(epoch)

    def _sync_from_sampler(self, spec: SpecT) -> None:
        """Take over the epoch that was set on the sampler."""
        epoch = self._epoch_of_sampler(spec)
        if epoch is not None:
            self._set(epoch)

    def _epoch_of_sampler(self, spec: SpecT) -> int | None:
        """Return the epoch that was set on the sampler since the last call, or None if none was."""
        sampler: Any = getattr(unwrapped(spec.batch_sampler), "sampler", spec.sampler)
        epoch = getattr(sampler, "epoch", None) if hasattr(sampler, "set_epoch") else None
        # Only an OrderSampler counts the calls. Of torch's DistributedSampler, for example, a change is noticed.
        mark = getattr(sampler, "num_epochs_set", epoch)
        if not isinstance(epoch, int) or mark == self._sampler_mark:
            return None
        self._sampler_mark = mark
        if mark == self._expected_mark:
            self._expected_mark = None
            return None
        return epoch

    def expect_set(self, spec: SpecT, epoch: int) -> None:
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
                # Lightning sets the epoch once more when it resumes in the middle of it.
                return
            # If the state was saved in an epoch that was counted, not set (a short loader next to a long one, which
            # Lightning iterates again), an epoch that is set now is a new one, and begins at its beginning.
            is_other = epoch != point.epoch or (point.last_set is not None and point.position > 0)
            self._point = None if is_other else point._replace(last_set=int(epoch))
        self.next = int(epoch)
        self._last_set = int(epoch)
        self._was_set = True

    def claim(self, spec: SpecT) -> tuple[Progress, ResumePoint | None]:
        """Begin the next epoch: return its progress, and the point at which it is resumed, or None."""
        with self._lock:
            next_point = self._next_point(spec, 0)
            loaded_point = self._point
            if loaded_point is None:
                # Persistent workers continue with their datasets as the epoch before has left them, unless it was
                # broken off.
                keeps_datasets = next_point.epoch == self.next and isinstance(next_point.detail, StreamPosition)
                detail = next_point.detail if keeps_datasets else None
                next_point = ResumePoint(self.next, 0, self._last_set, detail)
            progress = self._begin_progress(spec, next_point)
            is_finished = self._progress is not None and self._progress.reached()[2]
            self._previous = self._progress if is_finished else None
            # A signal handler may save a state in this thread. Python runs it at calls and at jumps back, and these
            # assignments have neither, so the handler sees all of them or none.
            self._progress = progress
            self._point = None
            self._was_set = False
            self.next += 1
            return progress, loaded_point

    def unclaim(self, progress: Progress, point: ResumePoint | None) -> None:
        """Undo `claim` because the epoch could not be started; the next iterator claims it again."""
        with self._lock:
            if self._progress is progress:
                self.next = progress.epoch
                self._progress = None
                self._previous = None
                self._point = point

    @property
    def has_point(self) -> bool:
        """True if a state was loaded and no iterator has begun there yet."""
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

    def state_dict(self, spec: SpecT, num_held: int) -> dict[str, Any]:
        """Return the loader's state, see `lit_loader.DataLoader.state_dict`."""
        if not 0 <= num_held <= MAX_HELD:
            raise ValueError(f"num_held={num_held} must be from 0 to {MAX_HELD}")
        with self._lock:
            point = self._next_point(spec, num_held)
            for progress in (self._progress, self._previous):
                if progress is not None and self._point is None and point.epoch == progress.epoch:
                    return self._save(spec, point, has_begun=True, dataset_before=progress.dataset_before)
            return self._save(spec, point, has_begun=False, dataset_before=stream_dataset_state(spec))

    def load_state_dict(self, spec: SpecT, state: Any, *, strict: bool) -> bool:
        """Resume from a state, see `lit_loader.DataLoader.load_state_dict`; return True if it changed the dataset."""
        point = self._load(spec, state, strict=strict)
        with self._lock:
            # Also forget an earlier state: this one was ignored with a warning that the epoch starts over.
            self._point = None
            if point is None:
                return False
            is_custom = self.slicing(spec.sampler, spec.batch_sampler) is None
            if is_custom and point.last_set is not None:
                # A custom sampler may have epochs of its own, as torch's DistributedSampler has.
                self.set_epoch(spec, point.last_set)
            self._sync_from_sampler(spec)
            self.next = point.epoch
            self._last_set = point.last_set
            self._was_set = False
            self._point = point
            self._progress = None
            self._previous = None
            self._expected_mark = None
        return state["dataset_state"] is not None or spec.is_iterable

    def _next_point(self, spec: SpecT, num_held: int) -> ResumePoint:
        """Return where the next batch is."""
        self._sync_from_sampler(spec)
        progress = self._progress
        if self._point is not None:
            return self._point
        if progress is None or self._was_set:
            return ResumePoint(self.next, 0, self._last_set)
        if num_held > progress.num_received and self._previous is not None:
            num_held -= progress.num_received
            progress = self._previous
        position, detail, complete = progress.reached(num_held=num_held)
        if not complete and not num_held and position:
            complete = self._is_complete(spec, position)
        if complete:
            number = self.next if progress is self._progress else progress.epoch + 1
            return ResumePoint(number, 0, progress.last_set, _detail_of_next_epoch(detail, spec.keeps_workers))
        return ResumePoint(progress.epoch, position, progress.last_set, detail)


def _detail_of_next_epoch(detail: Any, keeps_workers: bool) -> Any:
    """Return the detail needed to begin the epoch after one that ended with this detail, or None."""
    if isinstance(detail, StreamPosition):
        # Workers that are not persistent get new copies of the dataset, and without workers the loader's own is used.
        return detail.next_epoch() if keeps_workers else None
    sampler_state = getattr(detail, "sampler_state", None)
    return None if sampler_state is None else type(detail)(sampler_state=sampler_state)
