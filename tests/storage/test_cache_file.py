"""The cache of stored images: states, torn reads, earlier runs, damaged folders."""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import os
import pickle
import random
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from lit_loader.errors import CacheError
from lit_loader.storage import cache_file, holes, protocol
from lit_loader.storage.cache_file import CacheFile, CacheWriter
from lit_loader.storage.protocol import ALIGNMENT, HEADER_BYTES, State
from tests.support.background import running
from tests.support.fetched_set import catalog_of, random_images

IMAGES = random_images(24, min_bytes=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    catalog_of([len(image) for image in IMAGES]).save(tmp_path / "catalog.arrow")
    return tmp_path


def open_writer(folder: Path, budget: int | None = 1 << 30) -> CacheWriter:
    return CacheWriter(folder, cache_file.Catalog.load(folder / "catalog.arrow"), budget)


def fill(writer: CacheWriter, *slots: int) -> None:
    for slot in slots:
        writer.reserve(slot)
        writer.write(slot, IMAGES[slot])


def disk_bytes(folder: Path) -> int:
    return (folder / "data").stat().st_blocks * 512


def test_only_ready_images_are_read(folder):
    reader = CacheFile(folder)
    assert reader.state(3) == State.ABSENT
    assert reader.try_read(3) is None
    writer = open_writer(folder)
    writer.reserve(3)
    assert (reader.state(3), reader.try_read(3)) == (State.PENDING, None)
    writer.write(3, IMAGES[3])
    assert (reader.state(3), reader.try_read(3)) == (State.READY, IMAGES[3])
    assert pickle.loads(pickle.dumps(reader)).try_read(3) == IMAGES[3]
    writer.evict([3])
    assert (reader.state(3), reader.try_read(3)) == (State.ABSENT, None)
    writer.reserve(4)
    writer.fail(4, "gone\x1b[2J")
    assert (reader.state(4), reader.error_text(4)) == (State.FAILED, "gone\\x1b[2J")
    writer.forget(4)
    assert reader.state(4) == State.ABSENT
    writer.close()


def test_wrong_number_of_bytes_is_refused(folder):
    writer = open_writer(folder)
    writer.reserve(3)
    with pytest.raises(ValueError, match=f"expected {len(IMAGES[3])} bytes of image 3, got {len(IMAGES[3]) - 1}"):
        writer.write(3, IMAGES[3][:-1])
    assert CacheFile(folder).state(3) == State.PENDING
    writer.close()


def test_readers_never_see_torn_images_during_eviction(folder):
    writer = open_writer(folder)
    errors: list[int] = []
    num_reads = 0

    def read(stop: threading.Event) -> None:
        nonlocal num_reads
        reader = CacheFile(folder)
        generator = random.Random(1)
        while not stop.is_set():
            slot = generator.randrange(8)
            data = reader.try_read(slot)
            if data is not None:
                num_reads += 1
                if data != IMAGES[slot]:
                    errors.append(slot)

    generator = random.Random(0)
    with running(read, read):
        for _ in range(4000):
            slot = generator.randrange(8)
            if writer.state(slot) == State.READY:
                writer.evict([slot])
            else:
                fill(writer, slot)
    assert not errors
    assert num_reads > 100
    writer.close()


def test_evicted_bytes_are_free(folder):
    writer = open_writer(folder)
    fill(writer, *range(24))
    used_bytes = disk_bytes(folder)
    assert used_bytes >= writer.used_bytes == sum(-(-len(image) // ALIGNMENT) * ALIGNMENT for image in IMAGES)
    writer.evict(range(1, 24))
    assert disk_bytes(folder) <= writer.used_bytes + ALIGNMENT == int(writer.sizes[0]) + ALIGNMENT
    assert writer.peak_bytes == used_bytes - (used_bytes - int(writer.sizes.sum()))
    writer.close()


def test_images_of_earlier_run_are_kept_except_interrupted_ones(folder):
    writer = open_writer(folder)
    fill(writer, 1, 2)
    writer.reserve(3)
    with (folder / "data").open("r+b") as file:
        file.seek(int(writer.offsets[3]))
        file.write(IMAGES[3][: len(IMAGES[3]) // 2])
    writer.reserve(4)
    writer.fail(4, "no")
    # The process is killed here: the writer is not closed.
    later_writer = open_writer(folder)
    reader = CacheFile(folder)
    assert [reader.state(slot) for slot in range(5)] == [State.ABSENT, State.READY, State.READY, *[State.ABSENT] * 2]
    assert reader.try_read(2) == IMAGES[2]
    assert later_writer.used_bytes == int(later_writer.sizes[1] + later_writer.sizes[2])
    assert disk_bytes(folder) <= later_writer.used_bytes
    assert not list((folder / "errors").iterdir())
    later_writer.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_reboot_forgets_images_unless_they_were_saved(folder, monkeypatch, is_clean):
    writer = open_writer(folder)
    fill(writer, 1)
    if is_clean:
        writer.close()
    (folder / "boot_id").write_text("01234567-89ab-cdef-0123-456789abcdef")
    monkeypatch.setattr(protocol, "_BOOT_ID", folder / "boot_id")
    open_writer(folder).close()
    assert CacheFile(folder).try_read(1) == (IMAGES[1] if is_clean else None)


def test_smaller_budget_evicts_images_of_earlier_run(folder):
    writer = open_writer(folder)
    fill(writer, *range(24))
    writer.close()
    budget = 4 * int(writer.sizes.max())
    later_writer = open_writer(folder, budget)
    assert budget - int(writer.sizes.max()) < later_writer.used_bytes <= budget
    assert disk_bytes(folder) <= later_writer.used_bytes
    later_writer.close()


def test_budget_below_four_images_is_refused(folder):
    with pytest.raises(CacheError, match=r"cache_budget=4096 bytes is too small .*; allow at least \d+ bytes"):
        open_writer(folder, ALIGNMENT)


def test_file_system_without_holes_needs_room_for_all_images(folder, monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(cache_file, "punch_hole", refuse)
    with pytest.raises(CacheError, match=r"cannot free parts of a file .*; choose cache_dir on a local disk"):
        open_writer(folder, 50_000)
    writer = open_writer(folder)
    fill(writer, 1)
    writer.reserve(4)
    writer.fail(4, "no")
    # The process is killed here: the next one finds gaps between the images.
    open_writer(folder).close()
    assert CacheFile(folder).try_read(1) == IMAGES[1]


@pytest.mark.parametrize("name", ["states", "data"])
@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES + 100])
def test_damaged_folder_is_made_anew(folder, name, size):
    writer = open_writer(folder)
    fill(writer, 1)
    writer.close()
    os.truncate(folder / name, size)
    if name == "states":
        with pytest.raises(CacheError, match=r"states is damaged .* delete"):
            CacheFile(folder).state(1)
    else:
        with pytest.raises(CacheError, match=r"data is damaged: it ends in image 1; delete"):
            CacheFile(folder).try_read(1)
    later_writer = open_writer(folder)
    assert CacheFile(folder).state(1) == State.ABSENT
    fill(later_writer, 1)
    assert CacheFile(folder).try_read(1) == IMAGES[1]
    later_writer.close()


def test_reader_opens_folder_anew_after_it_was_deleted(folder):
    writer = open_writer(folder)
    reader = CacheFile(folder)
    assert reader.try_read(1) is None
    (folder / "states").unlink()
    (folder / "data").unlink()
    writer.close()
    later_writer = open_writer(folder)
    fill(later_writer, 1)
    assert reader.try_read(1) is None
    assert reader.try_read(1) == IMAGES[1]
    later_writer.close()


def test_lengths_beyond_63_bits_are_refused(tmp_path):
    catalog_of([2**62, 2**62, 1]).save(tmp_path / "catalog.arrow")
    with pytest.raises(CacheError, match="too large"):
        open_writer(tmp_path)


def test_set_above_the_largest_file_size_names_a_file_system(folder, monkeypatch):
    def refuse(descriptor: int, size: int) -> None:
        if size:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(CacheError, match=r"cannot have a file of \d+ bytes .*; choose cache_dir on xfs"):
        open_writer(folder)


def test_flag_of_clean_end_is_removed_on_the_disk_before_states_change(folder, monkeypatch):
    flushed: list[bytes] = []

    class RecordingMap(mmap.mmap):
        def flush(self, *arguments: int) -> None:
            flushed.append(self[:])
            super().flush(*arguments)

    open_writer(folder).close()
    states = (folder / "states").read_bytes()
    monkeypatch.setattr(cache_file.mmap, "mmap", RecordingMap)
    fill(open_writer(folder), 1)
    place = 8 * cache_file._Field.CLEAN
    assert states[place] == 1
    assert flushed[0][place] == 0
    assert flushed[0][HEADER_BYTES:] == states[HEADER_BYTES:]


def test_files_are_private(folder):
    previous = os.umask(0)
    try:
        open_writer(folder).close()
    finally:
        os.umask(previous)
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("data", "states", "errors")}
    assert modes == {"data": 0o600, "states": 0o600, "errors": 0o700}


def test_full_disk_is_an_error_and_no_signal(folder, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = open_writer(folder)
    writer.reserve(1)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space left"):
        writer.write(1, IMAGES[1])
    monkeypatch.undo()
    assert np.array_equal(np.flatnonzero(writer.mask(State.PENDING)), [1])
    writer.close()


def test_package_imports_where_files_have_no_holes(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.delattr(ctypes, "CDLL")
        importlib.reload(holes)
    try:
        with (tmp_path / "data").open("wb") as file, pytest.raises(OSError, match="not supported"):
            holes.punch_hole(file.fileno(), 0, 4096)
    finally:
        importlib.reload(holes)
