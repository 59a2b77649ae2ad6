"""The iterator that ``iter(loader)`` returns: one epoch, begun at once without a seed, at ``next()`` with one."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from torch._C._autograd import _profiler_enabled as profiler_enabled
from torch.autograd import profiler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lit_loader.engine import Batches, BatchTimeoutError, EndOfEpoch, TransferFn
from lit_loader.resume import Progress
from lit_loader.shared_memory import interrupt_again

T_co = TypeVar("T_co", covariant=True)

StartFn: TypeAlias = Callable[[], tuple[Batches, Progress]]
"""Claims an epoch and starts it; returns its batches and the progress that counts them."""


class ReportedLength(NamedTuple):
    """The length that an iterable dataset reported when ``len(loader)`` was called."""

    length: int
    dataset: str
    in_workers: bool

    def warn_past(self, delivered: int) -> None:
        """Warn as torch does if more items were delivered than that."""
        if delivered <= self.length:
            return
        text = (
            f"Length of IterableDataset {self.dataset} was reported to be {self.length}(when accessing "
            f"len(dataloader)), but {delivered} samples have been fetched. "
        )
        if self.in_workers:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(text, stacklevel=4)


def _close_when_collected(batches: Batches) -> None:
    """Close an epoch in a finalizer."""
    try:
        batches.close()
    except KeyboardInterrupt:  # Python prints and drops an exception in a finalizer
        interrupt_again()


class LoaderIterator(_BaseDataLoaderIter, Generic[T_co], Iterator[T_co]):
    """One epoch of a loader.

    It is a subclass of torch's base class because Lightning, when it is pickled during iteration, leaves out iterators
    of that class and no others.

    Args:
        start: Starts the epoch; called now, or at the first ``next()`` if ``lazy``, so that ``iter()`` alone has no
            effect.
        transfer: Page-locks batches or moves them to a device, or None if they are returned as they were made.
        num_batches: Returns the number of batches, for ``len()``.
        has_workers: Whether the loader has workers.
        label: Name of the step in torch's profiler.
        reported: The length that an iterable dataset gave, or None if it was not asked.

    Runs in: the process and thread that created it.
    Owns: its epoch, which is closed when the iterator is exhausted, closed or collected.
    """

    def __init__(
        self,
        start: StartFn,
        *,
        lazy: bool,
        transfer: TransferFn | None,
        num_batches: Callable[[], int],
        has_workers: bool,
        label: str,
        reported: ReportedLength | None,
    ) -> None:
        # torch's constructor is not called, because it starts torch's engine
        self._transfer, self._num_batches, self._label = transfer, num_batches, label
        self._has_workers = has_workers
        self._shown_workers: list[Any] = []
        self._made: Batches | None = None  # the epoch's batches as they are made
        self._batches: Batches | None = None  # and as they are delivered
        self._closer: weakref.finalize[..., Any] | None = None
        self.restart(start, lazy=lazy, reported=reported)

    def restart(self, start: StartFn, *, lazy: bool, reported: ReportedLength | None) -> None:
        """Begin another epoch and drop the rest of this one, as torch's iterator over persistent workers does."""
        self.close()
        self._ended = False
        self._start: StartFn | None = start
        self._reported = reported
        if not lazy:
            self._begin()

    def _begin(self) -> Batches:
        assert self._start is not None
        self._made, self._progress = self._start()
        self._shown_workers = self._made.workers
        if not self._progress.resumed:
            self._start = None  # it refers to the loader, which may refer to this iterator: a reference cycle
        self._batches = self._made if self._transfer is None else self._transfer(self._made)
        self._closer = weakref.finalize(self, _close_when_collected, self._batches)
        self._closer.atexit = False  # at exit the backend ends its workers by itself
        return self._batches

    def close(self) -> None:
        """Drop the rest of the epoch: ``next()`` raises StopIteration from now on."""
        self._ended, self._start = True, None
        self._drop_batches()

    def _drop_batches(self) -> None:
        batches, self._batches, self._made = self._batches, None, None
        closer, self._closer = self._closer, None
        if batches is not None and closer is not None and closer.detach() is not None:
            batches.close()

    @property
    def _workers(self) -> list[Any]:
        """The workers, as torch's iterator has them: processes (with pid, is_alive, join and exitcode), or threads.

        Without workers the attribute does not exist, as in torch. Before an epoch begins the list is empty; after its
        end it holds the workers that the epoch had.
        """
        if not self._has_workers:
            raise AttributeError(f"{type(self).__name__} has no _workers with num_workers=0")
        if self._made is not None:
            self._shown_workers = self._made.workers or self._shown_workers
        return self._shown_workers

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __len__(self) -> int:
        return self._num_batches()

    def __next__(self) -> T_co:
        if not (profiler_enabled() or profiler._is_profiler_enabled):
            # record_function takes as long as a small batch, also when nothing is recorded
            return self._next()
        with profiler.record_function(self._label):
            return self._next()

    def _next(self) -> T_co:
        if self._ended:
            raise StopIteration
        batches = self._batches if self._batches is not None else self._begin()
        progress = self._progress
        try:
            batch = batches.next_batch()
        except EndOfEpoch:
            progress.ended()
            # The state was saved at the end of its epoch, so the next epoch begins.
            if progress.resumed and progress.is_untouched:
                self._drop_batches()
                return self._next()
            self.close()
            raise StopIteration from None
        except BatchTimeoutError as error:
            # Not counted as failed, because the same batch may still come. Raised as a plain RuntimeError, as in torch:
            # to a loader whose dataset uses this loader, it must be an error of a sample like any other.
            raise RuntimeError(str(error)) from None
        except Exception:
            progress.failed()
            raise
        progress.received()
        if self._reported is not None:
            self._reported.warn_past(progress.num_returned)
        return cast("T_co", batch)

    def __getstate__(self) -> Any:
        # NotImplementedError as in torch: workers and the position in an epoch belong to their process
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader instead")
