"""Guarantee: worker threads end when their loader does, and a stuck sample is left behind."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader.engine import threads as thread_backend
from tests.support.in_threads import Calls
from tests.support.in_threads import batched_threads as threads


def workers():
    return {t.name for t in threading.enumerate() if t.name.startswith("lit_loader-worker") and t.is_alive()}


def gone(within_s=2.0):
    deadline = time.monotonic() + within_s
    while workers():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Collecting(Dataset):
    """A sample that lets go of another loader's iterator, the last reference in the thread of a worker."""

    def __init__(self):
        self.knots = []

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.knots:
            self.knots.clear()
            gc.collect()
        return index


def test_an_iterator_may_be_collected_in_a_worker_thread():
    for persistent in (False, True):
        dataset = Collecting()
        mine = threads(dataset)
        other = threads(range(6), persistent_workers=persistent)
        iterator = iter(other)
        next(iterator)
        knot = [iterator, other]
        knot.append(knot)
        dataset.knots.append(knot)
        del iterator, other, knot
        start = time.monotonic()
        assert len(list(mine)) == 3
        assert gone()
        assert time.monotonic() - start < 4


class Dropping(Dataset):
    """A sample that drops the iterator that it is made for."""

    def __init__(self):
        self.box = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.box.clear()
        return index


def test_a_pool_may_be_collected_in_a_thread_of_its_own():
    dataset = Dropping()
    loader = threads(dataset, prefetch_factor=4, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    dataset.box += [iterator, loader]
    iterator = iter(loader)
    dataset.box.append(iterator)
    start = time.monotonic()
    consumer = threading.Thread(target=next, args=(iterator,))
    del iterator, loader
    consumer.start()
    consumer.join(10)
    assert gone()
    assert time.monotonic() - start < 4


def test_a_stuck_sample_is_left_behind_after_one_grace_for_all(monkeypatch):
    monkeypatch.setattr(thread_backend, "_GRACE_S", 0.3)
    release = threading.Event()

    loader = threads(Calls(lambda index: release.wait(20)), num_workers=4, timeout=0.1)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    start = time.monotonic()
    loader.close()
    assert 0.25 < time.monotonic() - start < 1.0  # four graces would be 1.2 s
    assert len(workers()) == 4
    release.set()
    assert gone()


def test_a_kept_batch_outlives_its_threads():
    loader = threads(Calls(lambda index: torch.rand(3), 24), persistent_workers=True)
    batches = list(loader)
    copies = [batch.clone() for batch in batches]
    list(loader)
    loader.close()
    del loader
    assert all(torch.equal(a, b) for a, b in zip(batches, copies, strict=True))
