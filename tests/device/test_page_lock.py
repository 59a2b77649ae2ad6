"""Page-locking of slots: registered once, given back, refused with one warning, never touched in a fork."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.device import CudaPageLock, find_page_lock, page_lock
from tests.toys import Drawing


class Cuda:
    """A CUDA runtime that keeps books."""

    def __init__(self):
        self.registered, self.calls, self.refusal = {}, [], 0
        self.capturing = False
        self.reached = {"current": 0, "default": 0, "side": 0}  # events passed, by stream
        self.marked = dict.fromkeys(self.reached, 0)

    def cudaHostRegister(self, address, size, flags):
        self.calls.append(("register", address, size, flags))
        if not self.refusal:
            self.registered[address] = size
        return self.refusal

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, error):
        return {2: "out of memory"}[error]


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()

    class Event:
        def record(self, stream):
            assert not found.capturing, "an event of the graph's"
            found.marked[stream] += 1
            self.stream, self.place = stream, found.marked[stream]

        def query(self):
            assert not found.capturing, "forbidden while a graph is captured"
            return found.reached[self.stream] >= self.place

    monkeypatch.setattr(page_lock, "_cudart", lambda: found)
    monkeypatch.setattr(page_lock, "side_streams", lambda device: ("side",))
    for name, value in {
        "current_stream": lambda device: "current",
        "default_stream": lambda device: "default",
        "is_current_stream_capturing": lambda: found.capturing,
        "Event": Event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    found.cleared = []
    monkeypatch.setattr(CudaPageLock, "_clear_error", lambda lock: found.cleared.append(1))
    return found


@pytest.fixture
def lock(cuda):
    return CudaPageLock(torch.device("cuda", 0))


def test_memory_is_registered_and_given_back(cuda, lock):
    assert lock.lock(4096, 8192)
    assert cuda.registered == {4096: 8192}
    lock.unlock(4096)
    lock.unlock(4096)  # given back already
    lock.unlock(5)  # never locked
    assert cuda.calls == [("register", 4096, 8192, 1), ("unregister", 4096)]


def test_a_refusal_is_told_once_with_bytes_and_remedy_and_nothing_more_is_tried(cuda, lock):
    assert lock.lock(4096, 1)
    cuda.refusal = 2
    with pytest.warns(UserWarning, match=r"8192 bytes .*out of memory.*unpinned.*ulimit -l") as caught:
        assert not lock.lock(8192, 8192)
    assert not lock.lock(12288, 8192)
    assert len(caught) == 1
    assert len([call for call in cuda.calls if call[0] == "register"]) == 2
    assert cuda.cleared == [1]  # the next kernel is not blamed
    lock.unlock(4096)
    assert cuda.registered == {}


def test_nothing_is_waited_for_where_nothing_is_locked(cuda, lock):
    assert lock.fence() is None


@pytest.mark.parametrize("late", ["current", "default", "side"])
def test_a_fence_is_passed_when_every_stream_has_come_there(cuda, lock, late):
    lock.lock(4096, 1)
    passed = lock.fence()
    assert not passed()
    cuda.reached = {name: 0 if name == late else 1 for name in cuda.reached}
    assert not passed()
    cuda.reached[late] = 1
    assert passed()
    assert not lock.fence()()  # a later one waits for what came later


def test_while_a_graph_is_captured_the_answer_is_no_and_no_event_is_touched(cuda, lock):
    lock.lock(4096, 1)
    cuda.reached = dict.fromkeys(cuda.reached, 1)
    cuda.capturing = True
    passed = lock.fence()
    assert not passed()
    assert sum(cuda.marked.values()) == 0
    cuda.capturing = False
    assert passed()
    cuda.capturing = True
    assert not passed()


def test_memory_of_a_device_that_has_failed_is_never_used_again(cuda, lock, monkeypatch):
    lock.lock(4096, 1)
    passed = lock.fence()

    def fails(*_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda.Event, "query", fails)
    assert not passed()
    monkeypatch.setattr(torch.cuda.Event, "query", lambda event: True)
    assert not passed()
    monkeypatch.setattr(torch.cuda, "current_stream", fails)
    assert not lock.fence()()


def test_a_fork_touches_nothing(cuda, lock, monkeypatch):
    lock.lock(4096, 1)
    calls = list(cuda.calls)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not lock.lock(8192, 1)
    assert lock.fence() is None
    lock.unlock(4096)
    assert cuda.calls == calls


@pytest.mark.parametrize(
    ("kind", "pin_memory", "locks"),
    [
        ("cuda", True, True),
        ("cuda", False, False),
        ("mps", True, False),
        ("xpu", True, False),
        (None, True, False),
    ],
)
def test_slots_are_locked_with_cuda_if_pinning_is_asked_for(monkeypatch, kind, pin_memory, locks):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=kind))
    assert (find_page_lock(pin_memory, None) is not None) is locks
    loader = DataLoader(Drawing(2), pin_memory=pin_memory)
    assert (loader._page_lock is not None) is locks


def test_the_error_of_a_refused_call_is_taken_back_by_a_launch(monkeypatch):
    asked = []

    def zeros(count, *, device):
        asked.append(device)
        raise RuntimeError("CUDA error: out of memory")  # that of the refused call

    monkeypatch.setattr(torch, "zeros", zeros)
    CudaPageLock(torch.device("cuda", 1))._clear_error()
    assert asked == [torch.device("cuda", 1)]


def test_where_cuda_cannot_be_started_it_says_nothing_and_locks_nothing(monkeypatch):
    asked = []

    def fails():
        asked.append(1)
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(page_lock, "_cudart", fails)
    lock = CudaPageLock()
    assert not lock.lock(4096, 1)
    assert not lock.lock(8192, 1)
    assert (len(asked), lock.fence()) == (1, None)
