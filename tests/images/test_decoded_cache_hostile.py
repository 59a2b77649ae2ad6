"""Cache files that are damaged or made by others: refused, built again, never a crash."""

from __future__ import annotations

import os
from unittest.mock import patch

import numpy as np
import pytest

from lit_loader.errors import CacheError
from lit_loader.images.decoded_cache import CachedReader
from lit_loader.images.decoded_cache.pixel_file import FORMAT, INDEX, PixelFile, head, pixels_start
from lit_loader.images.reading import ImageReading
from tests.support.decoded_images import assert_whole
from tests.support.drawn_set import SIZE, draw_set

HUGE = 2**31 - 1


@pytest.fixture
def table(tmp_path):
    return draw_set(tmp_path / "set", num_images=4)


def overwrite(start, data):
    def damage(path):
        with path.open("r+b") as file:
            file.seek(start)
            file.write(data)

    return damage


def cut(size):
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def with_rows(**fields):
    """Give the second image other values in the index, with ends and a digest that fit."""

    def damage(path):
        data = path.read_bytes()
        start = pixels_start(4)
        index = np.frombuffer(data[64:start], dtype=INDEX).copy()
        fitting = fields.pop("fitting", False)
        for name, value in fields.items():
            index[name][1] = value
        if fitting:  # in whole numbers of 64 bits, which overflow
            areas = index["width"].astype(np.int64) * index["height"]
            index["end"] = start + np.cumsum(3 * areas)
        path.write_bytes(head(index, path.stem.partition("-")[2]) + data[start:])

    return damage


def of_another_format(path):
    data = path.read_bytes()
    index = np.frombuffer(data[64 : pixels_start(4)], dtype=INDEX)
    with patch("lit_loader.images.decoded_cache.pixel_file.FORMAT", FORMAT + 1):
        path.write_bytes(head(index, path.stem.partition("-")[2]) + data[pixels_start(4) :])


DAMAGES = {
    "empty": cut(0),
    "half a head": cut(50),
    "a head": cut(64 + 4 * INDEX.itemsize),
    "a page short": cut(-4096),
    "a byte short": cut(-1),
    "a byte long": lambda path: os.truncate(path, path.stat().st_size + 1),
    "digest": overwrite(0, b"LIT"),
    "index": overwrite(64 + 8, b"\xff"),
    "format": of_another_format,
    "end beyond the file": with_rows(end=2**62),
    "end before the pixels": with_rows(end=0),
    "end below 0": with_rows(end=-1),
    "a wider image": with_rows(width=10**6, true_width=10**6),
    "sides below 0": with_rows(width=-SIZE[0], height=-SIZE[1], fitting=True),
    "a side of 0": with_rows(width=0),
    "sides whose bytes overflow": with_rows(width=HUGE, height=HUGE, true_width=HUGE, true_height=HUGE, fitting=True),
    "no true size": with_rows(true_width=0),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_and_built_again(table, cached, damage):
    reader = CachedReader(table, ImageReading(), cached())
    key = reader.key
    (path,) = cached().folder.glob("*.pixels")
    del reader
    damage(path)
    with pytest.raises(CacheError):
        PixelFile(path, key, 4)
    assert_whole(CachedReader(table, ImageReading(), cached()), table)
    assert PixelFile(path, key, 4).image(1) is not None


def test_a_folder_or_a_pipe_in_its_place_is_told_and_does_not_hang(table, cached):
    reader = CachedReader(table, ImageReading(), cached())
    (path,) = cached().folder.glob("*.pixels")
    key = reader.key
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CacheError, match="contains no decoded images"):
        PixelFile(path, key, 4)
    assert_whole(CachedReader(table, ImageReading(), cached()), table)
    path.unlink()
    path.mkdir()
    with pytest.raises(CacheError, match="cannot be written"):
        CachedReader(table, ImageReading(), cached())
    assert [entry.name for entry in path.parent.iterdir() if entry.suffix != ".lock"] == [path.name]


def test_a_file_of_other_images_is_not_served(table, cached):
    reader = CachedReader(table, ImageReading(), cached())
    (path,) = cached().folder.glob("*.pixels")
    for key, num_images in (("0" * 32, 4), (reader.key, 3), (reader.key, 5)):
        with pytest.raises(CacheError, match="made from other files"):
            PixelFile(path, key, num_images)


def test_links_in_the_folder_lead_nowhere(tmp_path, table, cached):
    (tmp_path / "precious").write_text("mine")
    cached().folder.mkdir(parents=True)
    reader = CachedReader(table, ImageReading(), cached())
    (path,) = cached().folder.glob("*.pixels")
    path.unlink()
    for name in (path.name, f".{path.stem}.0.tmp"):
        (path.parent / name).symlink_to(tmp_path / "precious")
    del reader
    assert_whole(CachedReader(table, ImageReading(), cached()), table)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not path.is_symlink()


def test_a_cache_larger_than_the_memory_of_the_host_is_mapped(tmp_path):
    path = tmp_path / "0-1.pixels"
    key = "1"
    side = 600_000
    index = np.array([(pixels_start(1) + 3 * side * side, side, side, side, side)], dtype=INDEX)
    with path.open("wb") as file:  # a hole, which takes no disk
        file.write(head(index, key))
        file.truncate(int(index["end"][0]))
    pixels, true_size = PixelFile(path, key, 1).image(0)
    assert (tuple(pixels.shape), true_size) == ((3, side, side), (side, side))
    assert pixels[:, -1, -1].tolist() == [0, 0, 0]
