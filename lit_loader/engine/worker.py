"""A worker: receives tasks, makes batches and sends results; one loop for worker threads and worker processes.

NOTE [Three threads of a worker process]
    main     Receives tasks, fetches and collates. Only user code blocks it for long.
    control  Reads a pipe of its own, to receive STOP and END_EPOCH in the middle of a sample. It also watches the main
             process and exits (os._exit) as soon as that has ended, even in user code. It cannot do so while a sample
             holds the interpreter lock, or while this process is stopped; then the kernel kills a worker that the main
             thread started (`_die_with_main_process`).
    sender   Writes the bytes that the pipe of results did not accept at once, so that the main thread makes the next
             batch before the consumer has read the last one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import threading
from collections import defaultdict
from contextlib import AbstractContextManager
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from lit_loader.engine.channels import Frame, FrameReader, FrameWriter, take, unpack_frame
from lit_loader.engine.fetch import Fetcher, IterableFetcher, make_fetcher
from lit_loader.engine.parts import SeedFn
from lit_loader.engine.recovery import HeartbeatTable
from lit_loader.engine.spec import BatchKey, Kind, Message, Task, WorkerSpec
from lit_loader.engine.worker_errors import WorkerError, not_sent
from lit_loader.foundation.stage_times import STAGES, StageClock, WorkTimes
from lit_loader.memory import Buffer, MemoryFile, SlotKeptError, SlotWriter, batch_memory, decode, encode
from lit_loader.mixing import Partner
from lit_loader.seeding import EpochKeys, RngPurpose, seed_process, seed_worker

_MESSAGE = struct.Struct("<BQQiI")
_TIMES = struct.Struct(f"<QQddQQ{len(STAGES) + 1}d")
NO_THREADS_EXIT_CODE = 111  # of a worker process that cannot start its threads
_ORPHAN_EXIT_CODE = 1
_ORPHAN_POLL_MS = 500  # interval at which a worker looks for its main process on a kernel without pidfds
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_M_TRIM_THRESHOLD = -1  # of mallopt(3)
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 << 20  # the largest value that glibc accepts
_TRIM_BYTES = (1 << 31) - 1
# A user's own settings of glibc's allocator.
_GLIBC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


# -- the loop ----------------------------------------------------------------------------------------------


class WorkerLink(Protocol):
    """A worker's connection to its backend, and the context in which it runs user code.

    Attributes:
        where: The place for error messages, such as "in DataLoader worker process 1".
        caught: Exceptions of user code that go to the consumer; others end the worker.
        seed: Seeds the generators.
    """

    where: str
    caught: type[BaseException]
    seed: SeedFn

    def receive(self) -> tuple[Message, Any] | None:
        """Wait for the next message and return it with its contents, or None when the worker must stop."""

    def has_ended(self, epoch: int) -> bool:
        """Return True if the consumer has dropped an epoch."""

    def user_code(self) -> AbstractContextManager[Any]:
        """Return the context for calls of user code outside of tasks."""

    def ready(self) -> None:
        """Note that ``worker_init_fn`` is done."""

    def make(self, fetcher: Fetcher, message: Message, contents: Any, clock: StageClock | None) -> Any:
        """Return the batch of a task, in a form for `send`; a measured task has a clock."""

    def send(self, kind: Kind, message: Message, contents: Any = None, times: WorkTimes | None = None) -> None:
        """Answer a message; the answer to a measured task has the times of the worker."""

    def warn(self, text: str) -> None:
        """Warn of a dataset that draws from a generator of its own."""


class Worker:
    """The loop of a worker process or thread.

    Args:
        spec: The same for all workers.
        worker_id: Number of this worker.
        link: Its connection.

    Runs in: a worker thread, or the main thread of a worker process.
    """

    def __init__(self, spec: WorkerSpec, worker_id: int, link: WorkerLink) -> None:
        self._spec = spec
        self._id = worker_id
        self._link = link
        new_fetcher = partial(make_fetcher, spec.fetch, worker_id, seed=link.seed, warn=link.warn)
        self._map_fetcher = None if isinstance(spec.fetch.dataset, IterableDataset) else new_fetcher()
        # Epochs of an iterable dataset: a fetcher, or the error of ``iter(dataset)``, or None after the stream's end.
        self._streams: dict[int, Any] = defaultdict(new_fetcher)
        self._init_error: WorkerError | None = None
        # From the first measured task on: see `Counters.is_measuring`.
        self._clock: StageClock | None = None
        self._clock_context = contextlib.ExitStack()

    def run(self) -> None:
        """Handle messages until the worker must stop."""
        link = self._link
        init_fn = self._spec.worker_init_fn
        if init_fn is not None:
            try:
                with link.user_code():
                    init_fn(self._id)
            except link.caught as error:
                self._init_error = WorkerError.of(error, link.where)
        link.ready()
        with self._clock_context:
            self._serve()

    def _serve(self) -> None:
        link = self._link
        while (received := link.receive()) is not None:
            message, contents = received
            if message.kind is Kind.TASK:
                self._do_task(message, contents, None)
            elif message.kind is Kind.MEASURED_TASK:
                self._do_measured_task(message, contents)
            elif message.kind is Kind.ITERATE:
                self._iterate(message.epoch)
            elif message.kind is Kind.END_EPOCH:
                self._streams.pop(message.epoch, None)
            elif message.kind is Kind.REPORT:
                # The answer says that the results of all tasks received before were sent.
                link.send(Kind.REPORTED, message)
            # Do not keep them alive while this waits for the next message.
            del received, contents

    def _do_measured_task(self, message: Message, contents: Any) -> None:
        clock = self._clock
        if clock is None:
            clock = self._clock_context.enter_context(StageClock())
            self._clock = clock
        clock.start_task()
        self._do_task(message, contents, clock)
        clock.rest()

    def _do_task(self, message: Message, contents: Any, clock: StageClock | None) -> None:
        link = self._link
        epoch = message.epoch
        fetcher = None
        if not link.has_ended(epoch):
            fetcher = self._init_error or self._map_fetcher or self._streams[epoch]
        if fetcher is None:
            # The epoch has ended, or this worker's stream of it. The main process still expects an answer.
            link.send(Kind.SKIPPED, message)
            return
        if isinstance(fetcher, WorkerError):
            link.send(Kind.ERROR, message, fetcher)
            return
        kind = Kind.RESULT
        answer: Any = None
        try:
            answer = link.make(fetcher, message, contents, clock)
        except link.caught as error:
            if isinstance(error, StopIteration) and isinstance(fetcher, IterableFetcher):
                kind = Kind.STREAM_ENDED
                answer = fetcher.end()
                self._streams[epoch] = None
            else:
                kind = Kind.ERROR
                answer = WorkerError.of(error, link.where)
        # The time of sending counts with the next answer.
        link.send(kind, message, answer, None if clock is None else clock.take())

    def _iterate(self, epoch: int) -> None:
        """Call ``iter(dataset)`` now and not at the epoch's first task."""
        if self._init_error is not None:
            return
        try:
            with self._link.user_code():
                self._streams[epoch].start(None)
        except self._link.caught as error:
            self._streams[epoch] = WorkerError.of(error, self._link.where)


# -- messages as frames ------------------------------------------------------------------------------------


def pack_message(message: Message) -> bytes:
    """Return a message as bytes: the first buffer of its frame, before its contents."""
    return _MESSAGE.pack(*message)


def unpack_message(buffer: Buffer) -> Message:
    """Return the message in a buffer of `pack_message`."""
    kind, *fields = _MESSAGE.unpack_from(buffer)
    return Message(Kind(kind), *fields)


def pack_times(times: WorkTimes) -> bytes:
    """Return times as bytes, which follow the message in the first buffer of an answer."""
    return _TIMES.pack(*times)


def unpack_times(buffer: Buffer) -> WorkTimes | None:
    """Return the times in the first buffer of an answer, or None if it has none."""
    if len(buffer) == _MESSAGE.size:
        return None
    return WorkTimes(*_TIMES.unpack_from(buffer, _MESSAGE.size))


def pack_task(task: Task) -> list[Buffer]:
    """Return the contents of a task's message.

    Raises:
        Exception: An error of pickling the index.
    """
    # Plain tuples, because a pickle of named tuples takes two to four times as long.
    key = None if task.key is None else tuple(task.key)
    partners = None
    if task.partners is not None:
        partners = [[tuple(partner) for partner in sample_partners] for sample_partners in task.partners]
    return encode((task.index, key, *task[2:-1], partners))


def unpack_task(frame: Frame) -> Task:
    """Return the task in a frame with contents of `pack_task`."""
    index, key, number, spares, places, partners = decode(frame[1:])
    if partners is not None:
        partners = [list(starmap(Partner, sample_partners)) for sample_partners in partners]
    return Task(index, None if key is None else BatchKey(*key), number, spares, places, partners)


# -- a worker process --------------------------------------------------------------------------------------


class WorkerEnds(NamedTuple):
    """A worker process's ends of its connections. They can be pickled only while a process is started.

    Attributes:
        control: Pipe on which the main process sends STOP and END_EPOCH.
        tasks: Pipe on which it sends messages for this worker alone.
        results: Pipe on which this worker sends results.
        queue: Socket from which any idle worker takes tasks, or None.
        memory: The slots of batches, or None if batches are sent by pipe.
        heartbeats: Records when each worker began a sample; None without a hang timeout.
        is_spawned: True if the process began with an interpreter of its own, and was not forked.
    """

    control: Any
    tasks: Any
    results: Any
    queue: socket.socket | None
    memory: MemoryFile | None
    heartbeats: HeartbeatTable | None
    is_spawned: bool = False


def worker_main(spec: WorkerSpec, worker_id: int, main_pid: int, from_main_thread: bool, ends: WorkerEnds) -> None:
    """Run a worker process until it must stop or its main process has ended.

    Args:
        spec: The same for all workers.
        worker_id: Number of this worker.
        main_pid: The main process.
        from_main_thread: True if the main thread of that process started this one.
        ends: This process's ends of its connections.

    Runs in: a worker process, as its target.
    """
    if from_main_thread:
        _die_with_main_process(main_pid)
    # A fork inherits the signal handlers of the main process (Lightning's, for example), which are wrong here. After
    # Ctrl-C in a terminal the main process stops the workers; a SIGTERM ends this process.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if ends.heartbeats is not None:
        ends.heartbeats.write_stacks_on_request()
        ends.heartbeats.begin(worker_id)
    torch.set_num_threads(1)
    torch.set_default_dtype(spec.default_dtype)
    _keep_freed_memory()
    # A fork shares the memory of the main process until one of them writes to it, and garbage collection writes to
    # every object that it visits. This excludes the present objects from collection.
    gc.freeze()
    try:
        link = ProcessLink(spec, worker_id, main_pid, ends)
    except RuntimeError as error:
        if not is_thread_shortage(error):
            raise
        # The main process explains the exit code.
        raise SystemExit(NO_THREADS_EXIT_CODE) from None
    seed = seed_worker(spec.base_seed, worker_id)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=worker_id, num_workers=spec.num_workers, seed=seed, dataset=spec.fetch.dataset
    )
    try:
        Worker(spec, worker_id, link).run()
    finally:
        # A spawned process frees its modules as it ends. In a fork a collection would visit all inherited objects, and
        # could finalize objects of the main process, such as CUDA's.
        if ends.is_spawned:
            gc.unfreeze()


def _die_with_main_process(main_pid: int) -> None:
    """Let the kernel kill this process when the thread that started it ends, which must be the main thread (Linux).

    Not for workers of a fork server: they would end with the server, which the program may outlive.
    """
    # Not every C library has it.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or os.getppid() != main_pid:
        return
    prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    # If it ended before the call, the call has no effect.
    if os.getppid() != main_pid:
        os._exit(_ORPHAN_EXIT_CODE)


def is_thread_shortage(error: RuntimeError) -> bool:
    """Return True if the system has refused to start a thread, for which CPython has no error class of its own."""
    return "start new thread" in str(error)


def _keep_freed_memory() -> None:
    """Let this process keep freed memory, so that its memory stays at its peak.

    glibc maps a large block anew each time, and returns the end of the heap to the system as soon as a batch of images
    is freed, so every page of the next batch is a page fault. A worker makes images of similar size again and again.
    """
    # The user has configured the allocator, so leave it alone.
    if any(name in os.environ for name in _GLIBC_VARIABLES):
        return
    # Not every C library has it.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


class ProcessLink:
    """The `WorkerLink` of a worker process: see NOTE [Three threads of a worker process].

    Args:
        spec: The same for all workers.
        worker_id: Number of this worker.
        main_pid: The main process. This process exits when that one has ended.
        ends: Its connections.
    """

    # A worker process gets no Ctrl-C, and SystemExit ends it, as in torch.
    caught: type[BaseException] = Exception

    def __init__(self, spec: WorkerSpec, worker_id: int, main_pid: int, ends: WorkerEnds) -> None:
        self.where = f"in DataLoader worker process {worker_id}"
        self._id = worker_id
        self._main_pid = main_pid
        self._heartbeats = ends.heartbeats
        self._is_map = not isinstance(spec.fetch.dataset, IterableDataset)
        self._slots = None if ends.memory is None else SlotWriter(ends.memory, stacks_rows=spec.fetch.builtin_collate)
        self.seed: SeedFn = seed_process if ends.heartbeats is None else self._seed_and_beat
        # True if user code keeps a part of a task's slot, which must not be used again then.
        self._slot_is_lost = False
        self._control = FrameReader(ends.control.fileno())
        self._tasks = FrameReader(ends.tasks.fileno())
        self._queue = ends.queue
        self._ended_epochs: set[int] = set()
        # The control thread writes to this pipe to wake the main thread.
        self._woken_fd, self._wake_fd = os.pipe()
        self._poller = select.poll()
        self._poller.register(self._tasks.fd, select.POLLIN)
        self._poller.register(self._woken_fd, select.POLLIN)
        if ends.queue is not None:
            self._poller.register(ends.queue.fileno(), select.POLLIN)
        self._results = FrameWriter(ends.results.fileno())
        # Wakes the sender thread.
        self._unsent = threading.Semaphore(0)
        # A worker that waits for one pipe must still serve the others.
        for fd in (self._control.fd, self._tasks.fd, self._results.fd, self._wake_fd):
            os.set_blocking(fd, False)
        self._stopping = False
        threading.Thread(target=self._listen, name="lit_loader-control", daemon=True).start()
        threading.Thread(target=self._write_unsent, name="lit_loader-sender", daemon=True).start()

    # -- in the main thread ---------------------------------------------------------------------------------

    def receive(self) -> tuple[Message, Any] | None:
        """Wait for the next message and return it with its frame, or None when the worker must stop."""
        while not self._stopping:
            # Before the shared queue, because no other worker can handle messages to this one alone.
            try:
                frame = self._tasks.receive()
            except EOFError:
                return None
            if frame is None and self._queue is not None and (packed := take(self._queue)) is not None:
                frame = unpack_frame(packed)
            if frame is not None:
                return unpack_message(frame[0]), frame
            self._poller.poll()
        return None

    def has_ended(self, epoch: int) -> bool:
        """Return True if the main process has dropped an epoch."""
        return epoch in self._ended_epochs

    @contextlib.contextmanager
    def user_code(self) -> Any:
        """Record when user code begins, and that it has ended."""
        self._beat()
        try:
            yield
        finally:
            self.ready()

    def ready(self) -> None:
        """Record that no user code is running."""
        if self._heartbeats is not None:
            self._heartbeats.rest(self._id)

    def _beat(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.begin(self._id)

    def _seed_and_beat(self, keys: EpochKeys, purpose: RngPurpose, a: int, b: int = 0, /) -> None:
        """Seed this process and record that a sample begins."""
        self._beat()
        seed_process(keys, purpose, a, b)

    def make(self, fetcher: Fetcher, message: Message, contents: Any, clock: StageClock | None) -> list[Buffer]:
        """Return a task's batch, encoded, with its large tensors in the task's slot."""
        self._beat()
        task = unpack_task(contents)
        slots = self._slots
        if message.slot < 0 or slots is None:
            return self._encode(fetcher, message.number, task, None, clock)
        try:
            slots.open(message.slot)
            with batch_memory.using(slots):
                return self._encode(fetcher, message.number, task, slots, clock)
        finally:
            try:
                slots.close()
            except SlotKeptError:
                self._slot_is_lost = True
                raise

    def _encode(
        self, fetcher: Fetcher, number: int, task: Task, slots: SlotWriter | None, clock: StageClock | None
    ) -> list[Buffer]:
        # Not for an iterable dataset: the frame of its generator may keep the last sample, and with it the slot, alive.
        with batch_memory.using(slots if self._is_map else None):
            samples = fetcher.samples(task)
        if clock is not None:
            clock.start_collating(task.number, fetcher.count(samples, task))
        batch = fetcher.collate(samples, task.key)
        del samples
        if clock is not None:
            clock.start_sending()
        try:
            buffers = encode(batch, None if slots is None else slots.name)
            if clock is not None:
                clock.sent_bytes = sum(map(len, buffers)) + (0 if slots is None else slots.num_bytes)
            return buffers
        except MemoryError:
            raise
        except Exception as error:
            raise not_sent(batch, number, error) from error

    def send(self, kind: Kind, message: Message, contents: Any = None, times: WorkTimes | None = None) -> None:
        """Answer a message; the sender thread writes the bytes that the pipe does not accept at once."""
        if contents is not None and kind is not Kind.RESULT:
            contents = encode(contents)
        if self._slot_is_lost:
            # Slot -1 in the answer tells the main process to retire it.
            self._slot_is_lost = False
            message = message._replace(slot=-1)
        header = pack_message(message._replace(kind=kind))
        if times is not None:
            header += pack_times(times)
        # If the main process has ended, the control thread ends this process.
        with contextlib.suppress(BrokenPipeError):
            self._results.send([header, *(contents or ())])
        if self._results.waiting:
            self._unsent.release()
        self.ready()

    def warn(self, text: str) -> None:
        """Let the main process warn of a dataset that draws from a generator of its own."""
        with contextlib.suppress(BrokenPipeError):
            self._results.send([pack_message(Message(Kind.NOTICE)), text.encode("utf-8", "replace")])

    # -- in the sender thread -------------------------------------------------------------------------------

    def _write_unsent(self) -> None:
        poller = select.poll()
        poller.register(self._results.fd, select.POLLOUT)
        with contextlib.suppress(BrokenPipeError):
            while True:
                self._unsent.acquire()
                while self._results.waiting:
                    poller.poll()
                    self._results.flush()

    # -- in the control thread ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Handle control messages until STOP, or until the main process has ended."""
        poller = select.poll()
        poller.register(self._control.fd, select.POLLIN)
        parent = None
        try:
            poller.register(os.pidfd_open(self._main_pid), select.POLLIN)
        except ProcessLookupError:
            os._exit(_ORPHAN_EXIT_CODE)
        except (AttributeError, OSError):
            # Without pidfds, look for the parent from time to time.
            parent = os.getppid()
        while not self._stopping:
            events = poller.poll(None if parent is None else _ORPHAN_POLL_MS)
            is_orphan = parent is not None and self._is_orphan(parent)
            if is_orphan or any(fd != self._control.fd for fd, _ in events):
                os._exit(_ORPHAN_EXIT_CODE)
            try:
                while (frame := self._control.receive()) is not None:
                    message = unpack_message(frame[0])
                    if message.kind is Kind.STOP:
                        self._stop()
                    else:
                        self._ended_epochs.add(message.epoch)
            except EOFError:
                self._stop()

    def _is_orphan(self, parent: int) -> bool:
        """Return True if the parent, which may be the fork server, or the main process has ended.

        If the main process ended before the first comparison of its pid, the parent is init already.
        """
        try:
            os.kill(self._main_pid, 0)
        except ProcessLookupError:
            return True
        return os.getppid() != parent

    def _stop(self) -> None:
        self._stopping = True
        # A full pipe also wakes `receive`.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_fd, b"\0")
