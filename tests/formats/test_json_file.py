from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.formats import json_file
from lit_loader.formats.json_file import read_entries

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)


def write(root, text):
    (root / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def rebuilt(root):
    found = {}
    for entry in read_entries(root, "a.json"):
        if entry.position < 0:
            found[entry.key] = entry.value
        else:
            assert entry.position == len(found.setdefault(entry.key, []))
            found[entry.key].append(entry.value)
    return found


@settings(max_examples=150, deadline=None)
@given(
    document=st.dictionaries(st.text(max_size=4), VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    chunk=st.sampled_from([1, 2, 7, 2**20]),
)
def test_entries_are_what_json_reads_whatever_the_window(
    tmp_path_factory, document, indent, ascii_only, chunk
):
    root = tmp_path_factory.getbasetemp()
    write(root, json.dumps(document, indent=indent, ensure_ascii=ascii_only))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_file, "_CHUNK_BYTES", chunk)
        assert rebuilt(root) == {key: value for key, value in document.items() if value != []}


def test_each_entry_has_its_line_and_its_place(tmp_path):
    write(tmp_path, '\n{"a": [1,\n  {"b":\n 2}\n, 3], "c":\n\n"d"}\n')
    found = [(e.key, e.position, e.line, e.value) for e in read_entries(tmp_path, "a.json")]
    assert found == [("a", 0, 2, 1), ("a", 1, 3, {"b": 2}), ("a", 2, 5, 3), ("c", -1, 7, "d")]


def test_nan_infinity_a_byte_order_mark_and_repeated_keys_are_read(tmp_path):
    found = rebuilt(write(tmp_path, b'\xef\xbb\xbf{"a": [NaN, Infinity, -Infinity], "b": [1], "b": 2}'))
    assert math.isnan(found["a"][0])
    assert (found["a"][1:], found["b"]) == ([math.inf, -math.inf], 2)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "one JSON object"),
        ("\n\n[1]", 3, "one JSON object"),
        ('{"a": 1}\n{}', 2, "something after"),
        ('{"a": 1,\n}', 2, "a comma stands before '}'"),
        ('{"a": [1,\n]}', 2, "a comma stands before ']'"),
        ('{"a": [1 2]}', 1, "',' expected, not '2'"),
        ('{"a"\n1}', 2, "':' expected, not '1'"),
        ('{1: "a"}', 1, "a key must be text, not 1"),
        ('{"a":\n[1, 2', 2, "the file ends in the middle"),
        ('{"a":\n[1, 2,', 2, "the file ends in the middle"),
        ('{"a":\n\n"b', 3, "Unterminated string"),
        ('{"a": [\n{"b": 1,\n"c" 2}]}', 3, "Expecting ':' delimiter"),
        ('{"a": [\nNul]}', 2, r"no JSON \(Expecting value\)"),
        ('{"a": ', 1, r"no JSON \(Expecting value\)"),
        ('{"a": ' + "[" * 100_000, 1, r"a\[0\] is nested too deeply"),
        ('{"a": ' + '{"b":' * 100_000, 1, "a is nested too deeply"),
        ('{"a": [' + "9" * 10_000 + "]}", 1, r"a\[0\]: Exceeds the limit"),
        (b'{"a":\n\xff}', 2, "must be text in UTF-8"),
        ('{"a": 1}'.encode("utf-16"), 1, "must be text in UTF-8"),
        (b"\0" * 100, 1, "one JSON object"),
    ],
)
def test_what_is_no_json_is_an_error_that_names_the_line(tmp_path, text, line, words):
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match=rf"a\.json:{line}: .*{words}"):
        rebuilt(write(tmp_path, text))
    assert time.perf_counter() - begin < 2


def test_an_entry_beyond_the_limit_is_refused_and_many_small_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(json_file, "MAX_ENTRY_CHARS", 10_000)
    monkeypatch.setattr(json_file, "_CHUNK_BYTES", 1_000)
    assert len(rebuilt(write(tmp_path, json.dumps({"a": ["x" * 900] * 100})))["a"]) == 100
    with pytest.raises(AnnotationError, match=r"a\[1\] is larger than MAX_ENTRY_CHARS=10000"):
        rebuilt(write(tmp_path, json.dumps({"a": [1, "x" * 30_000]})))


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path, monkeypatch):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(json_file.MAX_JSON_BYTES + 1)
    begin = time.perf_counter()
    with pytest.raises(AnnotationError, match="larger than MAX_JSON_BYTES"):
        rebuilt(tmp_path)
    assert time.perf_counter() - begin < 1


def test_files_outside_the_root_and_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "root").mkdir()
    write(tmp_path, "{}")
    for name in ("../a.json", "/etc/passwd"):
        with pytest.raises(UnsafePathError):
            list(read_entries(tmp_path / "root", name))
    for name in (".", "none.json"):
        with pytest.raises(AnnotationError):
            list(read_entries(tmp_path / "root", name))
