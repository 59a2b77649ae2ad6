"""Guarantee: however an epoch ends, every slot becomes free and no memory grows."""

from __future__ import annotations

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader.errors import WorkerDiedError
from tests.support.slot_sets import Large, is_right, loader_of, num_mappings, num_slots, slots_of, used_bytes
from tests.support.toys import outcomes

WAYS = {"whole": {}, "seeded": {"seed": 1}, "in order of arrival": {"in_order": False}}
each_way = pytest.mark.parametrize("arguments", WAYS.values(), ids=WAYS)


@each_way
def test_loops_that_are_broken_off_give_back_what_was_not_delivered(arguments):
    gc.collect()
    num_before = num_mappings()  # a batch that an earlier test's report still holds
    with loader_of(Large(200), **arguments) as loader:
        counts = []
        for number in range(40):
            for batch, _ in zip(loader, range(number % 4), strict=False):
                assert is_right(batch)
            for batch in loader:
                assert is_right(batch)
                break
            iterator = iter(loader)
            next(iterator)
            del iterator
            counts.append((num_slots(loader), len(os.listdir("/proc/self/fd"))))
        for batch in loader:
            assert is_right(batch)
        del batch
        assert counts[-1][0] < 120  # of more than 400 that were dealt
        assert len({fds for _, fds in counts[3:]}) == 1
        gc.collect()
        assert num_mappings() - num_before <= num_slots(loader)


class Failing(Large):
    def __getitem__(self, index):
        if index % 16 == 7:
            raise ArithmeticError(f"sample {index}")
        return super().__getitem__(index)


def fail_sometimes(samples):
    if samples[0][2] % 24 == 0:
        raise LookupError("this batch")
    tensors, arrays, indices = zip(*samples, strict=True)
    return [torch.stack(tensors), np.stack(arrays), indices[0]]


def unpicklable_sometimes(samples):
    return (samples[0][0], lambda: None) if samples[0][2] % 8 == 0 else samples[0][0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Failing(200)},
        {"dataset": Failing(200), "seed": 1},
        {"dataset": Large(200), "collate_fn": fail_sometimes},
        {"dataset": Large(200), "collate_fn": unpicklable_sometimes},
    ],
    ids=["sample", "sample, seeded", "collate function", "result"],
)
def test_errors_give_their_slots_back(arguments):
    with loader_of(**arguments) as loader:
        counts = []
        errors = 0
        for _ in range(4):
            errors += sum(isinstance(outcome, Exception) for outcome in outcomes(iter(loader)))
            counts.append(num_slots(loader))
        assert errors >= 20
        assert counts[-1] < 40  # of 200
        assert used_bytes(slots_of(loader)) < 40 << 20


class Deadly(Large):
    def __getitem__(self, index):
        if index == 60:
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@each_way
def test_batches_held_when_a_worker_dies_stay_valid(arguments):
    gc.collect()
    num_before = num_mappings()
    loader = loader_of(Deadly(), max_worker_restarts=0, **arguments)
    live_batches = []
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        live_batches.extend(loader)
    assert all(is_right(batch) for batch in live_batches)
    live_batches[:] = [[tensor.add_(1) for tensor in batch] for batch in live_batches]
    assert all(is_right(batch) for batch in live_batches)
    loader.close()
    live_batches.clear()
    del loader
    gc.collect()
    assert num_mappings() == num_before


class Endless(IterableDataset):
    def __iter__(self):
        number = 0
        sample = None
        while True:
            sample = Large()[number]  # a generator holds on to its last sample
            yield sample
            number += 1


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("seed", [None, 2])
def test_streams_come_through_slots_and_may_be_left(batch_size, seed):
    with loader_of(Endless(), batch_size, seed=seed) as loader:
        for _ in range(6):
            batches = []
            for batch, _ in zip(loader, range(20), strict=False):
                batches.append(batch)
            for batch in batches:
                unbroken = batch if batch_size else [batch[0][None], batch[1][None], torch.tensor([batch[2]])]
                assert is_right(unbroken)
            del batches, batch, unbroken
        assert num_slots(loader) < 70  # of more than 120


def test_threads_that_share_a_loader_get_right_batches_each():
    with loader_of(Large(120), seed=4) as loader:
        next(iter(loader))
        wrong = []
        counts = []

        def iterate():
            live_batches = []
            for batch in loader:
                live_batches = [batch, *live_batches[:4]]
                wrong.extend(0 for live_batch in live_batches if not is_right(live_batch))
                counts.append(1)

        with ThreadPoolExecutor(3) as pool:
            wait(pool.submit(iterate) for _ in range(3))
        assert wrong == []
        assert len(counts) == 90
        assert num_slots(loader) <= 60


class Interrupt(BaseException):
    pass


def test_interrupts_at_any_moment_spoil_no_batch():
    """A signal handler may raise between any two statements; the workers are closed, and batches that are held stay."""
    rounds = 0
    interrupts = 0
    wrong = 0

    def interrupt(*_):
        if armed:
            raise Interrupt

    armed = False
    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    live_batches = []
    gc.disable()  # an error raised in another library's callback of the collector would only be printed
    try:
        for number in range(25):
            loader = loader_of(Large(400), num_workers=1)
            try:
                iterator = iter(loader)
                next(iterator)
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0007 * (number % 12))
                live_batches.extend(iterator)
                armed = False
            except Interrupt:
                interrupts += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            wrong += sum(not is_right(batch) for batch in live_batches)
            live_batches = live_batches[-5:]
            rounds += 1
            loader.close()
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # the timeout of the tests
    assert wrong == 0
    assert interrupts > rounds / 2
