"""The backend of worker processes: starts them, sends tasks, reads results, replaces and ends them."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import warnings
import weakref
from collections import deque
from functools import partial
from typing import Any, NamedTuple

from lit_loader.engine.channels import MAX_TASK_BYTES, Frame, TaskQueue, pack_frame, unpack_frame
from lit_loader.engine.fetch import warn_of_dataset
from lit_loader.engine.recovery import HangWatch, HeartbeatTable, Recovery, TaskId
from lit_loader.engine.scheduler import Backend, check_workers
from lit_loader.engine.spec import Kind, Message, Result, Task, WorkerSpec
from lit_loader.engine.stats import Counters
from lit_loader.engine.worker import WorkerEnds, pack_message, pack_task, unpack_message, unpack_times
from lit_loader.engine.worker_errors import WorkerError, not_rebuilt
from lit_loader.engine.worker_process import (
    WorkerProcess,
    await_exit,
    check_descriptors,
    describe_exit,
    end_workers,
    shortages_explained,
    start_worker,
)
from lit_loader.errors import WorkerDiedError
from lit_loader.foundation.interrupts import defer_interrupts
from lit_loader.memory import PageLock, RebuildError, Slots, Ticket, decode, open_slots

_SHARED_POLL_S = 0.02  # interval at which a waiting thread checks whether another one has read its results
_CLOSED_POLL_S = 1.0  # interval at which it checks whether another one has closed the epoch or the workers
_UNWATCHED_POLL_S = 0.1  # interval at which workers are checked where the kernel does not report their end
_EXIT_CODE_S = 1.0  # how long to wait for the exit code of a worker that has ended


class _InFlight(NamedTuple):
    """A task that was sent to the workers and has no result yet.

    Attributes:
        packed: The message, to send it again if the task is lost, or empty if one particular worker has it.
        ticket: Reserves the slot of its batch, or None if the batch comes by pipe.
    """

    packed: bytes
    ticket: Ticket | None


class ProcessBackend(Backend):
    """Worker processes; see `lit_loader.engine.scheduler.Backend`.

    Args:
        spec: The same for all workers.
        context: The multiprocessing context (or module) that creates processes.
        page_lock: Page-locks the slots of batches, or None.
        max_restarts: Maximum number of workers that are replaced in an epoch. Above 0, tasks must have keys.
        hang_timeout_s: How long a worker may take for one sample, or for one batch without a seed, before it is killed
            as hung, or None for no limit.
        counters: The loader's counters, or None for new ones.

    Raises:
        NotImplementedError: If the platform has no pipes that can be polled.
        OSError: If the system lacks descriptors, processes or memory for the workers.
        Exception: An error of pickling the spec, under a start method that pickles it.

    Runs in: the main process. A waiting thread also reads the results of other threads' epochs.
    Owns: the processes, both ends of their pipes, their shared queue, and the slots. They end when the backend is
        closed, when it is collected and when the interpreter exits. When this process is killed, the workers notice it
        and exit.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        context: Any,
        *,
        page_lock: PageLock | None = None,
        max_restarts: int = 0,
        hang_timeout_s: float | None = None,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(spec)
        self._counters = counters or Counters()
        self._workers: list[WorkerProcess] = []
        # Only the message of the error, which would keep its frames alive.
        self._death: str | None = None
        # By epoch: read from the pipes and not delivered yet.
        self._results: dict[int, deque[Result]] = {}
        # Open epochs whose consumer has called `poll`.
        self._polled: set[int] = set()
        self._queue: TaskQueue | None = None
        # The first warning that a worker has sent; empty after it was issued, because one is enough.
        self._notice: str | None = None
        _check_platform(spec.num_workers)
        check_descriptors(spec.num_workers)
        if spec.shared_tasks:
            # macOS defines the constant, but has no such sockets
            with contextlib.suppress(AttributeError, OSError):
                self._queue = TaskQueue()
        self._slots = open_slots(page_lock)
        self._in_flight: dict[TaskId, _InFlight] = {}
        self._recovery = Recovery(max_restarts) if max_restarts else None
        self._hangs = None if hang_timeout_s is None else HangWatch(spec.num_workers, hang_timeout_s)
        heartbeats = None if self._hangs is None else self._hangs.table
        self._close = weakref.finalize(
            self, _end, self._workers, self._queue, self._slots, self._in_flight, heartbeats, self._owner_pid
        )
        memory = None if self._slots is None else self._slots.file
        queue = None if self._queue is None else self._queue.theirs
        # `context` may be the module `multiprocessing`, which has the default start method.
        is_spawned = context.get_start_method() == "spawn"
        ends = partial(WorkerEnds, queue=queue, memory=memory, heartbeats=heartbeats, is_spawned=is_spawned)
        self._start = partial(start_worker, spec, context=context, make_ends=ends)
        try:
            for worker_id in range(spec.num_workers):
                # Ctrl-C would be lost in Python's hooks around a fork, or leave a worker that is in no list.
                with shortages_explained(spec.num_workers), defer_interrupts():
                    self._workers.append(self._start(worker_id))
        except BaseException as error:
            self._close()
            if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
                warnings.warn(
                    "Got pickle error when attempting to start a worker Process. This start method pickles its "
                    "arguments (the default one does since Python 3.14); define the dataset, collate_fn and "
                    'worker_init_fn at the top level of a module, or give multiprocessing_context="fork"',
                    stacklevel=2,
                )
            raise

    @property
    def workers(self) -> list[Any]:
        """The present processes; an empty list after `close`."""
        return [worker.process for worker in list(self._workers)]

    def check_usable(self, *, own_process: bool = False) -> None:
        """Raise if the workers cannot be used: see `Backend.check_usable`."""
        check_workers(self._owner_pid, are_open=own_process or self._death is not None or self._close.alive)
        if self._death is not None and not own_process:
            raise WorkerDiedError(self._death)

    def close(self) -> None:
        """End the workers. Each may finish its present sample within five seconds."""
        if self._owner_pid != os.getpid():
            # In a fork, a thread that exists only in the parent may hold the lock, and would never release it.
            return
        # No other thread may read a pipe meanwhile.
        with self._lock:
            self._close()

    # -- epochs and tasks -----------------------------------------------------------------------------------

    def _begin_epoch(self, epoch: int, *, iterate: bool) -> None:
        self._results[epoch] = deque()
        for worker in self._workers if iterate else ():
            worker.send([pack_message(Message(Kind.ITERATE, epoch))])

    def close_epoch(self, epoch: int) -> None:
        """Let the workers skip the tasks of an epoch, and drop the results that they have sent already."""
        if self._owner_pid != os.getpid():
            # A fork has called the finalizer of an iterator that belongs to the parent.
            return
        self._results.pop(epoch, None)
        self._polled.discard(epoch)
        # Copy the dict in one step, because this takes no lock. After a complete epoch no task is left to skip.
        is_done = self._shared and all(task[0] != epoch for task in list(self._in_flight))
        if self._close.alive and not is_done:
            message = Message(Kind.END_EPOCH, epoch)
            for worker in list(self._workers):
                worker.send_control(message)
                worker.send([pack_message(message)])

    def submit(self, epoch: int, number: int, task: Task, worker: int | None, *, is_measured: bool = False) -> None:
        """Send a task to a worker, or to any idle one, with a slot for its batch.

        Raises:
            Exception: An error of pickling the task.
        """
        with self._lock:
            self.check_usable()
            task_id = (epoch, number)
            contents = pack_task(task)
            # Only now, because the scheduler keeps an error of the line above, and its traceback keeps this frame.
            ticket = None if self._slots is None else self._slots.ticket()
            slot = -1 if ticket is None else ticket.number
            kind = Kind.MEASURED_TASK if is_measured else Kind.TASK
            frame = [pack_message(Message(kind, epoch, number, slot)), *contents]
            packed = pack_frame(frame) if worker is None else b""
            self._in_flight[task_id] = _InFlight(packed, ticket)
            if worker is None:
                self._send_to_any(task_id, packed)
            else:
                self._workers[worker].send(frame)

    def _send_to_any(self, task_id: TaskId, packed: bytes) -> None:
        if self._queue is not None and len(packed) <= MAX_TASK_BYTES:
            self._queue.put(packed)
        else:
            self._workers[task_id[1] % len(self._workers)].send(unpack_frame(packed))

    # -- results --------------------------------------------------------------------------------------------

    def poll(self, epoch: int, timeout_s: float | None, number: int | None = None) -> deque[Result]:
        """Return the finished results of an epoch, or wait for some; ``number`` is ignored.

        Results of other epochs wait for their consumers. With several open epochs it sometimes returns without a
        result, because another thread may have read the one that this thread waits for.

        Raises:
            WorkerDiedError: If a worker ended and is not replaced; the backend is closed then.
            RuntimeError: If the backend was closed, or belongs to another process.
        """
        with self._lock:
            # A closed epoch would never leave the set.
            if epoch not in self._polled and epoch in self._results:
                # Restarts count for one epoch, or for all epochs that are open at the same time. An epoch begins here
                # and not in `open_epoch`, because workers make its first batches while the last epoch is delivered.
                if self._recovery is not None and not self._polled:
                    self._recovery.num_restarts = 0
                self._polled.add(epoch)
            results = self._results.get(epoch, deque())
        try:
            if not results:
                self._wait(timeout_s)
        finally:
            recovery = self._recovery
            # Warn here, at the end of the call: the user may have turned warnings into errors.
            if recovery is not None and recovery.warnings and timeout_s != 0.0:
                recovery.warn()
            if self._notice and timeout_s != 0.0:
                text = self._notice
                self._notice = ""
                warn_of_dataset(text)
        return results

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until a worker has sent something or has ended, and handle that."""
        with self._lock:
            self.check_usable()
            longest_s = _CLOSED_POLL_S if timeout_s is None else min(timeout_s, _CLOSED_POLL_S)
            if self._hangs is not None:
                longest_s = min(longest_s, self._hangs.seconds_left())
            if len(self._results) > 1:
                longest_s = min(longest_s, _SHARED_POLL_S)
            # Remember the present workers by object: while this thread waits without the lock, another one may replace
            # a worker, and the new worker may have the same number and the same descriptors.
            poller = select.poll()
            watched = {}
            unwatched = [worker for worker in self._workers if not worker.watch]
            unsent = [worker for worker in self._workers if worker.control.waiting or worker.tasks.waiting]
            for worker in self._workers:
                poller.register(worker.results.fd, select.POLLIN)
                for fd in worker.watch:
                    poller.register(fd, select.POLLIN)
                    watched[fd] = worker
                for writer in (worker.control, worker.tasks):
                    if writer.waiting:
                        poller.register(writer.fd, select.POLLOUT)
            if self._queue is not None and self._queue.waiting:
                poller.register(self._queue.fd, select.POLLOUT)
        if unwatched:
            longest_s = min(longest_s, _UNWATCHED_POLL_S)
        fds = [fd for fd, _ in poller.poll(longest_s * 1000)]
        ended = [watched[fd] for fd in fds if fd in watched]
        ended += [worker for worker in unwatched if not worker.is_running]
        with self._lock:
            self.check_usable()
            try:
                for worker in unsent:
                    worker.flush()
                if self._queue is not None:
                    self._queue.flush()
                self._serve(fds, ended)
            except WorkerDiedError as error:
                self._death = str(error)
                self.close()
                raise
            except BaseException:
                # After Ctrl-C, for example, the rest of a half-read message cannot be understood.
                self.close()
                raise

    def _serve(self, fds: list[int], ended: list[WorkerProcess]) -> None:
        """Read results, and replace workers that have ended or hang.

        Raises:
            WorkerDiedError: If a worker has ended and is not replaced.
        """
        for number, worker in enumerate(self._workers):
            if worker.results.fd in fds and not self._read(number):
                ended.append(worker)
        if self._hangs is not None:
            self._hangs.look(() if self._recovery is None else self._recovery.unreported)
        for number, worker in enumerate(self._workers):
            if worker in ended:
                self._replace(number)
            elif self._hangs is not None and self._hangs.has_hung(number):
                ending = self._hangs.print_stacks(number, worker.process.pid)
                worker.process.kill()
                self._replace(number, ending)

    def _read(self, number: int) -> bool:
        """Read the results that a worker has sent; return False if its pipe is closed."""
        try:
            while (frame := self._workers[number].results.receive()) is not None:
                self._take(number, unpack_message(frame[0]), frame)
        except EOFError:
            return False
        return True

    def _take(self, worker: int, message: Message, frame: Frame) -> None:
        kind = message.kind
        task_id = (message.epoch, message.number)
        if kind is Kind.NOTICE:
            if self._notice is None:
                self._notice = bytes(frame[1]).decode()
            return
        if kind is Kind.REPORTED:
            if self._recovery is not None:
                self._recovery.report(worker, message.round)
                self._send_lost()
            return
        entry = self._in_flight.pop(task_id, None)
        ticket = None if entry is None else entry.ticket
        # User code in the worker holds a part of the slot: see `SlotKeptError`.
        if ticket is not None and message.slot < 0:
            ticket.retire()
        results = self._results.get(message.epoch)
        if results is not None and kind is not Kind.SKIPPED:
            # The ticket keeps the slot that holds the batch's large tensors.
            payload = (frame[1:], ticket if kind is Kind.RESULT else None)
            results.append(Result(kind, message.number, worker, payload, unpack_times(frame[0])))

    def open(self, result: Result) -> Any:
        """Return the batch in a result, or raise the worker's error.

        Raises:
            UnsendableBatchError: If the batch cannot be unpickled here.
        """
        frame, ticket = result.payload
        read = None if ticket is None or self._slots is None else partial(self._slots.read, ticket)
        try:
            contents = decode(frame, read)
        except RebuildError as failure:
            raise not_rebuilt(result.number, failure) from failure.__cause__
        if result.kind is Kind.ERROR:
            error: WorkerError = contents
            error.reraise(keyed=self._keyed)
        return contents

    # -- workers that end -----------------------------------------------------------------------------------

    def _replace(self, number: int, ending: str | None = None) -> None:
        """Replace a worker that has ended, and find its lost tasks: see NOTE [Lost tasks] in `recovery`.

        Raises:
            WorkerDiedError: If it is not replaced.
            OSError: If no process can be started.
        """
        worker = self._workers[number]
        recovery = self._recovery
        # Read the results that it sent before it ended.
        self._read(number)
        await_exit([worker], _EXIT_CODE_S)
        pid = worker.process.pid
        ending = ending or describe_exit(worker.process.exitcode)
        if self._hangs is not None:
            self._hangs.forget(number)
        if recovery is None or recovery.num_restarts == recovery.max_restarts:
            if recovery is not None:
                ending += f"; this epoch has used up max_worker_restarts={recovery.max_restarts}"
            raise WorkerDiedError(f"DataLoader worker (pid(s) {pid}) exited unexpectedly: {ending}")
        # It has closed its pipe, so its results cannot be read.
        if worker.is_running:
            worker.process.kill()
        end_workers([worker], os.getpid())
        suspects = {task for task, entry in self._in_flight.items() if entry.packed}
        for packed in () if self._queue is None else self._queue.queued():
            message = unpack_message(unpack_frame(packed)[0])
            suspects.discard((message.epoch, message.number))
        with shortages_explained(self.num_workers), defer_interrupts():
            self._workers[number] = self._start(number)
        recovery.note_restart(number, pid, ending)
        self._counters.num_restarts += 1
        survivors = [survivor for survivor in range(self.num_workers) if survivor != number]
        this_round = recovery.begin_round(suspects, survivors=survivors)
        for survivor in survivors:
            self._workers[survivor].send([pack_message(Message(Kind.REPORT, round=this_round))])
        self._send_lost()

    def _send_lost(self) -> None:
        """Send tasks again that were lost with a worker, unless their epoch was closed."""
        assert self._recovery is not None
        for task_id in self._recovery.take_lost(self._in_flight):
            if task_id[0] in self._results:
                # The task keeps its slot: no worker writes to it any more.
                self._send_to_any(task_id, self._in_flight[task_id].packed)
            else:
                del self._in_flight[task_id]


def _check_platform(num_workers: int) -> None:
    # Windows has neither.
    if not (hasattr(os, "readv") and hasattr(select, "poll")):
        raise NotImplementedError(
            f"num_workers={num_workers} processes need pipes that can be polled, which this platform lacks; "
            'use worker_method="thread" or num_workers=0'
        )


def _end(
    workers: list[WorkerProcess],
    queue: TaskQueue | None,
    slots: Slots | None,
    in_flight: dict[TaskId, _InFlight],
    heartbeats: HeartbeatTable | None,
    owner_pid: int,
) -> None:
    try:
        end_workers(workers, owner_pid)
    finally:
        if queue is not None:
            queue.close()
        if heartbeats is not None:
            heartbeats.close()
        if owner_pid == os.getpid():
            in_flight.clear()
            if slots is not None:
                slots.close()
