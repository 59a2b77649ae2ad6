from __future__ import annotations

import json
import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lit_loader.annotations import AnnotationTable, table_file
from lit_loader.errors import CacheError
from lit_loader.foundation import array_file
from lit_loader.foundation.array_file import write_arrays
from tests.support.annotation_tables import full_table
from tests.support.scripts import run_code

COLUMNS = {
    "a": np.arange(1_000, dtype=np.int64),
    "b": np.array([1.5, -2.5], dtype=np.float32),
    "empty": np.zeros(0, dtype=np.uint8),
}
FORMAT = table_file._FORMAT
HEADER = {"format": FORMAT, "key": "k", "names": ["ä", "b"]}
read_arrays = partial(array_file.read_arrays, format=FORMAT)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "folder" / "x.arrow"
    write_arrays(path, COLUMNS, HEADER)
    return path


def test_columns_and_header_round_trip(file):
    read, header = read_arrays(file, key="k")
    assert header == HEADER
    assert read.keys() == COLUMNS.keys()
    for name, column in COLUMNS.items():
        assert read[name].dtype == column.dtype
        np.testing.assert_array_equal(read[name], column)


def test_columns_are_read_only_views_of_the_mapping(file):
    read, _ = read_arrays(file, key="k")
    maps = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(file) in line
    ]
    for name in ("a", "b"):
        assert not read[name].flags.writeable
        assert any(begin <= read[name].ctypes.data < end for begin, end in maps)


def test_writing_and_reading_do_not_import_pandas(tmp_path):
    code = f"""
    import sys
    from pathlib import Path
    import numpy as np
    from lit_loader.foundation.array_file import read_arrays, write_arrays
    path = Path({str(tmp_path / "x.arrow")!r})
    write_arrays(path, {{"a": np.arange(3)}}, {{"format": 1, "key": "k"}})
    arrays, _ = read_arrays(path, format=1, key="k")
    print(arrays["a"].sum(), "pandas" in sys.modules)
    """
    assert run_code(code).stdout == "3 False\n"


def test_mapping_survives_replacement_of_its_file(file):
    read, _ = read_arrays(file, key="k")
    write_arrays(file, {"a": np.zeros(1, dtype=np.int64)}, HEADER)
    file.unlink()
    np.testing.assert_array_equal(read["a"], COLUMNS["a"])


def test_truncated_file_is_cache_error(file):
    data = file.read_bytes()
    for length in range(0, len(data), 61):
        file.write_bytes(data[:length])
        with pytest.raises(CacheError):
            read_arrays(file, key="k")


def test_a_flipped_byte_anywhere_gives_the_same_content_or_a_cache_error(file):
    data = file.read_bytes()
    for position in range(0, len(data), 31):
        broken = bytearray(data)
        broken[position] ^= 0x55
        file.write_bytes(broken)
        try:
            read, header = read_arrays(file, key="k")
        except CacheError:
            continue
        assert header == HEADER
        assert all(np.array_equal(read[name], column) for name, column in COLUMNS.items())


class _Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "content",
    [b"", b"ARROW1\0\0", b"not arrow at all" * 100, pickle.dumps(_Bomb()), b"ARROW1\0\0" + b"\xff" * 500 + b"ARROW1"],
    ids=["empty", "magic only", "text", "pickle", "hostile lengths"],
)
def test_foreign_content_is_a_cache_error_and_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.arrow"
    path.write_bytes(content)
    with pytest.raises(CacheError):
        read_arrays(path, key="k")
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
        ({"a": pa.array([[True] * 8], type=pa.large_list(pa.bool_()))}, {}),
        ({"a": pa.array([[1], [2]], type=pa.large_list(pa.int64()))}, {}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"header": b"{"}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"header": b"[" * 100_000}),
        ({"a": pa.array([[1]], type=pa.large_list(pa.int64()))}, {b"checksum": b"0"}),
    ],
    ids=["no list", "strings", "nulls", "bits", "two rows", "no json", "deep json", "checksum"],
)
def test_well_formed_arrow_of_another_shape_is_a_cache_error(tmp_path, arrays, change):
    path = tmp_path / "x.arrow"
    _write_arrow(path, arrays, {b"header": json.dumps(HEADER).encode()} | change)
    with pytest.raises(CacheError):
        read_arrays(path, key="k")


@pytest.mark.parametrize("change", [{"key": "other"}, {"format": 2}, {"format": None}])
def test_a_file_of_another_key_or_format_is_refused(tmp_path, change):
    write_arrays(tmp_path / "x.arrow", COLUMNS, HEADER | change)
    with pytest.raises(CacheError, match="another version or from other files"):
        read_arrays(tmp_path / "x.arrow", key="k")


def test_a_failed_write_leaves_nothing(tmp_path):
    path = tmp_path / "x.arrow"
    with pytest.raises(TypeError):
        write_arrays(path, COLUMNS, {"bad": object()})
    with pytest.raises((pa.ArrowException, TypeError)):
        write_arrays(path, {"a": np.array([object()])}, HEADER)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_write_keeps_old_file(file, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(array_file.pa.ipc, "new_file", fail)
    with pytest.raises(KeyboardInterrupt):
        write_arrays(file, {"a": np.zeros(1, dtype=np.int64)}, HEADER)
    monkeypatch.undo()
    assert read_arrays(file, key="k")[1] == HEADER
    assert list(file.parent.iterdir()) == [file]


@pytest.fixture
def table_parts(tmp_path):
    """The arrays and the header of a table that uses every column."""
    full_table().save(tmp_path / "t.arrow", key="k")
    arrays, header = read_arrays(tmp_path / "t.arrow", key="k")
    return dict(arrays), header


def changed(array, place, value):
    copy = np.array(array)
    copy[place] = value
    return copy


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("boxes", lambda a: a[:-1]),
        ("boxes", lambda a: changed(a, 0, np.inf)),
        ("labels", lambda a: a.astype(np.float64)),
        ("widths", lambda a: a.astype(np.int64) + 2**40),
        ("labels", lambda a: changed(a, 0, 3)),
        ("offsets", lambda a: changed(a, 1, 9)),
        ("crowd", lambda a: changed(a, 0, 2)),
        ("keypoints", lambda a: a[:-2]),
        ("visibility", lambda a: changed(a, 0, 3)),
        ("areas", lambda a: changed(a, 0, -1)),
        ("corners", lambda a: changed(a, 0, np.nan)),
        ("rotated_boxes", lambda a: changed(a, -2, -1)),
        ("source_ids", lambda a: a[:-1]),
        ("category_ids", lambda a: a[:-1]),
        ("attribute:pose", lambda a: changed(a, 0, 7)),
        ("image_paths.data", lambda a: changed(a, 0, ord("/"))),
        ("image_paths.offsets", lambda a: changed(a, 1, 99)),
        ("masks.part_offsets", lambda a: changed(a, -1, 10**12)),
        ("masks.part_offsets", lambda a: a[:-1]),
        ("masks.value_offsets", lambda a: changed(a, 1, 2**62)),
        ("masks.value_offsets", lambda a: changed(a, 1, 7)),
        ("masks.value_offsets", lambda a: changed(a, 1, -2)),
        ("masks.values", lambda a: changed(a, 0, np.nan)),
        ("masks.run_offsets", lambda a: changed(a, 1, 2)),
        ("masks.runs", lambda a: changed(a, 0, 2**32 - 1)),
        ("masks.heights", lambda a: changed(a, 1, -4)),
        ("masks.widths", lambda a: changed(a, 1, 2**30)),
        ("masks.widths", lambda a: a.astype(np.int64)),
    ],
)
def test_table_file_with_contradicting_columns_is_cache_error(tmp_path, table_parts, name, change):
    arrays, header = table_parts
    write_arrays(tmp_path / "t.arrow", arrays | {name: change(arrays[name])}, header)
    with pytest.raises(CacheError, match="not hold a valid table"):
        AnnotationTable.load(tmp_path / "t.arrow", key="k")


def test_table_file_without_a_required_array_is_cache_error(tmp_path, table_parts):
    arrays, header = table_parts
    optional = {"source_ids", "image_stamps", "category_ids", "object_ids", "areas", "regions", "file_sizes", "shards"}
    optional |= {"corners", "rotated_boxes"}
    for name in arrays.keys() - optional:
        write_arrays(tmp_path / "t.arrow", {k: v for k, v in arrays.items() if k != name}, header)
        with pytest.raises(CacheError, match="not hold a valid table"):
            AnnotationTable.load(tmp_path / "t.arrow", key="k")


@pytest.mark.parametrize("name", ["root", "class_names", "keypoint_names", "attributes", "report", "split"])
def test_table_file_with_invalid_header_is_cache_error(tmp_path, table_parts, name):
    arrays, header = table_parts
    for value in (7, [7], {"a": 7}):
        write_arrays(tmp_path / "t.arrow", arrays, header | {name: value})
        with pytest.raises(CacheError, match="not hold a valid table"):
            AnnotationTable.load(tmp_path / "t.arrow", key="k")
    write_arrays(tmp_path / "t.arrow", arrays, header | {"more": 1})
    with pytest.raises(CacheError, match="not hold a valid table"):
        AnnotationTable.load(tmp_path / "t.arrow", key="k")
