"""Held batches: the same batches and states, no wait and idle workers while they are used."""

from __future__ import annotations

import threading
import time
import warnings

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from lit_loader import DataLoader
from lit_loader.engine import Batches, EndOfEpoch
from lit_loader.errors import WorkerRestartWarning
from lit_loader.loader import data_loader
from lit_loader.loader.device.pin_thread import PinnedBatches
from lit_loader.loader.iterator import IterationHooks, TimedBatches
from tests.support.dying_sets import Dying
from tests.support.fake_backend import FakeBackend, plan, schedule
from tests.support.scheduled_set import Counted

BACKENDS = {
    "inline": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
}
every_backend = pytest.mark.parametrize("backend", BACKENDS)


class Noise(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.rand(2) + index


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(20):
            yield torch.rand(2)


def new_loader(dataset=None, **options):
    return DataLoader(Noise() if dataset is None else dataset, **{"batch_size": 4, "seed": 7, **options})


def batches_of(loader, holds=None):
    """Return the batches of an epoch; ``holds`` are numbers of batches to hold, by the batch before."""
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if holds and number in holds:
            loader.hold_batches(holds[number])
    return batches


def same(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


@every_backend
def test_batches_are_the_same_bits_in_the_same_order(backend):
    expected = batches_of(new_loader())
    with new_loader(**BACKENDS[backend]) as loader:
        # The last call asks for more batches than the epoch has left.
        assert same(batches_of(loader, {1: 3, 8: 2, 10: 5}), expected)
        assert same(batches_of(loader, {0: 1}), batches_of(new_loader_at(1)))


def new_loader_at(epoch, **options):
    loader = new_loader(**options)
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("backend", ["inline", "threads", "fork"])
def test_batches_of_a_stream_are_the_same(backend):
    expected = batches_of(new_loader(Stream(), **BACKENDS[backend]))
    assert same(batches_of(new_loader(Stream(), **BACKENDS[backend]), {0: 2, 2: 9}), expected)


@every_backend
@pytest.mark.parametrize("dataset", [Noise, Stream])
@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")  # samples of a stream are dropped
def test_state_within_held_batches_counts_the_received_ones(backend, dataset):
    expected = batches_of(new_loader(dataset(), **BACKENDS[backend]))
    with new_loader(dataset(), **BACKENDS[backend]) as loader:
        loader.hold_batches(3)
        iterator = iter(loader)
        for number in range(1, 4):
            next(iterator)
            resumed = new_loader(dataset(), **BACKENDS[backend])
            resumed.load_state_dict(loader.state_dict())
            with resumed:
                assert same(batches_of(resumed), expected[number:])


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_workers_are_idle_while_held_batches_are_used(method, tmp_path):
    dataset = Counted(tmp_path / "made", 64)
    loader = DataLoader(dataset, 1, seed=0, num_workers=2, worker_method=method)
    iterator = iter(loader)
    next(iterator)
    loader.hold_batches(4)
    next(iterator)
    # One batch before, four that are held, and six in flight.
    assert dataset.made == 11
    waited_s = loader.wait_s
    for _ in range(3):
        next(iterator)
        assert dataset.made == 11
    assert loader.wait_s == waited_s
    next(iterator)
    assert dataset.settled(12) == 12


def test_collecting_is_time_of_its_own():
    class Slow(Noise):
        def __getitem__(self, index):
            time.sleep(0.002)
            return super().__getitem__(index)

    loader = new_loader(Slow(), **BACKENDS["threads"])
    iterator = iter(loader)
    next(iterator)
    start_stats = loader.stats()
    loader.hold_batches(5)
    for _ in range(5):
        next(iterator)
    period = loader.stats() - start_stats
    assert period.wait_s == 0
    assert period.num_batches == 5
    # Five batches of four samples on two workers, and those in flight.
    assert period.hold_s > 5 * 4 * 0.002 / 2
    # The requests of collecting do not have the consumer's pace.
    assert (period.capacity, period.transfer_s) == (0, 0)


def test_error_of_a_held_batch_is_raised_in_its_turn():
    class Bad(Noise):
        def __getitem__(self, index):
            if index == 9:
                raise ValueError("bad")
            return super().__getitem__(index)

    for backend in BACKENDS.values():
        with new_loader(Bad(), **backend) as loader:
            loader.hold_batches(6)
            iterator = iter(loader)
            expected = batches_of(new_loader())
            assert same([next(iterator), next(iterator)], expected[:2])
            with pytest.raises(ValueError, match="bad"):
                next(iterator)
            assert same(list(iterator), expected[3:])


def test_worker_that_dies_while_batches_are_collected_is_replaced(tmp_path):
    dataset = Dying(48, tmp_path, {22: "kill"}, side=4)
    expected = [batch["noise"] for batch in new_loader(Dying(48, tmp_path, side=4))]
    loader = new_loader(dataset, **BACKENDS["fork"])
    loader.hold_batches(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        assert same([batch["noise"] for batch in loader], expected)
    assert loader.stats().num_restarts == 1


@every_backend
def test_epoch_may_be_left_with_batches_held(backend):
    with new_loader(**BACKENDS[backend]) as loader:
        loader.hold_batches(5)
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        assert next(iterator, None) is None
        assert same(batches_of(loader), batches_of(new_loader_at(1)))


def test_loader_may_be_closed_with_batches_held():
    loader = new_loader(**BACKENDS["fork"])
    loader.hold_batches(2)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    next(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


@pytest.mark.parametrize("backend", ["inline", "fork"])
def test_held_batches_pass_through_a_transfer_thread(backend, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(
        data_loader, "make_transfer", lambda *_, **__: lambda batches: PinnedBatches(batches, torch.clone)
    )
    loader = new_loader(**BACKENDS[backend])
    assert same(batches_of(loader, {0: 4, 7: 9}), batches_of(new_loader()))
    assert loader.stats().num_batches == 12
    wait_for_end("lit_loader-pin")


def wait_for_end(name):
    deadline = time.monotonic() + 10
    while any(thread.name == name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_timeout_does_not_let_collecting_wait_forever():
    release = threading.Event()

    class Stuck(Noise):
        def __getitem__(self, index):
            if index == 12:
                release.wait(20)
            return super().__getitem__(index)

    loader = new_loader(Stuck(), timeout=0.2, **BACKENDS["threads"])
    loader.hold_batches(1)
    iterator = iter(loader)
    batches = [next(iterator)]
    release.set()
    assert same([*batches, *iterator], batches_of(new_loader()))


def test_checks_see_each_batch_when_it_is_delivered():
    checked = []
    loader = new_loader()
    loader.check_batch = checked.append
    loader.hold_batches(3)
    iterator = iter(loader)
    batches = [next(iterator)]
    assert same(checked, batches)
    batches.append(next(iterator))
    assert same(checked, batches)


@pytest.mark.parametrize("num_batches", [-1, True, 1.5])
def test_number_of_batches_is_checked(num_batches):
    with pytest.raises(ValueError, match="num_batches"):
        new_loader().hold_batches(num_batches)


def test_loader_without_a_seed_refuses():
    with pytest.raises(ValueError, match="seed"):
        new_loader(seed=None).hold_batches(1)


def test_zero_withdraws_an_earlier_call():
    loader = new_loader()
    loader.hold_batches(4)
    loader.hold_batches(0)
    assert len(list(loader)) == 12
    assert loader.stats().hold_s == 0


class BackendWithWaiter(FakeBackend):
    """Lets another thread wait for idle workers while the consumer receives all results."""

    scheduler = None
    waiter = None

    def poll(self, epoch, timeout_s, number=None):
        if self.waiter is None and timeout_s != 0.0:
            self.waiter = threading.Thread(target=self.scheduler.wait_until_idle, daemon=True)
            self.waiter.start()
            # It waits for the lock, which this consumer has.
            time.sleep(0.05)
            while self.tasks:
                self.do()
        return super().poll(epoch, timeout_s, number)


def test_thread_that_loses_the_last_result_to_another_one_stops_waiting():
    backend = BackendWithWaiter()
    backend.scheduler = schedule(backend, plan(4))
    backend.scheduler.next_batch()
    backend.waiter.join(5)
    assert not backend.waiter.is_alive()


class Reversed(Sampler):
    def __iter__(self):
        time.sleep(0.03)
        return iter(range(47, -1, -1))

    def __len__(self):
        return 48


def test_start_of_an_epoch_is_waiting():
    with new_loader(num_workers=1, worker_method="thread", sampler=Reversed()) as loader:
        next(iter(loader))
        assert loader.wait_s >= 0.03


class SharedEngine(Batches):
    """Has one batch; while a thread collects it, another thread sees the end of the epoch."""

    def __init__(self):
        self.num_asked = 0
        self.collects = threading.Event()
        self.is_closed = threading.Event()

    def next_batch(self):
        self.num_asked += 1
        if self.num_asked == 1:
            self.collects.set()
            # The other thread waits for this one, and must not close the epoch meanwhile.
            self.is_closed.wait(0.1)
            return "last"
        raise EndOfEpoch

    def wait_until_idle(self):
        pass

    def close(self):
        self.is_closed.set()


def test_end_of_an_epoch_waits_for_the_thread_that_collects_its_last_batches():
    engine = SharedEngine()
    hooks = IterationHooks()
    batches = TimedBatches(engine, hooks)
    hooks.num_to_hold = 2
    results = []

    def take():
        try:
            results.append(batches.next_batch())
        except EndOfEpoch:
            results.append("end")
            batches.close()

    threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
    threads[0].start()
    assert engine.collects.wait(5)
    threads[1].start()
    for thread in threads:
        thread.join(5)
    assert sorted(results) == ["end", "last"]
