"""Workers under stress: queued tasks, kept passes, collected iterators, threads, forks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import psutil
import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

from lit_loader import DataLoader
from lit_loader.engine import worker_process
from lit_loader.errors import WorkerDiedError
from tests.support.toys import Drawing, Slow, Stream, plain


def test_a_loop_broken_off_with_much_queued_ends_at_once():
    """Index lists fill the pipes; the word to stop must not wait behind them."""

    loader = DataLoader(range(10**6), batch_size=100_000, num_workers=2, prefetch_factor=4, collate_fn=len)
    iterator = iter(loader)
    next(iterator)
    start = time.monotonic()
    del iterator
    assert time.monotonic() - start < 4.5  # before force would be used


def test_a_broken_off_pass_leaves_no_work_to_kept_workers():
    with DataLoader(Slow(0.4, 40), num_workers=1, prefetch_factor=8, persistent_workers=True, seed=1) as loader:
        for _ in loader:
            break
        start = time.monotonic()
        next(next_iterator := iter(loader))
        assert time.monotonic() - start < 2  # eight stale samples would take 3.2 s
        del next_iterator


class Closing(IterableDataset):
    """Writes down when its generator is closed."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        try:
            while True:
                yield 0
        finally:
            self.path.touch()


def test_a_broken_off_stream_is_closed_in_kept_workers(tmp_path):
    with DataLoader(Closing(tmp_path / "closed"), num_workers=1, persistent_workers=True, seed=1) as loader:
        for _ in loader:
            break
        deadline = time.monotonic() + 5
        while not (tmp_path / "closed").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / "closed").exists()


def test_stop_is_heard_between_samples():
    iterator = iter(DataLoader(Slow(0.8, 40), num_workers=1, prefetch_factor=10, seed=1))
    next(iterator)
    start = time.monotonic()
    del iterator
    assert time.monotonic() - start < 3


def test_a_handler_of_the_main_process_does_not_shield_workers():
    outer = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        iterator = iter(DataLoader(Slow(30.0, 4), num_workers=1, seed=1, timeout=0.3, max_worker_restarts=0))
        earlier_children = set(psutil.Process().children())
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
        (worker,) = set(psutil.Process().children()) - earlier_children
        worker.terminate()
        with pytest.raises(WorkerDiedError, match="SIGTERM"):
            for _ in range(20):
                try:
                    next(iterator)
                except WorkerDiedError:
                    raise
                except RuntimeError:
                    continue
    finally:
        signal.signal(signal.SIGTERM, outer)


class Forking(Dataset):
    """A sample forks a helper, which keeps the worker's descriptors open, and then the worker dies."""

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            if os.fork() == 0:
                os.read(self.reader, 1)
                os._exit(0)
            os._exit(3)
        return index


@pytest.mark.parametrize("seed", [pytest.param(None, marks=pytest.mark.soak), 1])
def test_a_death_is_seen_though_a_process_the_worker_forked_lives_on(seed):
    reader, writer = os.pipe()
    try:
        with pytest.raises(WorkerDiedError, match="exit code 3"):  # otherwise this would hang
            list(DataLoader(Forking(reader), num_workers=1, seed=seed, max_worker_restarts=0))
    finally:
        os.write(writer, b"!")
        os.close(reader)
        os.close(writer)


def test_iterators_collected_in_the_middle_of_anything_do_no_harm():
    """Finalizers of abandoned iterators, in cycles, run at every point of the others' calls."""
    loader = DataLoader(Drawing(60), batch_size=2, num_workers=2, persistent_workers=True, shuffle=True, seed=1)
    expected = DataLoader(Drawing(60), batch_size=2, shuffle=True, seed=1)
    threshold = gc.get_threshold()
    try:
        for step in range(12):
            gc.set_threshold(7 + 3 * step)
            abandoned = iter(loader)
            next(abandoned)
            cycle = [abandoned]
            cycle.append(cycle)
            del abandoned, cycle
            expected.set_epoch(2 * step + 1)
            assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]
    finally:
        gc.set_threshold(*threshold)
        gc.collect()
        loader.close()


@pytest.mark.parametrize("worker_method", ["multiprocessing", "thread"])
def test_threads_that_share_an_iterator_share_one_epoch(worker_method):
    for epoch in range(3):
        loader = DataLoader(range(64), batch_size=4, num_workers=2, worker_method=worker_method, seed=1)
        loader.set_epoch(epoch)
        iterator = iter(loader)
        indices = []
        start = threading.Barrier(4)

        def take(iterator=iterator, indices=indices, start=start):
            start.wait()
            for batch in iterator:
                indices.extend(batch.tolist())

        with ThreadPoolExecutor(4) as pool:
            wait([pool.submit(take) for _ in range(4)], 60)
        assert sorted(indices) == list(range(64))
        assert loader.state_dict()["epoch"] == epoch + 1


def test_closing_while_another_thread_waits_ends_its_wait_with_an_error(monkeypatch):
    monkeypatch.setattr(worker_process, "_GRACE_S", 0.3)
    loader = DataLoader(Slow(20.0), num_workers=1, seed=1)
    iterator = iter(loader)
    seen = []

    def wait():
        try:
            next(iterator)
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.5)
    loader.close()
    thread.join(10)
    assert len(seen) == 1
    assert isinstance(seen[0], RuntimeError)


def test_ctrl_c_while_closing_still_ends_the_workers():
    loader = DataLoader(Slow(30.0), num_workers=2, seed=1, timeout=0.2)
    earlier_children = set(psutil.Process().children())
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    workers = set(psutil.Process().children()) - earlier_children
    assert len(workers) == 2
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            loader.close()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not set(psutil.Process().children()) & workers


def count_one(path):
    with path.open("ab", buffering=0) as file:
        file.write(b".")


class Restarted(IterableDataset):
    """A dataset whose iterator would start over after its end, and counts the calls."""

    def __init__(self, calls):
        self.asked = calls

    def __iter__(self):
        self.count = 0
        return self

    def __next__(self):
        count_one(self.asked)
        self.count += 1
        if self.count % 4 == 0:
            raise StopIteration
        return self.count


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_a_worker_whose_stream_ended_gives_no_more(seed, tmp_path):
    arguments = {"batch_size": None, "num_workers": 2, "prefetch_factor": 8}
    actual = list(DataLoader(Restarted(tmp_path / "ours"), **arguments, **seed))
    assert actual == list(TorchDataLoader(Restarted(tmp_path / "torchs"), **arguments)) == [1, 1, 2, 2, 3, 3]
    assert (tmp_path / "ours").stat().st_size == 8  # each worker once past its end


def test_an_iterator_that_lightning_forgot_is_replaced_on_the_same_workers():
    loader = DataLoader(Stream(4, uneven=0), batch_size=None, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    earlier_children = set(psutil.Process().children())
    loader._iterator = None
    assert len(list(loader)) == 4
    assert set(psutil.Process().children()) == earlier_children
    loader.close()
