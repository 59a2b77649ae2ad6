"""Page-locking in a thread of its own: the next batch is page-locked while this one is used.

NOTE [One batch ahead]
    Batches are taken from the engine in the consumer's thread alone, in order. If the engine has the next batch ready,
    it is taken before this one is returned, and the thread copies it to page-locked memory meanwhile. An error that is
    raised ahead is raised again by the call that would have returned its batch. Without workers no batch is ever ready,
    so no thread is started.
"""

from __future__ import annotations

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
    """A batch to page-lock.

    Args:
        batch: The batch, kept until it was copied.
        pin: Returns a batch page-locked.
        in_thread: True if the thread runs this, False if `result` does.
    """

    def __init__(self, batch: Any, pin: MapFn, *, in_thread: bool) -> None:
        self._batch = batch
        self._pin = pin
        self._in_thread = in_thread
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Page-lock the batch; an error is kept for `result`."""
        try:
            self._batch = self._pin(self._batch)
        except BaseException as error:
            if not self._in_thread and not isinstance(error, Exception):
                # Ctrl-C: the next call page-locks the batch.
                raise
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """Return the batch page-locked, or raise the error; after Ctrl-C it may be called again."""
        if not self._in_thread and not self._done.is_set():
            self.run()
        self._done.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # The traceback holds this frame: without this, a reference cycle would keep the batch alive.
                del error
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
            self._ahead.append(PinJob(self._batches.next_batch(), self._pin, in_thread=False))
        first = self._ahead[0]
        if len(self._ahead) == 1 and isinstance(first, PinJob) and self._batches.poll():
            self._look_ahead()
        try:
            if isinstance(first, Exception):
                raise first
            batch = first.result()
        except KeyboardInterrupt:
            # Ctrl-C while waiting: the batch stays, and the next call returns it.
            raise
        except BaseException:
            self._ahead.popleft()
            raise
        finally:
            # The error's traceback holds this frame: without this, a reference cycle would keep the batch alive.
            del first
        # Not before the batch is there, so that Ctrl-C while waiting loses no batch.
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
            job = PinJob(self._batches.next_batch(), self._pin, in_thread=True)
        except Exception as error:
            self._ahead.append(error)
            return
        if self._jobs is None:
            self._jobs = _start_thread()
        self._ahead.append(job)
        self._jobs.put(job)


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
        job.run()
        # Its batch must not live until the next one arrives.
        del job
