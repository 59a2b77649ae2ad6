"""The iterator that ``iter(loader)`` gives: one pass, started when the regime says so."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from torch._C._autograd import _profiler_enabled as profiler_enabled
from torch.autograd import profiler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lit_loader.engine import BatchTimeoutError, EndOfPass
from lit_loader.engine.bad_samples import Run as EngineRun
from lit_loader.resume import Progress
from lit_loader.transport import interrupt_again

__all__ = ["EngineRun", "LengthClaim", "LoaderIterator", "Run"]

T_co = TypeVar("T_co", covariant=True)


class Run(Protocol):
    """A pass, as it is delivered."""

    def next_batch(self) -> Any:
        """Return the next batch or raise EndOfPass."""

    def poll(self) -> bool:
        """Whether `next_batch` would return or raise at once."""

    def close(self) -> None:
        """Drop the pass and what serves it alone."""


class LengthClaim(NamedTuple):
    """The length that an iterable dataset told when it was asked."""

    told: int
    dataset: str
    in_workers: bool

    def warn_past(self, delivered: int) -> None:
        """Warn, in torch's words, if more items came than were told."""
        if delivered <= self.told:
            return
        text = (
            f"Length of IterableDataset {self.dataset} was reported to be {self.told}(when accessing "
            f"len(dataloader)), but {delivered} samples have been fetched. "
        )
        if self.in_workers:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(text, stacklevel=4)


def _close_when_collected(run: Run) -> None:
    """Close a pass in a finalizer."""
    try:
        run.close()
    except KeyboardInterrupt:
        interrupt_again()


class LoaderIterator(_BaseDataLoaderIter, Generic[T_co], Iterator[T_co]):
    """One pass over a loader.

    An instance of torch's base class, since Lightning drops those, and no others, when it is pickled in iteration.

    Args:
        start: Starts the pass, and says where its progress is counted; called now, or at the first ``next()`` if
            ``lazy``. A lazy iterator claims its epoch then, so that ``iter()`` alone changes nothing.
        deliver: Makes of a pass one whose batches are page-locked or on a device; None: they are returned as they
            come.
        num_batches: Gives the number of batches, for ``len()``.
        has_workers: Whether the loader has workers.
        label: Name of the step in torch's profiler.
        claim: The length that an iterable dataset told; None: it was not asked.

    Runs in: the process and thread that made it.
    Owns: its pass, which is closed when the iterator is exhausted, closed or collected.
    """

    def __init__(
        self,
        start: Callable[[], tuple[EngineRun, Progress]],
        *,
        lazy: bool,
        deliver: Callable[[Run], Run] | None,
        num_batches: Callable[[], int],
        has_workers: bool,
        label: str,
        claim: LengthClaim | None,
    ) -> None:
        # not torch's own constructor, which starts its own engine
        self._deliver, self._num_batches, self._label = deliver, num_batches, label
        self._has_workers = has_workers
        self._source: EngineRun | None = None  # the pass as the engine gives it
        self._shown_workers: list[Any] = []
        self._run: Run | None = None
        self._closer: weakref.finalize[..., Any] | None = None
        self.restart(start, lazy=lazy, claim=claim)

    def restart(
        self, start: Callable[[], tuple[EngineRun, Progress]], *, lazy: bool, claim: LengthClaim | None
    ) -> None:
        """Begin another pass, dropping what is left of this one (torch's persistent workers do so)."""
        self.close()
        self._ended = False
        self._start: Callable[[], tuple[EngineRun, Progress]] | None = start
        self._claim = claim
        if not lazy:
            self._begin()

    def _begin(self) -> Run:
        assert self._start is not None
        self._source, self._progress = self._start()
        self._shown_workers = self._source.workers
        run: Run = self._source
        if not self._progress.resumed:
            self._start = None  # it refers to the loader, which may refer to this iterator
        if self._deliver is not None:
            run = self._deliver(run)
        self._run = run
        self._closer = weakref.finalize(self, _close_when_collected, run)
        self._closer.atexit = False  # the workers' pool ends itself at exit
        return run

    def close(self) -> None:
        """Drop the pass; ``next()`` then raises StopIteration."""
        self._ended, self._start = True, None
        self._drop_run()

    def _drop_run(self) -> None:
        run, self._run, self._source = self._run, None, None
        closer, self._closer = self._closer, None
        if run is not None and closer is not None and closer.detach() is not None:
            run.close()

    @property
    def _workers(self) -> list[Any]:
        """The workers as torch's iterator shows them: processes, with pid, is_alive, join and exitcode, or threads.

        There is no such attribute without workers, as in torch. Before a pass begins there are none; after its end they
        are those that it began with.
        """
        if not self._has_workers:
            raise AttributeError(f"{type(self).__name__} has no _workers with num_workers=0")
        if self._source is not None:
            self._shown_workers = self._source.workers or self._shown_workers
        return self._shown_workers

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __len__(self) -> int:
        return self._num_batches()

    def __next__(self) -> T_co:
        if not (profiler_enabled() or profiler._is_profiler_enabled):
            return self._next()  # to name a step that nobody records takes as long as to make a small batch
        with profiler.record_function(self._label):
            return self._next()

    def _next(self) -> T_co:
        if self._ended:
            raise StopIteration
        run = self._run if self._run is not None else self._begin()
        progress = self._progress
        try:
            batch = run.next_batch()
        except EndOfPass:
            progress.ended()
            if progress.resumed and progress.untouched:  # the state was saved at the end of an epoch
                self._drop_run()
                return self._next()
            self.close()
            raise StopIteration from None
        except BatchTimeoutError as error:
            # Not counted as failed: the same batch may still come. Raised as torch's type, so that the timeout of a
            # loader inside of a dataset is to the loader around it an error of a sample like any other.
            raise RuntimeError(str(error)) from None
        except Exception:
            progress.failed()
            raise
        progress.received()
        if self._claim is not None:
            self._claim.warn_past(progress.num_returned)
        return cast("T_co", batch)

    def __getstate__(self) -> Any:
        # torch's own type of error: workers and a place in an epoch stay with their process
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader instead")
