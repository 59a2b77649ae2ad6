"""Next uses, eviction and room in the cache, without a store."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lit_loader.storage.cache_file import CacheWriter
from lit_loader.storage.protocol import ALIGNMENT, State
from lit_loader.storage.schedule import FAR, Schedule, Stream
from tests.support.fetched_set import catalog_of

NUM_IMAGES = 40
CONNECTION = socket.socket()
CONNECTION.close()
TRAIN = (CONNECTION, 0)
EVAL = (CONNECTION, 1)


def slots_of(slots: Sequence[int]) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


def make_schedule(folder: Path, capacity: int) -> Schedule:
    catalog = catalog_of([1] * NUM_IMAGES)
    return Schedule(CacheWriter(folder, catalog, capacity * ALIGNMENT))


def fetch(schedule: Schedule, slot: int) -> None:
    schedule.cache.write(slot, b"x")
    schedule.note_ready(slot)


def read_ahead(schedule: Schedule, stream: Stream, window: int) -> int:
    """Fetch all images of the window for which there is room, and return their number."""
    num_fetched = 0
    while True:
        slot, distance, _ = schedule.next_absent(stream, window)
        if slot < 0 or not schedule.reserve(slot, distance):
            return num_fetched
        fetch(schedule, slot)
        num_fetched += 1


def misses_of_belady(order: Sequence[int], capacity: int) -> int:
    cached: set[int] = set()
    misses = 0
    for position, slot in enumerate(order):
        if slot not in cached:
            misses += 1
            if len(cached) == capacity:
                future = order[position:]
                cached.remove(max(cached, key=lambda slot: future.index(slot) if slot in future else FAR))
            cached.add(slot)
    return misses


def epochs(seed: int, num_epochs: int = 4) -> Iterator[list[int]]:
    generator = random.Random(seed)
    for epoch in range(num_epochs):
        weighted = generator.choices(range(NUM_IMAGES), weights=range(1, NUM_IMAGES + 1), k=NUM_IMAGES)
        yield weighted if (seed + epoch) % 2 else generator.sample(range(NUM_IMAGES), NUM_IMAGES)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("capacity", [4, 11, 30])
def test_eviction_misses_as_rarely_as_belady(tmp_path, seed, capacity):
    schedule = make_schedule(tmp_path, capacity)
    order = []
    for slots in epochs(seed):
        schedule.extend(TRAIN, slots_of(slots))
        order += slots
    stream = schedule.streams[TRAIN]
    misses = 0
    for position, slot in enumerate(order):
        misses += read_ahead(schedule, stream, 1)
        assert schedule.cache.state(slot) == State.READY
        assert schedule.cache.used_bytes <= capacity * ALIGNMENT
        schedule.deliver(TRAIN, position + 1)
    assert misses == misses_of_belady(order, capacity)


def test_window_bounds_reading_ahead(tmp_path):
    schedule = make_schedule(tmp_path, NUM_IMAGES)
    order = list(range(NUM_IMAGES))
    schedule.extend(TRAIN, slots_of(order))
    stream = schedule.streams[TRAIN]
    for delivered in range(NUM_IMAGES + 1):
        schedule.deliver(TRAIN, delivered)
        read_ahead(schedule, stream, 7)
        ready = np.flatnonzero(schedule.cache.mask(State.READY)).tolist()
        assert ready == order[: delivered + 7]


def test_images_needed_sooner_are_never_evicted(tmp_path):
    schedule = make_schedule(tmp_path, 5)
    schedule.extend(TRAIN, slots_of(range(NUM_IMAGES)))
    stream = schedule.streams[TRAIN]
    assert read_ahead(schedule, stream, 20) == 5
    assert not schedule.reserve(5, 5)
    schedule.deliver(TRAIN, 2)
    assert read_ahead(schedule, stream, 20) == 2
    assert np.flatnonzero(schedule.cache.mask(State.READY)).tolist() == [2, 3, 4, 5, 6]


def test_idle_stream_does_not_stop_another_one(tmp_path):
    schedule = make_schedule(tmp_path, 20)
    schedule.extend(EVAL, slots_of(range(20)))
    evaluation = schedule.streams[EVAL]
    assert read_ahead(schedule, evaluation, 20) == 20
    order = [*range(20, 40)] * 60
    schedule.extend(TRAIN, slots_of(order))
    stream = schedule.streams[TRAIN]
    for position, slot in enumerate(order):
        read_ahead(schedule, stream, 4)
        read_ahead(schedule, evaluation, 4)
        assert schedule.cache.state(slot) == State.READY
        schedule.deliver(TRAIN, position + 1)
    assert all(schedule.cache.state(slot) == State.READY for slot in range(4))


def test_ranks_share_images(tmp_path):
    schedule = make_schedule(tmp_path, NUM_IMAGES)
    for rank in range(4):
        schedule.extend((CONNECTION, rank), slots_of([*range(10), 10 + rank]))
    assert sum(read_ahead(schedule, stream, 99) for stream in schedule.streams.values()) == 14


def test_requested_image_always_gets_room_and_stays_until_read(tmp_path):
    schedule = make_schedule(tmp_path, 5)
    schedule.extend(TRAIN, slots_of(range(5)))
    read_ahead(schedule, schedule.streams[TRAIN], 5)
    for slot in range(10, 14):
        assert schedule.reserve(slot, 0, is_requested=True)
        fetch(schedule, slot)
    # The images that were needed last have gone, and the stream fetches them again when there is room.
    ready = np.flatnonzero(schedule.cache.mask(State.READY)).tolist()
    assert ready == [0, 10, 11, 12, 13]
    assert schedule.streams[TRAIN].issued == 1
    assert schedule.reserve(14, 0, is_requested=True)
    # Of images that were asked for, the oldest one goes.
    assert schedule.reserve(15, 0, is_requested=True)
    assert np.flatnonzero(schedule.cache.mask(State.READY)).tolist() == [11, 12, 13]


def test_requests_wait_while_all_images_are_pending(tmp_path):
    schedule = make_schedule(tmp_path, 4)
    for slot in range(4):
        assert schedule.reserve(slot, 0, is_requested=True)
    assert not schedule.reserve(4, 0, is_requested=True)
    fetch(schedule, 2)
    assert schedule.reserve(4, 0, is_requested=True)
    assert schedule.cache.state(2) == State.ABSENT


def test_requested_image_may_be_evicted_after_some_time(tmp_path, monkeypatch):
    schedule = make_schedule(tmp_path, 4)
    for slot in range(4):
        schedule.reserve(slot, 0, is_requested=True)
        fetch(schedule, slot)
    assert not schedule.reserve(9, 0)
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    schedule.expire_requests()
    assert schedule.reserve(9, 0)


def test_full_disk_lowers_the_budget_for_some_time(tmp_path, monkeypatch):
    schedule = make_schedule(tmp_path, 20)
    schedule.extend(TRAIN, slots_of(range(20)))
    read_ahead(schedule, schedule.streams[TRAIN], 20)
    schedule.shrink_by(3 * ALIGNMENT)
    assert schedule.cache.used_bytes == 17 * ALIGNMENT
    assert np.flatnonzero(schedule.cache.mask(State.READY)).tolist() == [*range(17)]
    for _ in range(20):
        schedule.shrink_by(3 * ALIGNMENT)
    assert schedule.cache.used_bytes == 4 * ALIGNMENT
    assert schedule.reserve(30, 0, is_requested=True)
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    schedule.restore_budget()
    assert schedule.budget == 20 * ALIGNMENT


def test_samples_without_stored_image_are_passed(tmp_path):
    schedule = make_schedule(tmp_path, NUM_IMAGES)
    schedule.extend(TRAIN, slots_of([-1, 3, -1, 3, 4]))
    stream = schedule.streams[TRAIN]
    assert read_ahead(schedule, stream, 99) == 2
    schedule.deliver(TRAIN, 99)
    assert (stream.delivered, stream.issued) == (5, 5)


@pytest.mark.parametrize("slots", [[0, NUM_IMAGES], [-2, 0]])
def test_slots_outside_of_catalog_are_refused(tmp_path, slots):
    with pytest.raises(ValueError, match=f"not in a catalog of {NUM_IMAGES}"):
        make_schedule(tmp_path, NUM_IMAGES).extend(TRAIN, slots_of(slots))


def test_distances_over_many_small_extensions_equal_a_scan():
    generator = random.Random(0)
    stream = Stream()
    order: list[int] = []
    for _ in range(30):
        slots = [generator.randrange(-1, 12) for _ in range(generator.randrange(9))]
        order += slots
        stream.extend(slots_of(slots))
        previous = stream.delivered
        delivered = min(len(order), previous + generator.randrange(9))
        assert stream.deliver(delivered).tolist() == order[previous:delivered]
        future = order[delivered:]
        expected = [future.index(slot) if slot in future else FAR for slot in range(12)]
        assert stream.distances(slots_of(range(12))).tolist() == expected
        assert stream.between(delivered, len(order)).tolist() == future
