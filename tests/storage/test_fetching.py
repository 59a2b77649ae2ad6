"""Requests to a store: images that share one, their order and their results."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lit_loader.storage import fetching
from lit_loader.storage.cache_file import CacheFile, CacheWriter
from lit_loader.storage.fetching import REQUEST_BYTES, Fetcher, Job, Neighbours
from lit_loader.storage.protocol import State
from lit_loader.storage.settings import StorageSettings
from tests.support.fetched_set import catalog_of


def run_of(neighbours: Neighbours, slot: int, due: set[int]) -> list[int]:
    slots = neighbours.of(slot)
    return neighbours.around(slot, slots, np.isin(slots, list(due)))


def test_raw_images_have_no_neighbours():
    assert not Neighbours(catalog_of([5] * 10)).exist


def test_due_neighbours_share_a_request():
    neighbours = Neighbours(catalog_of([5000] * 20, per_object=10))
    assert neighbours.of(3).tolist() == list(range(10))
    assert neighbours.of(10).tolist() == list(range(10, 20))
    assert run_of(neighbours, 3, set(range(10))) == list(range(10))
    assert run_of(neighbours, 3, {1, 2, 3, 5}) == [1, 2, 3]
    assert run_of(neighbours, 3, {3}) == [3]
    assert run_of(neighbours, 9, {0, 8, 9}) == [8, 9]


def test_images_with_a_large_gap_have_their_own_requests():
    neighbours = Neighbours(catalog_of([5000] * 20, per_object=10, gap=5000))
    assert run_of(neighbours, 3, set(range(10))) == [3]


@pytest.mark.parametrize("length", [50_000, REQUEST_BYTES - 1, REQUEST_BYTES, 3 * REQUEST_BYTES])
def test_requests_have_bounded_size_and_cover_all_images_once(length):
    catalog = catalog_of([length] * 200, per_object=100)
    neighbours = Neighbours(catalog)
    absent = set(range(200))
    num_requests = 0
    while absent:
        run = run_of(neighbours, min(absent), absent)
        assert absent.issuperset(run)
        absent.difference_update(run)
        num_requests += 1
        num_bytes = int(catalog.starts[run[-1]] + length - catalog.starts[run[0]])
        assert num_bytes <= REQUEST_BYTES + length
    assert num_requests <= 2 * (100 * (length + 512) // REQUEST_BYTES + 1)


def test_order_of_slots_need_not_be_that_of_bytes():
    catalog = catalog_of([100] * 8, per_object=4)
    permutation = np.array([5, 0, 7, 3, 1, 6, 2, 4])
    for name in ("object_of", "starts"):
        getattr(catalog, name)[:] = getattr(catalog, name)[permutation]
    neighbours = Neighbours(catalog)
    assert permutation[run_of(neighbours, 0, set(range(8)))].tolist() == [4, 5, 6, 7]


class FakeStore:
    """Store whose objects are zeros; replies wait until `is_open` is set.

    Args:
        size: Bytes of each object.
        e_tag: ETag of each object.
        error: Raised by all requests.
    """

    def __init__(self, size: int, *, e_tag: str | None = None, error: Exception | None = None) -> None:
        self.size = size
        self.e_tag = e_tag
        self.error = error
        self.is_open = threading.Event()
        self.requests: list[tuple[str, dict[str, Any] | None]] = []

    def get(self, name: str, *, options: dict[str, Any] | None = None) -> SimpleNamespace:
        self.requests.append((name, options))
        self.is_open.wait()
        if self.error is not None:
            raise self.error
        first, end = (options or {}).get("range", (0, self.size))
        end = min(end, self.size)
        meta = {"size": self.size, "e_tag": self.e_tag}
        return SimpleNamespace(meta=meta, range=(first, end), bytes=lambda: bytes(end - first))


def fetch(fetcher: Fetcher, store: FakeStore, *jobs: Job) -> None:
    """Open the store, and wait until jobs are finished."""
    store.is_open.set()
    finished: list[Job] = []
    while len(finished) < len(jobs):
        fetcher.wakeup.settimeout(60)
        fetcher.wakeup.recv(1, fetching.socket.MSG_PEEK)
        finished += fetcher.finished()
    fetcher.close()
    for thread in threading.enumerate():
        if thread.name.startswith("lit_loader_fetch"):
            thread.join()
    for end in (fetcher.wakeup, fetcher.signal):
        end.close()


def make_fetcher(
    monkeypatch: pytest.MonkeyPatch, folder: Path, store: FakeStore, *, num_connections: int = 1, **catalog: Any
) -> Fetcher:
    """Return a fetcher, by default with one thread, of six images of 50 bytes that are PENDING."""
    monkeypatch.setattr(fetching, "open_store", lambda _: store)
    cache = CacheWriter(folder, catalog_of([50] * 6, **catalog), 1 << 20)
    cache.catalog.save(folder / "catalog.arrow")
    for slot in range(6):
        cache.reserve(slot)
    settings = StorageSettings(url="s3://bucket/set", options={"token": "HIDDEN"}, num_connections=num_connections)
    return Fetcher(settings, cache)


def test_urgent_requests_overtake_waiting_ones(monkeypatch, tmp_path):
    store = FakeStore(50)
    fetcher = make_fetcher(monkeypatch, tmp_path, store)
    jobs = [fetcher.submit([slot], is_urgent=slot == 5) for slot in range(6)]
    while not store.requests:
        pass
    fetch(fetcher, store, *jobs)
    names = [name for name, _ in store.requests]
    assert names.index("set/5.bin") <= 1
    assert [name for name in names if name != "set/5.bin"] == [f"set/{slot}.bin" for slot in range(5)]


def test_threads_that_the_system_refuses_leave_the_work_to_the_others(monkeypatch, tmp_path):
    start = threading.Thread.start
    started = []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    store = FakeStore(50)
    fetcher = make_fetcher(monkeypatch, tmp_path, store, num_connections=3)
    job = fetcher.submit([1], is_urgent=False)
    fetch(fetcher, store, job)
    assert job.error is None


def test_images_of_a_shard_are_parts_of_one_range(monkeypatch, tmp_path):
    store = FakeStore(10_000)
    fetcher = make_fetcher(monkeypatch, tmp_path, store, per_object=6)
    job = fetcher.submit([1, 2, 3], is_urgent=False)
    fetch(fetcher, store, job)
    first = 2 * 512 + 50
    assert store.requests == [("set/0.bin", {"range": (first, first + 3 * 50 + 2 * 512)})]
    cache = CacheFile(tmp_path)
    assert job.error is None
    assert [cache.state(slot) for slot in range(6)] == [1, 2, 2, 2, 1, 1]
    assert cache.try_read(2) == bytes(50)


@pytest.mark.parametrize(
    ("version", "e_tag", "condition"),
    [('"a"', '"a"', '"a"'), ("a", '"a"', '"a"'), ('W/"a"', 'W/"a"', None), ("", '"a"', None), ('"a"', None, '"a"')],
)
def test_unchanged_objects_have_their_etag(monkeypatch, tmp_path, version, e_tag, condition):
    store = FakeStore(50, e_tag=e_tag)
    fetcher = make_fetcher(monkeypatch, tmp_path, store, versions=[version] * 6)
    job = fetcher.submit([1], is_urgent=False)
    fetch(fetcher, store, job)
    assert job.error is None
    assert store.requests == [("set/1.bin", condition and {"if_match": condition})]


@pytest.mark.parametrize(
    ("store", "per_object", "reason"),
    [
        (FakeStore(51), 1, "has changed while the run was reading it (51 instead of 50 bytes)"),
        (FakeStore(50, e_tag='"b"'), 1, 'has changed while the run was reading it (ETag "b" instead of "a")'),
        (FakeStore(1500), 6, "has changed while the run was reading it (it ends 186 bytes too early)"),
        (FakeStore(50, error=ValueError("https://a.b/c?sig=SECRET HIDDEN")), 1, "https://a.b/c?*** ***"),
        (FakeStore(50, error=FileNotFoundError("x")), 1, "does not exist (404)"),
    ],
)
def test_failed_requests_leave_images_pending_with_a_reason(monkeypatch, tmp_path, store, per_object, reason):
    fetcher = make_fetcher(monkeypatch, tmp_path, store, per_object=per_object, versions=['"a"'] * (6 // per_object))
    job = fetcher.submit([1, 2] if per_object > 1 else [1], is_urgent=False)
    fetch(fetcher, store, job)
    assert job.error is not None
    assert job.error.startswith(f"s3://bucket/set/set/{0 if per_object > 1 else 1}.bin")
    assert reason in job.error
    assert "HIDDEN" not in job.error
    assert CacheFile(tmp_path).state(1) == State.PENDING
