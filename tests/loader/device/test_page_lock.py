"""Page-locking of slots: registered once, given back, refused with one warning, never touched in a fork."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch

import lit_loader.loader.data_loader
from lit_loader import DataLoader
from lit_loader.loader.device import CudaPageLock, find_page_lock, page_lock
from tests.support.toys import Drawing


class Cuda:
    """A CUDA runtime that keeps books."""

    def __init__(self):
        self.registered = {}
        self.calls = []
        self.refusal = 0

    def cudaHostRegister(self, address, size, flags):
        self.calls.append(("register", address, size, flags))
        if not self.refusal:
            self.registered[address] = size
        return self.refusal

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        if address not in self.registered:
            return 713
        if not self.refusal:
            del self.registered[address]
        return self.refusal

    def cudaGetErrorString(self, error):
        return {2: "out of memory"}[error]


@pytest.fixture
def cuda(monkeypatch):
    actual = Cuda()
    monkeypatch.setattr(page_lock, "_cudart", lambda: actual)
    actual.cleared = []
    monkeypatch.setattr(CudaPageLock, "_clear_error", lambda lock: actual.cleared.append(1))
    return actual


@pytest.fixture
def lock(cuda):
    return CudaPageLock(torch.device("cuda", 0))


def test_memory_is_registered_and_given_back(cuda, lock):
    assert lock.lock(4096, 8192)
    assert cuda.registered == {4096: 8192}
    assert lock.unlock(4096)
    assert cuda.calls == [("register", 4096, 8192, 1), ("unregister", 4096)]


def test_a_refusal_is_told_once_with_bytes_and_remedy_and_nothing_more_is_tried(cuda, lock):
    assert lock.lock(4096, 1)
    cuda.refusal = 2
    with pytest.warns(
        UserWarning, match=r"8192 bytes .*out of memory.*copied to other page-locked memory.*ulimit -l"
    ) as caught:
        assert not lock.lock(8192, 8192)
    assert not lock.lock(12288, 8192)
    assert len(caught) == 1
    assert len([call for call in cuda.calls if call[0] == "register"]) == 2
    assert cuda.cleared == [1]  # the next kernel is not blamed
    cuda.refusal = 0
    assert lock.unlock(4096)
    assert cuda.registered == {}


def test_registering_waits_while_a_graph_is_captured(cuda, lock, monkeypatch):
    assert lock.lock(4096, 1)
    calls = list(cuda.calls)
    with monkeypatch.context() as patch:
        patch.setattr(page_lock, "_is_capturing", lambda: True)
        assert not lock.lock(8192, 1)
        assert not lock.unlock(4096)
    assert cuda.calls == calls
    assert cuda.cleared == []  # a kernel would become a part of the graph
    assert lock.lock(8192, 1)
    assert lock.unlock(4096)


def test_memory_is_registered_on_the_device_that_copies_from_it(cuda, monkeypatch):
    current = []

    @contextlib.contextmanager
    def device(chosen):
        current.append(chosen)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", device)
    devices = []
    for name in ("cudaHostRegister", "cudaHostUnregister"):
        call = getattr(cuda, name)
        setattr(cuda, name, lambda *args, call=call: devices.append(*current) or call(*args))
    lock = CudaPageLock(torch.device("cuda", 1))
    assert lock.lock(4096, 1)
    assert lock.unlock(4096)
    assert devices == [torch.device("cuda", 1)] * 2


def test_a_graph_that_another_thread_captures_does_not_switch_locking_off(cuda, lock):
    cuda.refusal = 900  # cudaErrorStreamCaptureUnsupported
    assert not lock.lock(4096, 1)  # without a warning
    assert cuda.cleared == [1]
    cuda.refusal = 0
    assert lock.lock(4096, 1)


def test_unlock_tells_whether_the_memory_may_still_be_registered(cuda, lock):
    assert lock.lock(4096, 1)
    cuda.refusal = 2
    assert not lock.unlock(4096)
    assert cuda.cleared == [1]
    cuda.refusal = 0
    assert lock.unlock(4096)
    assert lock.unlock(4096)  # Ctrl-C came after the first call, say
    assert cuda.registered == {}


def test_a_fork_touches_nothing(cuda, lock, monkeypatch):
    lock.lock(4096, 1)
    calls = list(cuda.calls)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not lock.lock(8192, 1)
    assert lock.unlock(4096)  # nothing is registered there, so the fork may unmap it
    assert cuda.calls == calls


@pytest.mark.parametrize(
    ("device", "pin_memory", "locks"),
    [("cuda:0", True, True), ("cuda", False, False), ("xpu", True, False), ("cpu", True, False), (None, True, False)],
)
def test_slots_are_locked_where_the_loader_itself_copies_to_cuda(monkeypatch, device, pin_memory, locks):
    """Without a device the user copies, on whatever stream: such batches are in memory of torch's own allocator."""
    actual = None if device is None else torch.device(device)
    assert (find_page_lock(pin_memory, actual) is not None) is locks
    monkeypatch.setattr(lit_loader.loader.data_loader, "checked_device", lambda argument: actual)
    for workers, has_slots in (
        ({"num_workers": 1}, True),
        ({"num_workers": 1, "worker_method": "thread"}, False),
        ({}, False),
    ):
        loader = DataLoader(Drawing(2), pin_memory=pin_memory, device=device, **workers)
        assert (loader._spec().page_lock is not None) is (locks and has_slots)


def test_the_error_of_a_refused_call_is_cleared_by_a_launch(monkeypatch):
    devices = []

    def zeros(count, *, device):
        devices.append(device)
        raise RuntimeError("CUDA error: out of memory")  # the error of the refused call

    monkeypatch.setattr(torch, "zeros", zeros)
    CudaPageLock(torch.device("cuda", 1))._clear_error()
    assert devices == [torch.device("cuda", 1)]
