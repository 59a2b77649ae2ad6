"""Building a decoded cache: once, within its budget, and without a trace of a build that was broken off."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from lit_loader.datasets import MAX_PIXELS, CacheSettings, DetectionDataset, decode_image
from lit_loader.datasets.decoded import CachedReader
from lit_loader.datasets.decoded.building import building
from lit_loader.datasets.decoded.settings import byte_count
from lit_loader.datasets.reading import ImageReading
from lit_loader.errors import CacheError
from tests.drawn_set import SIZE, draw_set

KINDS = ("ram", "disk")
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


class SlowReader:
    """Decodes after a while, says so in a file that processes share, and gets stuck after ``most`` images."""

    max_pixels, exif_orientation = MAX_PIXELS, True

    def __init__(self, told, *, seconds=0.0, most=None):
        self.told, self.seconds, self.most = str(told), seconds, most

    def read(self, path):
        time.sleep(self.seconds if self.most is None or os.path.getsize(self.told) < self.most else 3600)
        with open(self.told, "a") as file:
            file.write(".")
        return decode_image(path)


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set")


@pytest.fixture
def told(tmp_path):
    (tmp_path / "told").write_text("")
    return tmp_path / "told"


@pytest.fixture
def cached(tmp_path):
    def make(kind="ram", *, progress=False, **settings):
        return CacheSettings(kind, cache_dir=tmp_path / "cache", progress=progress, **settings)

    return make


def left_in(cache):
    return [path.name for path in cache.folder.iterdir()] if cache.folder.is_dir() else []


def assert_whole(reader, table):
    for position in range(table.num_images):
        path = table.image_path(position)
        assert torch.equal(reader.read(path, position), decode_image(path))


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def forked(function, *arguments):
    """Run a function in a child that is killed at the end."""
    child = FORK.Process(target=function, args=arguments, daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()
        child.close()


def make_and_hold(table, reader, cache, told, held):
    made = CachedReader(table, reader, cache)
    told.put(made.key)
    held.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_was_killed_is_never_served_and_leaves_nothing(table, cached, told, kind):
    cache, reader = cached(kind), SlowReader(told, most=3)
    with forked(CachedReader, table, reader, cache) as child:
        wait_until(lambda: len(told.read_text()) >= 3)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert 3 <= len(told.read_text()) < table.num_images
    left = left_in(cache)
    assert any(name.endswith(".tmp") for name in left) == (kind == "disk")
    assert not any(name.endswith((".pixels", ".memory")) for name in left)
    reader.most = None  # other settings: what is left is found whatever they are
    assert_whole(CachedReader(table, reader, cache), table)
    assert [name for name in left_in(cache) if name.endswith(".tmp")] == []
    reader.most = 10**6
    assert_whole(CachedReader(table, reader, cache), table)
    assert [name for name in left_in(cache) if name.startswith(".")] == []


def test_memory_outlives_the_process_that_made_it_and_its_record_does_not_count(table, cached, told):
    cache, reader, queue, held = cached("ram"), SlowReader(told), FORK.SimpleQueue(), FORK.Event()
    with forked(make_and_hold, table, reader, cache, queue, held) as child:
        key = queue.get()
        found = CachedReader(table, reader, cache)
        assert found.key == key
        assert len(told.read_text()) == table.num_images
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    queue.close()
    assert_whole(found, table)
    again = CachedReader(table, reader, cache)
    assert len(told.read_text()) == 2 * table.num_images
    assert_whole(again, table)
    assert len(left_in(cache)) == 1
    del again  # the maker's record goes with its memory
    assert left_in(cache) == []


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_start_at_once_build_it_once(table, cached, told, kind):
    cache, reader, queue, held = (
        cached(kind),
        SlowReader(told, seconds=0.01),
        FORK.SimpleQueue(),
        FORK.Event(),
    )
    children = [
        FORK.Process(target=make_and_hold, args=(table, reader, cache, queue, held), daemon=True)
        for _ in range(3)
    ]
    for child in children:
        child.start()
    assert len({queue.get() for _ in children}) == 1
    held.set()
    for child in children:
        child.join()
        assert child.exitcode == 0
        child.close()
    queue.close()
    assert len(told.read_text()) == table.num_images


def test_who_waits_says_so(tmp_path, capsys):
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with building(tmp_path, "name", progress=True):
            entered.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    threading.Timer(0.2, leave.set).start()
    with building(tmp_path, "name", progress=True):
        assert leave.is_set()
    holder.join()
    assert capsys.readouterr().err.count("Waiting for another process") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [True, False], ids=["sizes known", "sizes unknown"])
def test_what_is_over_budget_is_refused_and_nothing_is_left(tmp_path, cached, told, kind, known):
    columns = {} if known else {"widths": [0] * 12, "heights": [0] * 12}
    table = draw_set(tmp_path / "set", **columns)
    needed = 8192 + 12 * 3 * SIZE[0] * SIZE[1]
    words = rf"need {'' if known else 'at least '}\d+\.\d KiB.*{needed - 1}.*cache_size.*cache=None"
    with pytest.raises(CacheError, match=words):
        CachedReader(table, SlowReader(told), cached(kind, budget=needed - 1))
    assert bool(told.read_text()) == (not known)
    assert left_in(cached(kind)) == []
    enough = CachedReader(table, SlowReader(told), cached(kind, budget=needed))
    assert enough.num_bytes == needed
    small = CachedReader(table, SlowReader(told), cached(kind, budget=needed // 2, size=SIZE[0] // 2))
    assert small.num_bytes == 8192 + 12 * 3 * SIZE[0] * SIZE[1] // 4


@pytest.mark.parametrize("budget", [None, "1 TiB"])
def test_no_budget_takes_more_than_what_is_free(table, cached, monkeypatch, budget):
    needed = 8192 + 12 * 3 * SIZE[0] * SIZE[1]
    free = needed - 1 if budget else 2 * needed - 1
    monkeypatch.setattr("lit_loader.datasets.decoded.wanted.free_bytes", lambda kind, folder: free)
    with pytest.raises(CacheError, match="are free" if budget else "allows half of the free disk space"):
        CachedReader(table, ImageReading(), cached("disk", budget=budget))


def test_a_full_disk_ends_in_an_error_and_leaves_nothing(table, cached):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"cannot be written to .*make room or lower cache_size"):
            CachedReader(table, ImageReading(), cached("disk"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left_in(cached("disk")) == []
    assert_whole(CachedReader(table, ImageReading(), cached("disk")), table)


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_change_while_they_are_decoded_are_not_kept(table, cached, kind):
    class Touching(ImageReading):
        def read(self, path):
            os.utime(path)
            return super().read(path)

    with pytest.raises(CacheError, match="changed while they were decoded"):
        CachedReader(table, Touching(), cached(kind))
    assert left_in(cached(kind)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_is_no_images_fault_breaks_the_build_off(table, cached, kind):
    class Failing(ImageReading):
        def read(self, path):
            if path.stem == table.image_path(7).stem:
                raise MemoryError("no room")
            return super().read(path)

    with pytest.raises(MemoryError, match="no room"):
        CachedReader(table, Failing(), cached(kind))
    assert left_in(cached(kind)) == []


def test_the_folder_is_the_users_own(table, cached):
    cache = cached("disk")
    reader = CachedReader(table, ImageReading(), cache)
    assert cache.folder.stat().st_mode & 0o077 == 0
    assert [path.stat().st_mode & 0o077 for path in cache.folder.iterdir()] == [0]
    del reader


def test_without_anonymous_memory_the_remedy_is_named(table, cached, monkeypatch):
    def refuse(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(CacheError, match=r'not implemented.*cache="disk"'):
        CachedReader(table, ImageReading(), cached("ram"))
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match='cache="disk"'):
        cached("ram")


@pytest.mark.parametrize(
    ("words", "count"),
    [(None, None), (7, 7), ("7", 7), ("8 GiB", 8 << 30), ("1.5kb", 1500), (" 2 TB ", 2 * 10**12), ("3b", 3)],
)
def test_a_budget_is_a_number_or_words(words, count):
    assert byte_count(words) == count


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "", "8 apples", "GiB", "-3 GB", "1e9", "0 GB"])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match="cache_budget="):
        CacheSettings("disk", budget=budget)


@pytest.mark.parametrize("size", [0, -5, 1.5, True, "64"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="cache_size="):
        CacheSettings("disk", size=size)


def test_a_kind_that_is_none_is_refused(table):
    with pytest.raises(ValueError, match="cache='tape' is not one of"):
        DetectionDataset(table, cache="tape")
