"""Page-locking in a thread of its own: the next batch is page-locked while this one is used.

NOTE [One batch ahead]
    Batches are taken from the engine in the consumer's thread alone, in order. If the engine has the next batch ready,
    it is taken before this one is returned, and the thread copies it to page-locked memory meanwhile. An error that the
    engine raises ahead is raised again by the call that would have returned its batch. Without workers no batch is ever
    ready, so no thread is started.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch

from lit_loader.engine import Batches, WrappedBatches
from lit_loader.loader.device.nested import MapFn

__all__ = ["PinnedBatches"]


class PinJob:
    """A batch to page-lock: by the thread, or by the consumer if the thread has not begun when the batch is needed.

    So a job that never reached the thread, because Ctrl-C arrived before it was put into the queue, is not lost.

    Args:
        batch: The batch, kept until it was copied.
        pin: Returns a batch page-locked.
    """

    def __init__(self, batch: Any, pin: MapFn) -> None:
        self._batch = batch
        self._pin = pin
        self._is_pinned = False
        # Held while one of the two threads page-locks the batch; the other one waits. Reentrant: a signal handler
        # may ask for a batch meanwhile.
        self._lock = threading.RLock()

    def result(self) -> Any:
        """Return the batch page-locked; after an error or Ctrl-C it may be called again."""
        with self._lock:
            if not self._is_pinned:
                self._batch = self._pin(self._batch)
                self._is_pinned = True
            return self._batch


JobQueue: TypeAlias = "SimpleQueue[PinJob | None]"  # None ends the thread


class PinnedBatches(WrappedBatches):
    """Page-locks batches; see NOTE [One batch ahead].

    Args:
        batches: The engine's batches.
        pin: Returns a batch page-locked.

    Runs in: the consumer's process and thread; `pin` also in the thread.
    Owns: the thread, until `close`; a batch that was taken and not returned.
    """

    def __init__(self, batches: Batches, pin: MapFn) -> None:
        super().__init__(batches)
        self._pin = pin
        self._ahead: deque[PinJob | Exception] = deque()  # not returned yet
        self._jobs: JobQueue | None = None
        self._pid = os.getpid()

    def next_batch(self) -> Any:
        """Return the next batch; errors of the engine and of `pin` are raised in their order."""
        if os.getpid() != self._pid:
            # A fork has no thread. The engine decides whether it may be used there.
            return self._pin(self._batches.next_batch())
        if not self._ahead:
            self._ahead.append(PinJob(self._batches.next_batch(), self._pin))
        first = self._ahead[0]
        if len(self._ahead) == 1 and isinstance(first, PinJob) and self._batches.poll():
            self._look_ahead()
        try:
            if isinstance(first, Exception):
                raise first
            batch = first.result()
        except Exception:
            self._ahead.popleft()
            raise
        finally:
            # The error's traceback holds this frame: without this, a reference cycle would keep the batch alive.
            del first
        # Not before the batch is there: Ctrl-C while waiting leaves it for the next call.
        self._ahead.popleft()
        return batch

    def close(self) -> None:
        """End the thread, without waiting for it, and close the engine's batches.

        A finalizer may call this at any time, so it takes no lock.
        """
        jobs, self._jobs = self._jobs, None
        self._ahead = deque()
        if jobs is not None and os.getpid() == self._pid:
            jobs.put(None)
        self._batches.close()

    def _look_ahead(self) -> None:
        try:
            job = PinJob(self._batches.next_batch(), self._pin)
        except Exception as error:
            self._ahead.append(error)
            return
        # First to the batches that are returned, because Ctrl-C may arrive between these calls.
        self._ahead.append(job)
        jobs = self._jobs
        if jobs is None:
            jobs = self._jobs = _start_thread()
        # If the thread is behind, the consumer page-locks this batch, so that the queue keeps no batches that were
        # returned already.
        if jobs.empty():
            jobs.put(job)


def _start_thread() -> JobQueue:
    """Start a thread and return the queue of its jobs; it holds nothing else, so that batches can be collected."""
    jobs: JobQueue = SimpleQueue()
    device_index = torch.accelerator.current_device_index()
    # A daemon, as torch's: a page-lock that hangs does not keep the interpreter from exiting.
    thread = threading.Thread(target=_run_jobs, args=(jobs, device_index), name="lit_loader-pin", daemon=True)
    thread.start()
    return jobs


def _run_jobs(jobs: JobQueue, device_index: int) -> None:
    # For this thread alone: the copy must not take cores from the training step.
    torch.set_num_threads(1)
    # Otherwise CUDA would create a context on device 0.
    torch.accelerator.set_device_index(device_index)
    while (job := jobs.get()) is not None:
        # The consumer tries again after an error, which it then raises.
        with contextlib.suppress(BaseException):
            job.result()
        # Its batch must not live until the next one arrives.
        del job
