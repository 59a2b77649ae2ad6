from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lit_loader.annotations import columns
from lit_loader.annotations.columns import read_columns, write_columns
from lit_loader.errors import CacheError

COLUMNS = {
    "a": np.arange(1_000, dtype=np.int64),
    "b": np.array([1.5, -2.5], dtype=np.float32),
    "empty": np.zeros(0, dtype=np.uint8),
}
HEADER = {"key": "k", "names": ["ä", "b"]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "folder" / "x.arrow"
    write_columns(path, COLUMNS, HEADER)
    return path


def test_columns_and_header_come_back(file):
    read, header = read_columns(file)
    assert header == HEADER
    assert read.keys() == COLUMNS.keys()
    for name, column in COLUMNS.items():
        assert read[name].dtype == column.dtype
        np.testing.assert_array_equal(read[name], column)


def test_columns_are_read_only_views_of_the_mapping(file):
    read, _ = read_columns(file)
    maps = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(file) in line
    ]
    for name in ("a", "b"):
        assert not read[name].flags.writeable
        assert any(begin <= read[name].ctypes.data < end for begin, end in maps)


def test_a_mapping_stays_valid_when_its_file_is_replaced_or_removed(file):
    read, _ = read_columns(file)
    write_columns(file, {"a": np.zeros(1, dtype=np.int64)}, HEADER)
    file.unlink()
    np.testing.assert_array_equal(read["a"], COLUMNS["a"])


def test_a_file_cut_short_anywhere_is_a_cache_error(file):
    data = file.read_bytes()
    for length in range(0, len(data), 61):
        file.write_bytes(data[:length])
        with pytest.raises(CacheError):
            read_columns(file)


def test_a_flipped_byte_anywhere_gives_the_same_content_or_a_cache_error(file):
    data = file.read_bytes()
    for position in range(0, len(data), 31):
        broken = bytearray(data)
        broken[position] ^= 0x55
        file.write_bytes(broken)
        try:
            read, header = read_columns(file)
        except CacheError:
            continue
        assert header == HEADER
        assert all(np.array_equal(read[name], column) for name, column in COLUMNS.items())


class _Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"ARROW1\0\0",
        b"not arrow at all" * 100,
        pickle.dumps(_Bomb()),
        b"ARROW1\0\0" + b"\xff" * 500 + b"ARROW1",
    ],
    ids=["empty", "magic only", "text", "pickle", "hostile lengths"],
)
def test_foreign_content_is_a_cache_error_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.arrow"
    path.write_bytes(content)
    with pytest.raises(CacheError):
        read_columns(path)
    assert not (tmp_path / "exploded").exists()


def _write_arrow(path, arrays, metadata):
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()], metadata=metadata)
    batch = pa.record_batch(list(arrays.values()), schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize(
    ("arrays", "change"),
    [
        ({"a": pa.array([1, 2])}, {}),
        ({"a": pa.array([["x"]], type=pa.large_list(pa.string()))}, {}),
        ({"a": pa.array([[1, None]], type=pa.large_list(pa.int64()))}, {}),
        ({"a": pa.array([[1], [2]], type=pa.large_list(pa.int64()))}, {}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"magic": b"other"}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"header": b"{"}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"header": b"[" * 100_000}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"digest": b"0"}),
    ],
    ids=["no list", "strings", "nulls", "two rows", "magic", "no json", "deep json", "digest"],
)
def test_well_formed_arrow_of_another_shape_is_a_cache_error(tmp_path, arrays, change):
    path = tmp_path / "x.arrow"
    _write_arrow(
        path, arrays, {b"magic": columns._MAGIC, b"header": json.dumps({}).encode(), b"digest": b""} | change
    )
    with pytest.raises(CacheError):
        read_columns(path)


def test_a_header_may_be_refused_before_any_buffer_is_looked_at(file):
    def check(header):
        raise CacheError(f"refused {header['key']}")

    with pytest.raises(CacheError, match="refused k"):
        read_columns(file, check=check)


def test_a_missing_file_is_a_cache_error(tmp_path):
    with pytest.raises(CacheError, match="no cache file"):
        read_columns(tmp_path / "none.arrow")


def test_a_failed_write_leaves_nothing(tmp_path):
    path = tmp_path / "x.arrow"
    with pytest.raises(TypeError):
        write_columns(path, COLUMNS, {"bad": object()})
    with pytest.raises((pa.ArrowException, TypeError)):
        write_columns(path, {"a": np.array([object()])}, HEADER)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_breaks_off_leaves_the_old_file(file, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(columns.pa.ipc, "new_file", fail)
    with pytest.raises(KeyboardInterrupt):
        write_columns(file, {"a": np.zeros(1, dtype=np.int64)}, HEADER)
    monkeypatch.undo()
    assert read_columns(file)[1] == HEADER
    assert list(file.parent.iterdir()) == [file]
