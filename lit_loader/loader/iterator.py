"""The iterator that ``iter(loader)`` returns: one epoch, begun at once without a seed, at ``next()`` with one."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, cast

from torch._C._autograd import _profiler_enabled as profiler_enabled
from torch.autograd import profiler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lit_loader.engine import Batches, BatchTimeoutError, Counters, EndOfEpoch, LoaderSpec, TransferFn, WrappedBatches
from lit_loader.foundation.interrupts import interrupt_again
from lit_loader.loader.resume import Progress

T_co = TypeVar("T_co", covariant=True)

StartFn: TypeAlias = Callable[[], tuple[Batches, Progress]]
"""Claims an epoch and starts it; returns its batches and the progress that counts them."""


class IterationHooks:
    """State that a loader shares with its iterators.

    Attributes:
        counters: The loader's counters.
        check_batch: Called with each batch before it is page-locked or moved, or None.
        num_to_hold: Number of batches that the next call of the engine collects; 0 after it has begun.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.check_batch: Callable[[Any], None] | None = None
        self.num_to_hold = 0


class TimedBatches(WrappedBatches):
    """Adds the time that the engine takes to return each batch to ``wait_s``, and has each batch checked.

    NOTE [Held batches]
        After `DataLoader.hold_batches`, one call takes several batches from the engine, and then waits until the
        workers have finished all their tasks. The batches are delivered without asking the engine, so no task is sent
        meanwhile and the workers stay idle. To the rest of the loader they are batches on their way, like those that a
        transfer has taken ahead: they count as received when they are returned.

    Args:
        batches: The engine's batches.
        hooks: The state that the loader shares with its iterators.

    Attributes:
        check_s: Seconds for which batches were checked.
    """

    def __init__(self, batches: Batches, hooks: IterationHooks) -> None:
        super().__init__(batches)
        self._hooks = hooks
        self.check_s = 0.0
        # Batches that were collected, and the error that ended the collection; see NOTE [Held batches].
        self._held: deque[tuple[Any, Exception | None]] = deque()
        # One thread collects at a time. Reentrant, because a signal handler may ask for a batch meanwhile.
        self._collect_lock = threading.RLock()

    def next_batch(self) -> Any:
        """Return the next batch; the engine and the check may raise errors."""
        hooks = self._hooks
        if hooks.num_to_hold:
            self._collect()
        if self._held:
            batch = self._next_held()
        else:
            start = time.perf_counter()
            try:
                batch = self._batches.next_batch()
            except EndOfEpoch:
                # Another thread may be collecting the last batches.
                with self._collect_lock:
                    if not self._held:
                        raise
                batch = self._next_held()
            finally:
                hooks.counters.wait_s += time.perf_counter() - start
        if hooks.check_batch is not None:
            start = time.perf_counter()
            hooks.check_batch(batch)
            self.check_s += time.perf_counter() - start
        return batch

    def _next_held(self) -> Any:
        """Return the first held batch, or raise the error in its place."""
        try:
            batch, error = self._held.popleft()
        except IndexError:
            # Another thread has taken the last one meanwhile.
            return self._batches.next_batch()
        if error is None:
            return batch
        try:
            raise error
        finally:
            # Its traceback holds this frame, a reference cycle.
            del error

    def poll(self) -> bool:
        """Return True if `next_batch` would return or raise at once, or if it is to collect batches."""
        return bool(self._held) or self._hooks.num_to_hold > 0 or self._batches.poll()

    def close(self) -> None:
        """Drop the epoch, and batches that were not delivered."""
        self._held = deque()
        self._batches.close()

    def _collect(self) -> None:
        """Take batches from the engine and wait until the workers are idle: see NOTE [Held batches]."""
        hooks = self._hooks
        counters = hooks.counters
        start = time.perf_counter()
        with self._collect_lock:
            num_batches, hooks.num_to_hold = hooks.num_to_hold, 0
            counters.is_holding = True
            try:
                # Batches of an earlier call that were not delivered yet come first.
                while len(self._held) < num_batches:
                    self._held.append((self._batches.next_batch(), None))
                self._batches.wait_until_idle()
            except Exception as error:
                # Raised in its turn; also the end of the epoch.
                self._held.append((None, error))
            finally:
                counters.is_holding = False
                counters.hold_s += time.perf_counter() - start


class TimedTransfer(WrappedBatches):
    """Adds the time of a transfer to ``transfer_s``, without the engine and without earlier work of the device.

    Args:
        transferred: Batches page-locked, or on a device.
        engine: The batches that the transfer takes.
        counters: The loader's counters.
    """

    def __init__(self, transferred: WrappedBatches, engine: TimedBatches, counters: Counters) -> None:
        super().__init__(transferred)
        self._transferred = transferred
        self._engine = engine
        self._counters = counters

    def next_batch(self) -> Any:
        """Return the next batch, or raise an error of the transfer."""
        before_s = self._other_s()
        start = time.perf_counter()
        try:
            return self._transferred.next_batch()
        finally:
            elapsed_s = time.perf_counter() - start
            self._counters.transfer_s += elapsed_s - (self._other_s() - before_s)

    def _other_s(self) -> float:
        counters = self._counters
        return counters.wait_s + counters.hold_s + self._engine.check_s + self._transferred.device_wait_s


def _close_when_collected(batches: Batches) -> None:
    """Close an epoch in a finalizer."""
    try:
        batches.close()
    except KeyboardInterrupt:
        # Python would print and drop an exception in a finalizer, and with it the user's Ctrl-C. It is not held back
        # until the end (`defer_interrupts`), because it has to end the wait for workers that are in a long sample.
        interrupt_again()


class LoaderIterator(_BaseDataLoaderIter, Generic[T_co], Iterator[T_co]):
    """One epoch of a loader.

    It is a subclass of torch's base class because Lightning, when it is pickled during iteration, leaves out iterators
    of that class and no others.

    Args:
        start: Starts the epoch; called by `begin`, or by the first ``next()``.
        spec: The loader's settings.
        transfer: Page-locks batches or moves them to a device, or None to return them unchanged.
        reported_length: The length that an iterable dataset gave, or None if it was not asked.
        hooks: The state that the loader shares with its iterators.

    Attributes:
        ends_without_batches: True if an epoch that is resumed after its last batch ends without a batch, as under
            Lightning, which asks for the end of an epoch itself. If False, the next epoch begins.

    Runs in: the process that created it; several threads may take batches from it, each batch goes to one of them.
    Owns: its epoch, which is closed when the iterator is exhausted, closed or collected.
    """

    def __init__(
        self,
        start: StartFn,
        spec: LoaderSpec,
        transfer: TransferFn | None,
        reported_length: int | None,
        hooks: IterationHooks,
    ) -> None:
        # Torch's constructor is not called, because it starts torch's engine.
        self._transfer = transfer
        self._count_batches = spec.count_batches
        self._has_workers = spec.num_workers > 0
        self._dataset = spec.fetch.dataset
        self._hooks = hooks
        self._shown_workers: list[Any] = []
        self._batches: Batches | None = None
        self._progress: Progress | None = None
        self._closer: weakref.finalize[..., Any] | None = None
        # Only one thread begins the epoch. Reentrant, because a signal handler may ask for a batch meanwhile.
        self._begin_lock = threading.RLock()
        self.restart(start, reported_length)

    def restart(self, start: StartFn, reported_length: int | None) -> None:
        """Drop the rest of the epoch and deliver another one, as torch's iterator over persistent workers does."""
        self.close()
        self._ended = False
        self.ends_without_batches = False
        self._start: StartFn | None = start
        self._reported_length = reported_length

    def begin(self) -> Batches:
        """Start the epoch and return its batches."""
        assert self._start is not None
        begin_s = time.perf_counter()
        batches, progress = self._start()
        # Starting workers may take seconds.
        self._hooks.counters.wait_s += time.perf_counter() - begin_s
        self._progress = progress
        self._shown_workers = batches.workers
        if progress.start == 0:
            # It refers to the loader, which may refer to this iterator: a reference cycle.
            self._start = None
        timed_batches = TimedBatches(batches, self._hooks)
        self._batches = timed_batches
        if self._transfer is not None:
            self._batches = TimedTransfer(self._transfer(timed_batches), timed_batches, self._hooks.counters)
        self._closer = weakref.finalize(self, _close_when_collected, self._batches)
        # At exit the backend ends its workers.
        self._closer.atexit = False
        return self._batches

    def close(self) -> None:
        """Drop the rest of the epoch: ``next()`` raises StopIteration from now on."""
        self._ended = True
        self._start = None
        self._drop_batches()

    def _drop_batches(self) -> None:
        # Taken out before they are closed, because another thread or a signal handler may also close the iterator.
        batches, self._batches = self._batches, None
        closer, self._closer = self._closer, None
        if batches is not None and closer is not None and closer.detach() is not None:
            batches.close()

    @property
    def num_received(self) -> int:
        """Number of batches that the iterator returned, including those that raised before one of them."""
        return 0 if self._progress is None else self._progress.num_received

    @property
    def stopped(self) -> bool:
        """True if the last ``next()`` raised StopIteration or the error of a batch."""
        return self._ended or (self._progress is not None and self._progress.num_failed > 0)

    @property
    def _workers(self) -> list[Any]:
        """The workers, as in torch's iterator: processes (with pid, is_alive, join and exitcode), or threads.

        Without workers the attribute does not exist, as in torch. Before an epoch begins the list is empty; after its
        end it holds the workers of that epoch.
        """
        if not self._has_workers:
            raise AttributeError(f"{type(self).__name__} has no _workers with num_workers=0")
        if self._batches is not None:
            self._shown_workers = self._batches.workers or self._shown_workers
        return self._shown_workers

    def __iter__(self) -> LoaderIterator[T_co]:
        return self

    def __len__(self) -> int:
        return self._count_batches()

    def __next__(self) -> T_co:
        if not (profiler_enabled() or profiler._is_profiler_enabled):
            # record_function takes as long as a small batch, also when nothing is recorded.
            return self._next()
        # The names are torch's, so that traces of both can be compared.
        kind = "MultiProcessing" if self._has_workers else "SingleProcess"
        with profiler.record_function(f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"):
            return self._next()

    def _next(self) -> T_co:
        if self._ended:
            raise StopIteration
        batches = self._batches
        if batches is None:
            with self._begin_lock:
                # Another thread may have begun it meanwhile.
                batches = self._batches
                if self._ended:
                    raise StopIteration
                if batches is None:
                    batches = self.begin()
        progress = self._progress
        assert progress is not None
        try:
            batch = batches.next_batch()
        except EndOfEpoch:
            progress.ended = True
            # A state saved at the end of an epoch without a length: only now is it known that no batch is left.
            is_empty = progress.start > 0 and not (progress.num_returned or progress.num_failed)
            if is_empty and not self.ends_without_batches:
                with self._begin_lock:
                    # Another thread may already have begun the next epoch, which must stay.
                    if self._batches is batches:
                        self._drop_batches()
                return self._next()
            self.close()
            raise StopIteration from None
        except BatchTimeoutError as error:
            # Not counted as failed, because the same batch may still come. Raised as a plain RuntimeError, as in torch:
            # to a loader whose dataset uses this loader, it must be an error of a sample like any other.
            raise RuntimeError(str(error)) from None
        except Exception:
            progress.num_failed += 1
            raise
        progress.received()
        self._hooks.counters.num_batches += 1
        # Once more for each further sample, as in torch.
        if self._reported_length is not None and progress.num_returned > self._reported_length:
            self._warn_of_length(progress.num_returned)
        return cast("T_co", batch)

    def _warn_of_length(self, num_returned: int) -> None:
        """Warn as torch does that a dataset has more items than it reported."""
        text = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._reported_length}(when accessing "
            f"len(dataloader)), but {num_returned} samples have been fetched. "
        )
        if self._has_workers:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(text, stacklevel=4)

    def __getstate__(self) -> Any:
        # NotImplementedError as in torch: workers and the position in an epoch belong to their process
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled; pickle the loader instead")
