"""JSON files through ijson: entries in batches, bounded memory, lines of errors."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations.formats import json_file
from lit_loader.annotations.formats.json_file import RepeatedKey, entry_lines, read_entries
from lit_loader.errors import AnnotationError, UnsafePathError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


def write(root, text):
    (root / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def rebuilt(root):
    values = {}

    def take(key, start, entries):
        if start < 0:
            (values[key],) = entries
        else:
            assert start == len(values.setdefault(key, []))
            values[key] += entries

    read_entries(root, "a.json", take)
    return values


@given(
    document=st.dictionaries(TEXT, VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    chunk=st.sampled_from([1, 2, 7, 4_096]),
    batch=st.sampled_from([1, 10, 2**20]),
)
def test_entries_equal_json_for_any_chunk_size(tmp_path_factory, document, indent, ascii_only, chunk, batch):
    root = tmp_path_factory.getbasetemp()
    write(root, json.dumps(document, indent=indent, ensure_ascii=ascii_only))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_file, "_CHUNK_BYTES", chunk)
        patch.setattr(json_file, "_BATCH_BYTES", batch)
        assert rebuilt(root) == document


@pytest.mark.parametrize("batch", [1, 2**20])
def test_repeated_key_in_entry_is_reported(tmp_path, batch, monkeypatch):
    monkeypatch.setattr(json_file, "_BATCH_BYTES", batch)
    twice = '{"b": 1, "b": 2}'
    entries = ['{"a": 1}', twice, f'{{"c": [1, [{twice}]]}}', f"[{twice}]", f'{{"d": {twice}, "e": {twice}}}', "{}"]
    entries_read = rebuilt(write(tmp_path, f'{{"list": [{", ".join(entries)}], "alone": {twice}}}'))
    repeated = RepeatedKey("b")
    assert entries_read == {"list": [{"a": 1}, repeated, repeated, repeated, repeated, {}], "alone": repeated}


def test_each_entry_has_its_line(tmp_path):
    write(tmp_path, '\n{"a": [1,\n  {"b":\n 2}\n, 3], "c":\n\n"d", "e": []}\n')
    assert {key: lines.tolist() for key, lines in entry_lines(tmp_path, "a.json").items()} == {"a": [2, 3, 5], "e": []}


def test_a_line_longer_than_a_chunk_is_one_line(tmp_path):
    write(tmp_path, '{"a": ["' + "x" * 10_000 + '",\n1, "' + "y" * 10_000 + '", 2,\n3]}')
    assert entry_lines(tmp_path, "a.json")["a"].tolist() == [1, 2, 2, 2, 3]


def test_byte_order_mark_is_skipped(tmp_path):
    assert rebuilt(write(tmp_path, b'\xef\xbb\xbf{"a": [1], "b": 2}')) == {"a": [1], "b": 2}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "premature EOF"),
        ("\n\n[1]", 3, "one JSON object"),
        ('{"a": 1}\n{}', 2, "trailing garbage"),
        ('{"a": 1,\n}', 2, "invalid object key"),
        ('{"a": [1 2]}', 1, "after array element"),
        ('{1: "a"}', 1, "invalid object key"),
        ('{"a":\n\n"b', 3, "premature EOF"),
        ('{"a": [\nNaN]}', 2, "invalid char.*write null for NaN and infinities"),
        ('{"a": [\n1,\n1e400]}', 3, "floating point. overflow.*write null"),
        ('{"a": [\n1,\n' + "9" * 10_000 + "]}", 3, "integer overflow.*no whole numbers beyond 63 bits"),
        ('{"a": [\n"\\udcff"]}', 2, "surrogate pair, which is not Unicode"),
        ('{"a": ' + "[" * 100_000, 1, "nested deeper than MAX_DEPTH=64"),
        ('{"a": ' + '{"b":' * 100_000, 1, "nested deeper than MAX_DEPTH=64"),
        ("[" * 200_000, 1, "one JSON object"),
        ('{"a": {"' + "k" * 5_000 + '": [1,\n2' + " " * 5_000 + "]}}", 1, "a key has more than 4096 characters"),
        ('{"a": [1],\n"b": 1, "a": [2]}', 2, "the key 'a' is repeated"),
        (b'{"a":\n"\xff"}', 2, "invalid bytes in UTF8"),
        ('{"a": 1}'.encode("utf-16"), 1, "one JSON object"),
    ],
)
def test_invalid_json_is_refused_with_line(tmp_path, text, line, words):
    write(tmp_path, text)
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match=rf"a\.json:{line}: .*{words}"):
        rebuilt(tmp_path)
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [('{"a": ' + "[" * 200_000, 60), ('{"a": [' + "[[]]," * 150_000 + "1]}", 5)],
    ids=["nested", "many"],
)
def test_memory_is_bounded_by_one_batch(tmp_path, text, megabytes, monkeypatch):
    monkeypatch.setattr(json_file, "_BATCH_BYTES", 16_384)
    write(tmp_path, text)
    tracemalloc.start()
    try:
        read_entries(tmp_path, "a.json", lambda *_: None)
    except AnnotationError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < megabytes * 1e6


def test_an_entry_beyond_the_limit_is_refused_and_many_small_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(json_file, "MAX_ENTRY_BYTES", 20_000)
    monkeypatch.setattr(json_file, "_BATCH_BYTES", 10_000)
    assert len(rebuilt(write(tmp_path, json.dumps({"a": ["x" * 900] * 100})))["a"]) == 100
    for large in ({"a": [1, "x" * 50_000]}, {"a": {str(i): 1 for i in range(5_000)}}):
        with pytest.raises(AnnotationError, match=r"larger than MAX_ENTRY_BYTES=20000"):
            rebuilt(write(tmp_path, json.dumps(large)))


def test_garbage_collector_state_is_restored(tmp_path):
    write(tmp_path, '{"a": [1]}')
    read_entries(tmp_path, "a.json", lambda *_: None)
    assert gc.isenabled()
    gc.disable()
    try:
        read_entries(tmp_path, "a.json", lambda *_: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_files_outside_root_and_missing_files_are_refused(tmp_path):
    (tmp_path / "root").mkdir()
    write(tmp_path, "{}")
    for name in ("../a.json", "/etc/passwd"):
        with pytest.raises(UnsafePathError):
            read_entries(tmp_path / "root", name, print)
    for name in (".", "none.json"):
        with pytest.raises(AnnotationError):
            read_entries(tmp_path / "root", name, print)
