"""Batches on a device when they are asked for: the next one is copied on a side stream while this one is used.

NOTE [Order of events]
    started     the engine returns a batch, and its copy is queued on the side stream
    delivered   the consumer's stream waits for the copy, and the batch is returned
    done        the copy has ended: its source, usually a worker process's slot, is released
    Before a batch is delivered, the transfer of the next one is started if the engine has it ready, so that its copy
    runs at the same time as the consumer's step. If that raises an error, or EndOfEpoch, it is raised again by the call
    of `next_batch` that would have returned the batch. No thread is needed.

NOTE [Bounded memory on the device]
    A consumer queues work and asks for the next batch long before the device has done it. Memory of the side stream
    cannot be reused until that work is done, so a consumer that never waits would fill the device with batches. The
    host therefore waits while there are `MAX_QUEUED` delivered batches whose work the device has not begun. The device
    is busy meanwhile, and the memory of earlier batches is free again.

NOTE [Side stream or at delivery]
    A copy on a side stream needs access to the memory: the source is kept until the copy has ended, and the device's
    memory is marked as used by the consumer's stream (``record_stream``). That is possible for dense CPU tensors.
    Anything else that has a ``to()``, such as sparse and nested tensors, tensors of another device, or a batch type
    that hides its tensors, is moved as a whole at delivery, on the consumer's own stream: correct, but without overlap.

NOTE [Objects that stay on the CPU]
    An object without a ``to()`` stays on the CPU, and one with a ``to()`` may leave a part of itself there. If that
    part were in a page-locked slot, the user could copy from it without the loader's knowledge, and the slot would be
    written again during that copy. So only the tensors in a batch's containers are copied from the slot itself. Every
    other object, and a container's further attributes, are first copied to memory of their own.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from lit_loader.engine import Batches, WrappedBatches
from lit_loader.loader.device.nested import NO_LEAF, MapFn, find_pin, has_to, map_nested, moved
from lit_loader.loader.device.pin_thread import PinnedBatches

MAX_QUEUED: Final = 2
"""Batches that are delivered and whose work the device has not begun; see NOTE [Bounded memory on the device]."""

# A fork's copies of transfers and events. They are never freed there: that would need the device, which only the parent
# may use.
_kept_in_fork: list[Any] = []
# Transfers that could not be waited for when their prefetcher was closed. Prefetchers that close later wait for them.
_unfinished: set[PendingTransfer] = set()
# One side stream for each device: the allocator reuses freed memory only on the stream that it was allocated on.
_side_streams: dict[torch.device, Any] = {}


def make_transfer(
    pin_memory: bool,
    pin_memory_device: str,
    device: torch.device | None,
    *,
    from_slots: bool = False,
    ahead: bool = False,
) -> Callable[[Batches], WrappedBatches] | None:
    """Return a function that wraps the engine's batches to page-lock or move them, or None if neither is asked for.

    Args:
        pin_memory: The loader's ``pin_memory``.
        pin_memory_device: The loader's ``pin_memory_device``.
        device: The loader's device, as returned by `checked_device`.
        from_slots: True if batches may be in page-locked slots of worker processes.
        ahead: True if a batch may be taken ahead to page-lock it in a thread; without effect on copies to a device.
    """
    pin = find_pin(pin_memory, pin_memory_device)
    if device is None or device.type == "cpu":
        if pin is None:
            return None
        return partial(PinnedBatches, pin=pin) if ahead else partial(MappedBatches, function=pin)
    index: int | None = device.index  # torch annotates it as int
    if index is None:
        device = torch.device(device.type, torch.accelerator.current_device_index())
    streams = find_streams(device)
    if streams is None:
        return partial(MappedBatches, function=partial(moved, device=device))
    return partial(DevicePrefetcher, pin=pin, streams=streams, from_slots=from_slots)


def checked_device(device: Any) -> torch.device | None:
    """Return a loader's ``device`` argument as a device, or None if batches are not moved.

    Raises:
        TypeError, RuntimeError: As ``torch.device`` does, if it is neither a device nor the name of one.
        ValueError: If it is not available.
    """
    if device is None:
        return None
    checked = torch.device(device)
    if checked.type == "cpu":
        return checked
    accelerator = torch.accelerator.current_accelerator()
    num_devices = torch.accelerator.device_count()
    if accelerator is None or accelerator.type != checked.type or (checked.index or 0) >= num_devices:
        raise ValueError(
            f"device={str(checked)!r} is not available: torch finds {num_devices} accelerators here, of type "
            f"{accelerator}; pass one that is available, or leave device= out"
        )
    return checked


class MappedBatches(WrappedBatches):
    """Applies a function to each batch when the consumer asks for it.

    It pins batches, or moves them to a device without streams, where a copy cannot run at the same time as other work.

    Args:
        batches: The engine's batches.
        function: Called with each batch.
    """

    def __init__(self, batches: Batches, function: Callable[[Any], Any]) -> None:
        super().__init__(batches)
        self._function = function

    def next_batch(self) -> Any:
        """Return the next batch; the engine and the function may raise errors."""
        return self._function(self._batches.next_batch())


class DevicePrefetcher(WrappedBatches):
    """Delivers batches on a device, one transfer ahead; see NOTE [Order of events].

    Args:
        batches: The engine's batches.
        pin: Pins tensors that are not page-locked yet, before they are copied, or None if they are not pinned.
        streams: The streams of the device.
        from_slots: True if batches may be in page-locked slots.

    Runs in: the consumer's process and thread.
    Owns: the engine's batches; a transfer that was started and not delivered; sources until their copies have ended.
    """

    def __init__(
        self, batches: Batches, pin: MapFn | None, streams: DeviceStreams, *, from_slots: bool = False
    ) -> None:
        super().__init__(batches)
        self._pin = pin
        self._streams = streams
        self._from_slots = from_slots
        # Transfers that were started and not delivered, and errors that were raised ahead.
        self._ahead: deque[PendingTransfer | Exception] = deque()
        # copies that may be running, so that sources are kept
        self._in_flight: deque[PendingTransfer] = deque()
        # Events recorded on the consumer's stream, one for each delivered batch.
        self._delivered: deque[torch.Event] = deque()
        self._pid = os.getpid()

    def next_batch(self) -> Any:
        """Return the next batch, on the device; errors of the engine are raised in their order."""
        if os.getpid() != self._pid:
            # In a fork the device may not be used. The engine decides whether it may be.
            return self._batches.next_batch()
        # Copies on one stream end in order.
        while self._in_flight and self._in_flight[0].is_done:
            self._in_flight.popleft()
        if not self._ahead:
            self._ahead.append(self._start_next())
        first = self._ahead[0]
        if isinstance(first, Exception):
            self._ahead.popleft()
            try:
                raise first
            finally:
                # The traceback holds this frame: without this, a reference cycle would keep the batch alive.
                del first
        if len(self._ahead) == 1 and self._batches.poll():
            try:
                self._ahead.append(self._start_next())
            except Exception as error:
                # Raised again by the call that would have returned its batch.
                self._ahead.append(error)
        while len(self._delivered) >= MAX_QUEUED:
            start = time.perf_counter()
            self._delivered.popleft().synchronize()
            self.device_wait_s += time.perf_counter() - start
        self._delivered.append(self._streams.record_event())
        # Not before, so that Ctrl-C while looking ahead or waiting loses no batch.
        self._ahead.popleft()
        try:
            return first.finish()
        finally:
            # The traceback of an error that was raised ahead holds this frame, which must not hold the source.
            del first

    def close(self) -> None:
        """Close the engine's batches, and release sources when their copies have ended."""
        try:
            if os.getpid() == self._pid:
                self._wait_for_copies()
            else:
                _kept_in_fork.append((self._ahead, self._in_flight, self._delivered))
        finally:
            # New ones, and not cleared: in a fork the old ones must stay alive.
            self._ahead = deque()
            self._in_flight = deque()
            self._delivered = deque()
            self._batches.close()

    def _start_next(self) -> PendingTransfer:
        batch = self._batches.next_batch()
        if self._pin is not None:
            batch = self._pin(batch)
        transfer = PendingTransfer(batch, self._streams, from_slots=self._from_slots)
        # Before the copies begin, so that an interrupt cannot free their source.
        self._in_flight.append(transfer)
        transfer.start()
        return transfer

    def _wait_for_copies(self) -> None:
        """Wait until every copy has ended; a transfer that cannot be waited for is kept in `_unfinished`.

        A finalizer may call this at any time: also while a graph is captured, when no event may be waited for, and
        after the device has failed, when waiting raises RuntimeError.
        """
        # Before the first wait, which Ctrl-C may interrupt: a source that is freed too early is overwritten while it is
        # copied.
        _unfinished.update(self._in_flight)
        for transfer in list(_unfinished):
            with contextlib.suppress(RuntimeError):
                if not self._streams.is_capturing():
                    transfer.synchronize()
                    _unfinished.discard(transfer)


class PendingTransfer:
    """The transfer of one batch: started on the side stream, finished on the consumer's.

    Args:
        batch: The source; kept until `is_done`.
        streams: The streams of the device.
        from_slots: True if the source may be in page-locked slots: see NOTE [Objects that stay on the CPU].

    Owns: the source, and the memory on the device until `finish`.
    """

    def __init__(self, batch: Any, streams: DeviceStreams, *, from_slots: bool = False) -> None:
        self._source = batch
        self._streams = streams
        # Copies objects that stay on the CPU; one memo for all, so that an object that occurs twice stays one.
        self._own_copy = partial(copy.deepcopy, memo={}) if from_slots else None
        # Results whose memory the consumer's stream will use.
        self._on_side_stream: list[Tensor] = []
        self._moves_at_delivery = False
        self._copied: torch.Event | None = None

    def start(self) -> None:
        """Queue the copies. If one raises, those before it have ended when the error is raised."""
        with self._streams.side_stream():
            try:
                self._result = map_nested(self._source, self._start_leaf, other=self._own_copy)
                self._copied = self._streams.record_event()
            except BaseException:
                # The device may have failed, which the error below says better.
                with contextlib.suppress(RuntimeError):
                    self.synchronize()
                raise

    def finish(self) -> Any:
        """Return the batch on the device; work that is queued on the current stream from now on may use it."""
        streams = self._streams
        assert self._copied is not None
        streams.wait_event(self._copied)
        for value in self._on_side_stream:
            streams.record_stream(value)
        result, self._result, self._on_side_stream = self._result, None, []
        if self._moves_at_delivery:
            self._moves_at_delivery = False
            result = moved(result, streams.device)
            # This stream has waited for the side stream, so the event is recorded behind every copy.
            self._copied = streams.record_event()
        return result

    @property
    def is_done(self) -> bool:
        """True if every copy has ended, so that the source may be released."""
        return self._copied is not None and not self._moves_at_delivery and self._copied.query()

    def synchronize(self) -> None:
        """Wait, in this thread, until every copy that was queued has ended."""
        if self._copied is None:
            with self._streams.side_stream():
                self._copied = self._streams.record_event()
        self._copied.synchronize()

    def _start_leaf(self, data: Any) -> Any:
        """Start to move a leaf; see NOTE [Side stream or at delivery]."""
        device = self._streams.device
        if isinstance(data, Tensor):
            if data.device == device:
                return data
            if data.device.type != "cpu" or data.layout is not torch.strided or data.is_nested:
                self._moves_at_delivery = True
                return data
            result = self._streams.copy_to_device(data)
            self._on_side_stream.append(result)
            return result
        if not has_to(data):
            return NO_LEAF
        self._moves_at_delivery = True
        return data if self._own_copy is None else self._own_copy(data)


class DeviceStreams:
    """A side stream of an accelerator for copies, and its current stream, which is the consumer's.

    `DevicePrefetcher` decides the order of events, so that tests can pass streams whose copies end on command.

    Args:
        device: The accelerator, with its index.

    Runs in: the consumer's process and thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        if device not in _side_streams:
            _side_streams[device] = self._module.Stream(device)
        self._side_stream = _side_streams[device]

    def side_stream(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one within a context."""
        context: AbstractContextManager[Any] = self._module.stream(self._side_stream)
        return context

    def copy_to_device(self, tensor: Tensor) -> Tensor:
        """Queue the copy of a dense CPU tensor on the current stream; return the tensor that will hold it.

        From page-locked memory this returns at once; the caller keeps the source until the copy has completed.
        """
        return tensor.to(self.device, non_blocking=True)

    def record_event(self) -> torch.Event:
        """Record an event on the current stream."""
        event: torch.Event = self._module.Event()
        event.record(self._module.current_stream(self.device))
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Let the current stream wait for an event; this thread does not wait."""
        self._module.current_stream(self.device).wait_event(event)

    def record_stream(self, value: Tensor) -> None:
        """Keep the allocator from reusing memory of the side stream while the current stream uses it."""
        value.record_stream(self._module.current_stream(self.device))

    def is_capturing(self) -> bool:
        """Return True if the current stream captures a graph, in which events may be neither queried nor waited for."""
        capturing = getattr(self._module, "is_current_stream_capturing", None)
        return capturing is not None and bool(capturing())


def find_streams(device: torch.device) -> DeviceStreams | None:
    """Return the streams of an accelerator, or None if copies cannot run at the same time as other work there.

    Args:
        device: The accelerator, with its index.
    """
    module = torch.get_device_module(device)
    # non_blocking copies to MPS race with the work: github.com/pytorch/pytorch/issues/83015
    return None if device.type == "mps" or not hasattr(module, "Stream") else DeviceStreams(device)
