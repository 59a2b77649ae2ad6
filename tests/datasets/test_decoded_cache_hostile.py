"""Cache files and records that are damaged or made by others: refused, built again, never a crash."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import torch

from lit_loader.datasets import CacheSettings, decode_image
from lit_loader.datasets.decoded import CachedReader
from lit_loader.datasets.decoded.layout import INDEX, PixelBlock, process_start, write_head
from lit_loader.datasets.reading import ImageReading
from lit_loader.errors import CacheError
from tests.drawn_set import draw_set

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
HUGE = 2**31 - 1


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set", num_images=4)


@pytest.fixture
def cached(tmp_path):
    return lambda kind: CacheSettings(kind, cache_dir=tmp_path / "cache", progress=False)


def assert_whole(reader, table):
    for position in range(table.num_images):
        path = table.image_path(position)
        assert torch.equal(reader.read(path, position), decode_image(path))


def overwrite(start, data):
    def damage(path):
        with path.open("r+b") as file:
            file.seek(start)
            file.write(data)

    return damage


def cut(size):
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def with_row(**fields):
    """Give an image of the index other values, with a digest that fits."""

    def damage(path):
        data = path.read_bytes()
        index = np.frombuffer(data[4096 : 4096 + 4 * INDEX.itemsize], dtype=INDEX).copy()
        for name, value in fields.items():
            index[name][1] = value
        key = path.stem.partition("-")[2]
        descriptor = os.open(path, os.O_RDWR)
        write_head(descriptor, index, key=key, end=len(data))
        os.close(descriptor)

    return damage


def replaced_by_link(path):
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


DAMAGES = {
    "empty": cut(0),
    "a header": cut(4096),
    "a page short": cut(-4096),
    "a byte short": cut(-1),
    "a byte long": lambda path: os.truncate(path, path.stat().st_size + 1),
    "magic": overwrite(0, b"LIT"),
    "version": overwrite(16, struct.pack("<Q", 99)),
    "key": overwrite(24, b"0" * 32),
    "digest": overwrite(56, b"\0" * 16),
    "more images": overwrite(72, struct.pack("<Q", 2**60)),
    "other size": overwrite(80, struct.pack("<Q", 2**60)),
    "index": overwrite(4096 + 8, b"\xff"),
    "start beyond the end": with_row(start=2**62),
    "start before the pixels": with_row(start=0),
    "start below 0": with_row(start=-1),
    "last byte beyond the end": with_row(width=10**6, true_width=10**6),
    "width below 0": with_row(width=-1, height=-1),
    "sides whose product overflows": with_row(width=HUGE, height=HUGE, true_width=HUGE, true_height=HUGE),
    "no true size": with_row(true_width=0),
    "a link": replaced_by_link,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_and_built_again(table, cached, damage):
    reader = CachedReader(table, ImageReading(), cached("disk"))
    key, (path,) = reader.key, cached("disk").folder.iterdir()
    del reader
    damage(path)
    with pytest.raises(CacheError):
        PixelBlock.from_path(path, key=key, num_images=4)
    assert_whole(CachedReader(table, ImageReading(), cached("disk")), table)
    assert not path.is_symlink()
    again = PixelBlock.from_path(path, key=key, num_images=4)
    assert again.image(1) is not None


def test_a_folder_or_a_pipe_in_its_place_is_told_and_does_not_hang(table, cached):
    reader = CachedReader(table, ImageReading(), cached("disk"))
    (path,) = cached("disk").folder.iterdir()
    key = reader.key
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CacheError, match="not a block of images"):
        PixelBlock.from_path(path, key=key, num_images=4)
    assert_whole(CachedReader(table, ImageReading(), cached("disk")), table)
    path.unlink()
    path.mkdir()
    with pytest.raises(CacheError, match="cannot be written"):
        CachedReader(table, ImageReading(), cached("disk"))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def own_record(descriptor):
    return f"{os.getpid()} {process_start(os.getpid())} {descriptor}"


RECORDS = {
    "empty": "",
    "not text": "\udcff",
    "two numbers": "1 2",
    "words": "1 1 ../../../etc/passwd",
    "below 0": "-1 -1 -1",
    "huge": f"{10**30} 1 1",
    "long": "1 1 1" + " " * 10**6,
    "nobody": f"{2**22 + 5} 1 1",
    "started later": f"{os.getpid()} 1 THE_FIRST",
    "no descriptor": own_record(10**6),
    "another file": own_record(0),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_that_leads_nowhere_is_replaced(table, cached, record):
    first = CachedReader(table, ImageReading(), cached("ram"))
    (path,) = cached("ram").folder.iterdir()
    told = record.replace("THE_FIRST", str(first._block.address[2]))
    path.write_text(told, errors="surrogateescape")
    second = CachedReader(table, ImageReading(), cached("ram"))
    assert_whole(second, table)
    assert second._block.address != first._block.address
    third = CachedReader(table, ImageReading(), cached("ram"))
    told = path.read_text()
    assert told == own_record(second._block.address[2])
    assert_whole(third, table)
    del first  # whose record it no longer is
    assert path.read_text() == told


def test_memory_is_sealed_against_whoever_opens_it(table, cached):
    reader = CachedReader(table, ImageReading(), cached("ram"))
    pid, _, descriptor = reader._block.address
    with open(f"/proc/{pid}/fd/{descriptor}", "r+b", buffering=0) as file:
        for change in (lambda: file.write(b"x"), lambda: os.truncate(file.fileno(), 0)):
            with pytest.raises(PermissionError):
                change()
    assert_whole(reader, table)
