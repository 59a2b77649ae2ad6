"""A simulated accelerator, an epoch in reused slots and a consumer; together they find every wrong order of events.

Streams are queues of operations that run when chance says so. A copy reads its source when it runs, and a slot that
is let go is overwritten at once. Memory of the device is used again as soon as it may be. Each batch holds its own
number everywhere, so that whatever is read too early or too late shows as another number.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import weakref
from collections import deque

import torch

import lit_loader.loader.data_loader
from lit_loader.engine import EndOfEpoch
from lit_loader.loader.device import DevicePrefetcher, page_lock, transfer

UNWRITTEN = -1
OVERWRITTEN = -2
SHAPE = (3,)


def bare(tensor):
    """Return the memory of a contiguous tensor as an address: a device's queue keeps nothing alive."""
    if tensor.nbytes == 0:
        return tensor.detach()
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


class SimulatedEvent:
    def __init__(self, device):
        self.device = device
        self.done = False

    def query(self):
        assert not self.device.capturing, "an event is asked while a graph is captured"
        self.device.pass_time()
        return self.done

    def synchronize(self):
        assert not self.device.capturing, "an event is waited for while a graph is captured"
        self.device.run_until(lambda: self.done)


class SimulatedDevice:
    """`DeviceStreams` whose copies end at random, or when the host waits for them.

    Args:
        chance: Decides how far the streams come whenever the device is spoken to.
        pace: The chance that an operation runs when time passes.
    """

    def __init__(self, chance=None, *, pace=0.5):
        self.device = torch.device("cuda", 0)
        self.chance = chance or random.Random(0)
        self.pace = pace
        self.streams = {"main": deque(), "side": deque()}
        self.num_run = {"main": 0, "side": 0}
        self.current = "main"
        self.num_blocks = 0
        self._free = []
        self._pending = []
        self._kept = set()
        self.copies = 0
        self.capturing = False

    # -- what DeviceStreams do ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def side_stream(self):
        self.current, previous = "side", self.current
        try:
            yield
        finally:
            self.current = previous

    def copy_to_device(self, tensor):
        block = self._block(tensor)
        block.fill_(UNWRITTEN)
        source = bare(tensor)
        self.queue(lambda: block.copy_(source))
        self.copies += 1
        result = block.view(block.shape)
        weakref.finalize(result, self._freed, block)
        return result

    def record_event(self):
        event = SimulatedEvent(self)
        self.queue(lambda: setattr(event, "done", True))
        return event

    def wait_event(self, event):
        self.queue(lambda: None, awaited=event)

    def record_stream(self, value):
        self._kept.add(value.data_ptr())

    def is_capturing(self):
        return self.capturing

    # -- time ---------------------------------------------------------------------------------------------

    def queue(self, operation, awaited=None):
        self.streams[self.current].append((operation, awaited))
        self.pass_time()

    def pass_time(self):
        while self.chance.random() < self.pace:
            self._advance(self.chance.choice(("main", "side")))

    def run_until(self, condition):
        while not condition():
            ran = [self._advance(name) for name in self.chance.sample(("main", "side"), 2)]
            assert any(ran), "the host would wait without end"

    def drain(self):
        self.run_until(lambda: not any(self.streams.values()))

    def _advance(self, name):
        stream = self.streams[name]
        if not stream or (stream[0][1] is not None and not stream[0][1].done):
            return False
        operation, _ = stream.popleft()
        operation()
        self.num_run[name] += 1
        return True

    # -- memory of the side stream ------------------------------------------------------------------------

    def _block(self, like):
        for number, (block, free_at) in reversed(list(enumerate(self._pending))):
            if self.num_run["main"] >= free_at:
                self._free.append(block)
                del self._pending[number]
        for number, block in enumerate(self._free):
            if block.shape == like.shape and block.dtype == like.dtype:
                return self._free.pop(number)
        self.num_blocks += 1
        return torch.empty_like(like)

    def _freed(self, block):
        if block.data_ptr() in self._kept:
            self._kept.discard(block.data_ptr())
            self._pending.append((block, self.num_run["main"] + len(self.streams["main"])))
        else:
            self._free.append(block)


class SlotRun:
    """A pass that writes each batch to a slot, which is overwritten as soon as its batch has died.

    Args:
        script: Numbers of batches, and errors in their places.
        chance: Decides whether the next batch is ready.
        ready: The chance that it is.
    """

    def __init__(self, script, chance=None, *, ready=0.7):
        self.script = list(script)
        self.chance = chance or random.Random(0)
        self.ready = ready
        self.slots_out = 0
        self.closed = False
        self.asked = 0
        self.memory = []  # all there ever was: an address that is read late is to be one of a slot

    def poll(self):
        return self.chance.random() < self.ready

    def next_batch(self):
        self.asked += 1
        if not self.script:
            raise EndOfEpoch
        item = self.script.pop(0)
        if isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item
        slot = torch.full(SHAPE, item)
        self.memory.append(slot)
        batch = slot.view(SHAPE)
        self.slots_out += 1
        weakref.finalize(batch, self._died, slot)
        return {"image": batch, "number": item}

    def _died(self, slot):
        self.slots_out -= 1
        slot.fill_(OVERWRITTEN)

    def close(self):
        self.closed = True


class Prompt(SimulatedDevice):
    """A device that is done with a batch before it is handed over, so that a consumer on the CPU may read it."""

    def wait_event(self, event):
        super().wait_event(event)
        self.drain()


def present(monkeypatch, kind=Prompt, *, pace=0.4):
    """Let loaders find a simulated device; its copies end late."""
    actual = kind(random.Random(3), pace=pace)
    monkeypatch.setattr(transfer, "find_streams", lambda device: actual)
    monkeypatch.setattr(page_lock, "_is_capturing", actual.is_capturing)
    monkeypatch.setattr(
        lit_loader.loader.data_loader, "checked_device", lambda device: device and torch.device("cuda", 0)
    )
    return actual


SAYS = {UNWRITTEN: "read before its copy had ended", OVERWRITTEN: "its slot was overwritten before its copy had ended"}


class Consumer:
    """Asks for batches, queues work on them, and lets them go.

    Attributes:
        faults: Descriptions of wrong values that were read.
        events: Numbers of batches, and messages of errors, as they came.
    """

    def __init__(self, run, device, chance):
        self.run = run
        self.device = device
        self.chance = chance
        self.faults = []
        self.events = []
        self._held = deque()

    def consume(self):
        """Take batches to the end, with errors between them."""
        while True:
            try:
                batch = self.run.next_batch()
            except EndOfEpoch:
                break
            except Exception as error:
                self.events.append(str(error))
                continue
            self.events.append(batch["number"])
            for _ in range(self.chance.randrange(3)):
                self._use(batch)
            self._held.append(batch)
            del batch
            while len(self._held) > self.chance.randrange(3):
                self._held.popleft()
        self._held.clear()
        self.device.drain()

    def _use(self, batch):
        number = batch["number"]
        memory = batch["image"].detach()
        self.device.queue(lambda: self._check(number, memory))

    def _check(self, number, memory):
        actual = sorted(set(memory.tolist()))
        if actual != [number]:
            says = SAYS.get(actual[0], "its memory was used again while it was read")
            self.faults.append(f"batch {number}: {says}")


def simulate(seed, script, *, kind=DevicePrefetcher):
    """Run a script once; return the consumer, the device and the epoch under it."""
    chance = random.Random(seed)
    device = SimulatedDevice(chance, pace=chance.choice([0.1, 0.5, 0.8]))
    slots = SlotRun(script, chance, ready=chance.choice([0.3, 0.7, 1.0]))
    run = kind(slots, None, device)
    consumer = Consumer(run, device, chance)
    consumer.consume()
    run.close()
    return consumer, device, slots
