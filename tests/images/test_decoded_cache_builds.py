"""Building a decoded cache: once, within its budget, and without a trace of a build that was broken off."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image, ImageFile

from lit_loader.errors import CacheError
from lit_loader.foundation.byte_sizes import byte_words
from lit_loader.images import decode_image
from lit_loader.images.decoded_cache import CachedReader
from lit_loader.images.decoded_cache.pixel_file import INDEX
from lit_loader.images.reading import ImageReading
from tests.support.decoded_images import assert_whole, files_in
from tests.support.drawn_set import SIZE, draw_set

FORK = multiprocessing.get_context("fork")
START = 64 + 12 * INDEX.itemsize


class SlowReader(ImageReading):
    """Decodes after a while, says so in a file that processes share, and gets stuck after ``most`` images."""

    def __init__(self, decode_log, *, seconds=0.0, most=None):
        self.__dict__.update(decode_log=str(decode_log), seconds=seconds, most=most)

    def read(self, path):
        time.sleep(self.seconds if self.most is None or os.path.getsize(self.decode_log) < self.most else 3600)
        with open(self.decode_log, "a") as file:
            file.write(".")
        return decode_image(path)


@pytest.fixture
def decode_log(tmp_path):
    (tmp_path / "decode_log").write_text("")
    return tmp_path / "decode_log"


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


def make_and_hold(table, reader, cache, key_queue, release):
    cached_reader = CachedReader(table, reader, cache)
    key_queue.put(cached_reader.key)
    release.wait()


def test_a_build_that_was_killed_is_never_served_and_leaves_nothing(table, cached, decode_log):
    cache = cached()
    reader = SlowReader(decode_log, most=3)
    with forked(CachedReader, table, reader, cache) as child:
        wait_until(lambda: len(decode_log.read_text()) >= 3)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert 3 <= len(decode_log.read_text()) < table.num_images
    assert [name[-4:] for name in files_in(cache.folder)] == [".tmp"]
    reader.most = None
    small = cached(cache_size=16)  # leftovers are deleted whatever the settings are
    assert CachedReader(table, reader, small).open(3)[0].size == (12, 16)
    assert [Path(name).suffix for name in files_in(cache.folder)] == [".pixels"]
    assert_whole(CachedReader(table, reader, cache), table)


def test_a_build_of_another_process_is_not_deleted(tmp_path, table, cached, decode_log):
    reader = SlowReader(decode_log, most=3)
    with forked(CachedReader, table, reader, cached()) as child:
        wait_until(lambda: len(decode_log.read_text()) >= 3)
        CachedReader(draw_set(tmp_path / "other"), ImageReading(), cached())
        assert sorted(Path(name).suffix for name in files_in(cached().folder)) == [".pixels", ".tmp"]
        assert child.is_alive()


def test_readers_keep_what_they_map_while_another_process_builds_its_successor(table, cached, decode_log):
    cache = cached()
    expected = [decode_image(table.image_path(i)) for i in range(table.num_images)]
    old = CachedReader(table, SlowReader(decode_log), cache)
    for path in map(table.image_path, range(table.num_images)):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    queue = FORK.SimpleQueue()
    release = FORK.Event()
    with forked(make_and_hold, table, SlowReader(decode_log, seconds=0.02), cache, queue, release) as child:
        while queue.empty():
            assert child.is_alive()
            for position, pixels in enumerate(expected):
                assert torch.equal(old.open(position)[0].read(), pixels)
        assert queue.get() != old.key
    queue.close()
    assert len(files_in(cache.folder)) == 1
    for position, pixels in enumerate(expected):
        assert torch.equal(old.open(position)[0].read(), pixels)
    assert_whole(CachedReader(table, SlowReader(decode_log), cache), table)


def test_processes_that_start_at_once_build_it_once(table, cached, decode_log):
    children = [
        FORK.Process(target=CachedReader, args=(table, SlowReader(decode_log, seconds=0.01), cached()), daemon=True)
        for _ in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
        child.close()
    assert len(decode_log.read_text()) == table.num_images
    assert_whole(CachedReader(table, SlowReader(decode_log), cached()), table)


def test_threads_that_start_at_once_build_it_once(table, cached, decode_log):
    make = partial(CachedReader, table, SlowReader(decode_log, seconds=0.01))
    with ThreadPoolExecutor(3) as pool:
        readers = list(pool.map(make, [cached()] * 3))
    assert len({cached_reader.key for cached_reader in readers}) == 1
    assert len(decode_log.read_text()) == table.num_images
    assert_whole(readers[2], table)


def test_who_waits_says_so(table, cached, decode_log, capsys):
    reader = SlowReader(decode_log, most=3)
    with forked(CachedReader, table, reader, cached()) as child:
        wait_until(lambda: len(decode_log.read_text()) >= 3)
        threading.Timer(0.2, child.kill).start()
        reader.most = None
        assert_whole(CachedReader(table, reader, cached(progress=True)), table)
    assert capsys.readouterr().err.count("Waiting for another process") == 1


def test_no_descriptor_and_no_mapping_outlives_a_reader(table, cached):
    folder = str(cached().folder)

    def open_files_and_mapping():
        process = psutil.Process()
        is_mapped = folder in Path("/proc/self/maps").read_text()
        return sum(folder in file.path for file in process.open_files()), is_mapped

    reader = CachedReader(table, ImageReading(), cached())
    pixels = reader.open(1)[0].read_region((0, 0, 4, 4), zoom=0.5).pixels
    assert open_files_and_mapping() == (1, True)
    del reader
    # A tensor of the mapping is left.
    assert open_files_and_mapping()[1]
    assert pixels.sum() > 0
    del pixels
    assert open_files_and_mapping() == (0, False)


@pytest.mark.parametrize("sizes_known", [True, False], ids=["sizes known", "sizes unknown"])
def test_a_cache_over_budget_is_refused_and_leaves_no_file(tmp_path, cached, decode_log, sizes_known):
    columns = {} if sizes_known else {"widths": [0] * 12, "heights": [0] * 12}
    table = draw_set(tmp_path / "set", **columns)
    needed = START + 12 * 3 * SIZE[0] * SIZE[1]
    how = "according to their annotated sizes" if sizes_known else "or more"
    words = rf"need \d+\.\d KiB {how}.*cache_budget={needed - 1}.*lower cache_size.*cache=False"
    with pytest.raises(CacheError, match=words):
        CachedReader(table, SlowReader(decode_log), cached(cache_budget=needed - 1))
    assert bool(decode_log.read_text()) == (not sizes_known)
    assert files_in(cached().folder) == []
    enough = CachedReader(table, SlowReader(decode_log), cached(cache_budget=needed))
    assert enough.num_bytes == needed
    small = CachedReader(table, SlowReader(decode_log), cached(cache_budget=needed // 2, cache_size=SIZE[0] // 2))
    assert small.num_bytes == START + 12 * 3 * SIZE[0] * SIZE[1] // 4


@pytest.mark.parametrize("budget", [None, "1 TiB"])
def test_no_budget_takes_more_than_what_is_free(table, cached, monkeypatch, budget):
    needed = START + 12 * 3 * SIZE[0] * SIZE[1]
    free = needed - 1 if budget else 2 * needed - 2
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(CacheError, match=rf"may take {byte_words(needed - 1)}: .* of disk space is free"):
        CachedReader(table, ImageReading(), cached(cache_budget=budget))


def test_a_full_disk_ends_in_an_error_and_leaves_nothing(table, cached):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"cannot be written to .*incomplete file was deleted; free disk space"):
            CachedReader(table, ImageReading(), cached())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files_in(cached().folder) == []
    assert_whole(CachedReader(table, ImageReading(), cached()), table)


def test_images_decoded_in_part_are_served_to_those_alone_who_accept_them(table, cached, monkeypatch):
    key = CachedReader(table, ImageReading(), cached()).key
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert CachedReader(table, ImageReading(), cached()).key != key


def test_images_that_change_while_they_are_decoded_are_not_kept(table, cached):
    class Touching(ImageReading):
        def read(self, path):
            os.utime(path)
            return super().read(path)

    with pytest.raises(CacheError, match="changed while they were decoded"):
        CachedReader(table, Touching(), cached())
    assert files_in(cached().folder) == []


def test_an_error_that_is_no_images_fault_breaks_the_build_off(table, cached):
    class Failing(ImageReading):
        def read(self, path):
            if path == str(table.image_path(7)):
                raise MemoryError("no room")
            return super().read(path)

    with pytest.raises(MemoryError, match="no room"):
        CachedReader(table, Failing(), cached())
    assert files_in(cached().folder) == []


def test_the_folder_is_the_users_own(table, cached):
    cache = cached()
    reader = CachedReader(table, ImageReading(), cache)
    assert cache.folder.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in cache.folder.iterdir()} == {0}
    del reader
