"""On a CUDA device: the same batches, page-locked slots, no race, refused memory, draws."""

from __future__ import annotations

import mmap
import time

import pytest
import torch
from torch.utils.data import Dataset

from benchmarks.transfer import CONTROLS, race
from lit_loader import DataLoader
from lit_loader.loader.device import CudaPageLock, find_streams, seeded_batch
from tests.support.toys import Drawing

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BACKENDS = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "thread": {"num_workers": 2, "worker_method": "thread"},
}


@pytest.fixture(scope="session", autouse=True)
def _cuda() -> None:
    """Start what CUDA keeps for good, before a test counts descriptors and threads."""
    if torch.cuda.is_available():
        find_streams(torch.device("cuda", 0))
        torch.ones(1).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()


class Numbered(Dataset):
    """One number everywhere in a sample; a batch of four takes 48 KB, more than a pipe carries."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((3, 64, 64), index % 251, dtype=torch.uint8), index % 251


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tensors_are_page_locked(num_workers):
    with DataLoader(Drawing(6), batch_size=2, seed=1, num_workers=num_workers, pin_memory=True) as loader:
        for batch in loader:
            assert batch["torch"].is_pinned()


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", BACKENDS.values(), ids=BACKENDS)
def test_batches_on_the_device_are_those_of_the_host(workers, pin_memory):
    settings = {"batch_size": 4, "shuffle": True, "seed": 1}
    with DataLoader(Numbered(40), device="cuda", pin_memory=pin_memory, **settings, **workers) as loader:
        for (images, numbers), (expected, _) in zip(loader, DataLoader(Numbered(40), **settings), strict=True):
            assert images.device == numbers.device == torch.device("cuda", torch.cuda.current_device())
            assert torch.equal(images.cpu(), expected)


def test_no_batch_is_read_early_or_overwritten_while_both_streams_are_late():
    assert race(5_000, own_stream=False) == 0


@pytest.mark.parametrize("name", CONTROLS)
def test_the_race_notices_a_safeguard_that_is_taken_away(monkeypatch, name):
    monkeypatch.setattr(*CONTROLS[name])
    assert race(5_000, own_stream=False) > 0


@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_batch_that_is_dropped_at_once_is_not_overwritten_under_a_copy_on_a_users_own_stream(pin_memory):
    assert race(5_000, own_stream=True, pin_memory=pin_memory) == 0


def test_to_close_while_a_graph_is_captured_neither_stalls_nor_ends_the_capture():
    loader = DataLoader(Numbered(40), batch_size=4, seed=0, num_workers=2, pin_memory=True, device="cuda")
    iterator = iter(loader)
    for _ in range(4):
        batch = next(iterator)  # slots that are registered and free again
    static = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        begin = time.monotonic()
        iterator.close()
        took_s = time.monotonic() - begin
        result = static * 2
    graph.replay()
    torch.cuda.synchronize()
    assert result.tolist() == [2.0] * 4
    assert took_s < 10
    loader.close()
    with DataLoader(Numbered(4), batch_size=4, num_workers=1, pin_memory=True, device="cuda") as other:
        list(other)  # unlocks what had to stay locked
    assert batch[0].device.type == "cuda"


def test_registered_memory_is_page_locked_until_it_is_given_back():
    memory = mmap.mmap(-1, 1 << 20)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    lock = CudaPageLock(torch.device("cuda"))
    assert lock.lock(tensor.data_ptr(), tensor.nbytes)
    assert tensor.is_pinned()
    assert tensor[1000:2000].is_pinned()
    copy = tensor.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert int(copy.sum()) == 0
    assert lock.unlock(tensor.data_ptr())
    assert not tensor.is_pinned()
    assert lock.unlock(tensor.data_ptr())  # as after Ctrl-C in the first call


def test_a_refusal_leaves_no_error_behind_for_the_next_kernel():
    memory = mmap.mmap(-1, 1 << 20)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    lock = CudaPageLock(torch.device("cuda"))
    other = CudaPageLock(torch.device("cuda"))
    assert lock.lock(tensor.data_ptr(), tensor.nbytes)
    with pytest.warns(UserWarning, match="could not be page-locked"):
        assert not other.lock(tensor.data_ptr(), tensor.nbytes)  # it is registered already
    assert float(torch.ones(3, device="cuda").sum()) == 3
    lock.unlock(tensor.data_ptr())


def test_draws_on_the_device_are_those_of_the_batch():
    device = torch.device("cuda")
    torch.rand(1, device=device)
    state = torch.cuda.get_rng_state()
    actual = []
    for batch in (0, 0, 1):
        with seeded_batch(1, 2, batch, device):
            actual.append(torch.rand(4, device=device).tolist())
    assert actual[0] == actual[1] != actual[2]
    assert torch.equal(torch.cuda.get_rng_state(), state)
