"""Guarantee: worker threads end when their loader does, and a stuck sample is left behind."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.engine import threads as thread_backend


def workers():
    return {t.name for t in threading.enumerate() if t.name.startswith("lit_loader-worker") and t.is_alive()}


def gone(within_s=2.0):
    deadline = time.monotonic() + within_s
    while workers():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def threads(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, "worker_method": "thread", "seed": 1, **arguments})


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("persistent", [False, True])
class TestWorkersEnd:
    def loader(self, seed, persistent):
        return threads(range(24), seed=seed, persistent_workers=persistent)

    def test_when_the_loop_is_broken_off(self, seed, persistent):
        loader = self.loader(seed, persistent)
        for _ in loader:
            assert len(workers()) == 2
            break
        assert gone(0.5) is not persistent
        loader.close()
        assert gone()

    def test_when_the_epoch_is_over(self, seed, persistent):
        loader = self.loader(seed, persistent)
        list(loader)
        assert gone(0.5) is not persistent
        list(loader)
        loader.close()
        assert gone()

    def test_when_the_loader_is_collected(self, seed, persistent):
        loader = self.loader(seed, persistent)
        iterator = iter(loader)
        next(iterator)
        del iterator, loader
        assert gone()

    def test_at_once_although_an_error_was_raised(self, seed, persistent):
        """No cycle of an error and its frames waits for the garbage collector."""
        loader = threads(Broken(), seed=seed, persistent_workers=persistent)
        iterator = iter(loader)
        gc.disable()
        try:
            try:
                next(iterator)
            except ZeroDivisionError:
                pass
            else:
                pytest.fail("nothing was raised")
            del iterator, loader
            assert gone()
        finally:
            gc.enable()

    def test_when_their_iterator_is_collected_from_a_cycle(self, seed, persistent):
        loader = self.loader(seed, persistent)
        knot = [iter(loader), loader]
        next(knot[0])
        knot.append(knot)
        del knot, loader
        gc.collect()
        assert gone()

    def test_and_a_closed_loader_starts_new_ones(self, seed, persistent):
        loader = self.loader(seed, persistent)
        next(iterator := iter(loader))
        loader.close()
        assert gone()
        with pytest.raises((RuntimeError, StopIteration)):
            for _ in range(14):
                next(iterator)
        assert len(list(loader)) == 12
        loader.close()

    def test_a_copy_of_an_iterated_loader_has_workers_of_its_own(self, seed, persistent):
        loader = self.loader(seed, persistent)
        iterator = iter(loader)
        first = [next(iterator).tolist()]
        copies = [copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
        for twin in copies:
            assert len(list(twin)) == 12
            twin.close()
        first += [batch.tolist() for batch in iterator]
        assert sorted(sample for batch in first for sample in batch) == list(range(24))
        loader.close()


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return 1 / 0


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
    done = threading.Thread(target=next, args=(iterator,))
    del iterator, loader
    done.start()
    done.join(10)
    assert gone()
    assert time.monotonic() - start < 4


def test_a_stuck_sample_is_left_behind_after_one_grace_for_all(monkeypatch):
    monkeypatch.setattr(thread_backend, "_GRACE_S", 0.3)
    release = threading.Event()

    class Stuck(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            release.wait(20)
            return index

    loader = threads(Stuck(), num_workers=4, timeout=0.1)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    start = time.monotonic()
    loader.close()
    assert 0.25 < time.monotonic() - start < 1.0  # four graces would be 1.2 s
    assert len(workers()) == 4
    release.set()
    assert gone()


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.rand(3)


def test_a_kept_batch_outlives_its_threads():
    loader = threads(Rows(), persistent_workers=True)
    kept = list(loader)
    copies = [batch.clone() for batch in kept]
    list(loader)
    loader.close()
    del loader
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
