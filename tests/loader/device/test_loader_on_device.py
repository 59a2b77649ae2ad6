"""The loader with a device: the same batches and errors as without, from every backend, on a simulated one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils.data import Dataset

import lit_loader.loader.data_loader
from lit_loader import DataLoader
from tests.support.in_threads import Calls
from tests.support.simulated_device import SimulatedDevice, bare, present
from tests.support.toys import outcomes

BACKENDS = {
    "inline": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "thread": {"num_workers": 2, "worker_method": "thread"},
}
each_backend = pytest.mark.parametrize("workers", BACKENDS.values(), ids=BACKENDS)


class Drawn(Dataset):
    """Two tensors a batch: indices and draws."""

    def __init__(self, length, fails_at=-1):
        self.length = length
        self.fails_at = fails_at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.fails_at:
            raise ValueError(f"sample {index} cannot be read")
        return {"index": index, "torch": torch.rand(3)}


@pytest.fixture
def simulated(monkeypatch):
    return present(monkeypatch)


def events(loader):
    """Return values of batches, and errors, in the order they come."""
    results = outcomes(iter(loader))
    return [str(item).splitlines()[-1] if isinstance(item, Exception) else item["torch"].tolist() for item in results]


@each_backend
@pytest.mark.parametrize("seed", [None, 4])
def test_batches_and_errors_are_those_of_no_device(simulated, workers, seed):
    torch.manual_seed(0)
    plain_events = events(DataLoader(Drawn(12, fails_at=5), batch_size=2, seed=seed, **workers))
    torch.manual_seed(0)
    with DataLoader(Drawn(12, fails_at=5), batch_size=2, seed=seed, device="cuda", **workers) as loader:
        assert events(loader) == plain_events
    assert len(plain_events) == 6
    assert simulated.copies == 5 * 2  # none twice, and none of the batch that failed


@each_backend
def test_epochs_follow_each_other_as_without_a_device(simulated, workers):
    settings = {"batch_size": 4, "shuffle": True, "seed": 4, **workers}
    persistent = {"persistent_workers": True} if workers else {}
    with DataLoader(Drawn(12), **settings) as without:
        expected = [events(without) for _ in range(3)]
    with DataLoader(Drawn(12), device="cuda", **settings, **persistent) as loader:
        first = iter(loader)
        next(first)
        next(first)  # the batch taken ahead is dropped, and claims no epoch
        del first
        actual = [events(loader) for _ in range(2)]
    assert actual == expected[1:]


def test_page_locked_slots_are_the_source_of_copies(simulated, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    log = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: log.append("pinned") or tensor)
    copy_to_device = simulated.copy_to_device
    simulated.copy_to_device = lambda tensor: log.append("copy_to_device") or copy_to_device(tensor)
    loader = DataLoader(Drawn(2), batch_size=2, seed=1, pin_memory=True, device="cuda")
    monkeypatch.setattr(lit_loader.loader.data_loader, "find_page_lock", lambda *_: None)
    next(iter(loader))
    assert log == ["pinned"] * 2 + ["copy_to_device"] * 2


class Locked:
    """Page-locks whatever it is asked to, and lets slots go as soon as their batches have died."""

    def __init__(self):
        self.locked = 0

    def lock(self, address, num_bytes):
        self.locked += 1
        return True

    def unlock(self, address):
        return True


def test_slots_of_worker_processes_are_kept_until_late_copies_out_of_them_have_ended(monkeypatch):
    device = present(monkeypatch, SimulatedDevice, pace=0.3)
    page_lock = Locked()
    wrong = []
    monkeypatch.setattr(lit_loader.loader.data_loader, "find_page_lock", lambda *_: page_lock)

    def check(first, memory):
        if not torch.equal(memory, torch.arange(first, first + 4).view(4, 1).expand(4, 5000)):
            wrong.append(first)

    samples = Calls(lambda index: torch.full((5000,), index), 800)
    with DataLoader(samples, batch_size=4, seed=1, device="cuda", **BACKENDS["fork"]) as loader:
        for number, batch in enumerate(loader):
            device.queue(partial(check, 4 * number, bare(batch)))
        device.drain()
    assert wrong == []
    assert page_lock.locked > 0
