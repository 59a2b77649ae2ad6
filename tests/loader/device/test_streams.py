"""The real streams on a device module that logs its calls; the choice of a device."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.loader.device import DeviceStreams, MappedBatches, checked_device, find_streams, make_transfer, transfer
from tests.support.simulated_device import SlotRun
from tests.support.toys import Drawing


class Module:
    """A substitute for ``torch.cuda`` that logs the calls of `DeviceStreams`."""

    def __init__(self):
        self.log = []
        self.num_streams = 0
        self.now = "main"

        class Event:
            def record(event, stream):
                self.log.append(("record", stream.name))

        self.Event = Event

    def Stream(self, device):
        self.num_streams += 1
        return self._stream(f"side of {device}")

    def _stream(self, name):
        return SimpleNamespace(name=name, wait_event=lambda event: self.log.append(("wait", name)))

    def current_stream(self, device):
        return self._stream(self.now)

    @contextlib.contextmanager
    def stream(self, stream):
        self.now, previous = stream.name, self.now
        yield
        self.now = previous


@pytest.fixture
def module(monkeypatch):
    actual = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: actual)
    monkeypatch.setattr(transfer, "_side_streams", {})
    return actual


CUDA = torch.device("cuda", 0)


def test_copies_run_on_the_side_stream_and_the_consumers_waits(module):
    streams = DeviceStreams(CUDA)
    with streams.side_stream():
        event = streams.record_event()
    streams.wait_event(event)
    value = SimpleNamespace(record_stream=lambda stream: module.log.append(("keep", stream.name)))
    streams.record_stream(value)
    assert module.log == [("record", "side of cuda:0"), ("wait", "main"), ("keep", "main")]


def test_a_device_has_one_side_stream_since_its_memory_stays_with_it(module):
    for _ in range(3):
        DeviceStreams(CUDA)
    assert module.num_streams == 1
    DeviceStreams(torch.device("cuda", 1))
    assert module.num_streams == 2


def test_copies_do_not_block(module, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *args, **options: calls.append((args, options)))
    DeviceStreams(CUDA).copy_to_device(torch.ones(1))
    assert calls == [((CUDA,), {"non_blocking": True})]


@pytest.mark.parametrize("kind", ["mps", "xla"])
def test_a_device_without_streams_gets_plain_copies(monkeypatch, kind):
    module = Module() if kind == "mps" else SimpleNamespace()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    device = torch.device(kind, 0)
    assert find_streams(device) is None
    deliver = make_transfer(pin_memory=False, pin_memory_device="", device=device)
    run = SlotRun([1, ValueError("second")])
    plain = deliver(run)
    assert isinstance(plain, MappedBatches)
    moved = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, where: moved.append(where) or tensor)
    assert plain.next_batch()["number"] == 1
    assert moved == [device]
    with pytest.raises(ValueError, match="second"):
        plain.next_batch()
    plain.close()
    assert run.closed


def test_on_the_cpu_nothing_is_wrapped():
    for device in (None, torch.device("cpu"), torch.device("cpu", 0)):
        assert make_transfer(pin_memory=False, pin_memory_device="", device=device) is None


# -- the choice ---------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1", torch.device("cuda", 1), "cpu", None])
def test_a_device_that_is_here_is_taken(two_gpus, device):
    assert checked_device(device) == (None if device is None else torch.device(device))
    assert DataLoader(Drawing(2), device=device).device == checked_device(device)


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("gpu", RuntimeError, r"cpu, cuda, .* device string: gpu"),
        ("", RuntimeError, "[Dd]evice string"),
        ("cuda:2", ValueError, "device='cuda:2' is not available: torch finds 2 accelerators here, of type cuda"),
        ("mps", ValueError, "device='mps' is not available: torch finds 2 accelerators here, of type cuda"),
        ("meta", ValueError, "device='meta' is not available"),
        ([], TypeError, "received an invalid combination of arguments"),
    ],
)
def test_a_device_that_is_not_is_refused_when_the_loader_is_made(two_gpus, device, error, message):
    with pytest.raises(error, match=message):
        DataLoader(Drawing(2), device=device)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is here")
def test_without_an_accelerator_only_the_cpu_is_taken():
    with pytest.raises(ValueError, match="device='cuda' is not available: torch finds 0 accelerators here"):
        DataLoader(Drawing(2), device="cuda")
    batch = next(iter(DataLoader(Drawing(2), device="cpu")))
    assert batch["torch"].device.type == "cpu"


def test_a_device_without_a_number_is_the_processs_current_one(two_gpus, monkeypatch):
    calls = []
    monkeypatch.setattr(transfer, "find_streams", calls.append)
    for name in ("cuda", "cuda:0"):
        make_transfer(pin_memory=False, pin_memory_device="", device=torch.device(name))
    assert calls == [torch.device("cuda", 1), torch.device("cuda", 0)]
