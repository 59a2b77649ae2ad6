from __future__ import annotations

import os
import tracemalloc
from functools import partial

import pytest

from lit_loader.annotations.formats import text_file
from lit_loader.annotations.formats.text_file import read_bytes, read_lines, read_rows
from lit_loader.errors import AnnotationError, UnsafePathError


@pytest.fixture
def write(tmp_path):
    def write(data):
        (tmp_path / "f.txt").write_bytes(data)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [(1, "a"), (2, "b")]),
        (b"a\r\n\r\nb", [(1, "a"), (2, ""), (3, "b")]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [(1, "a"), (2, "\ufeffb")]),
        (b"\xff.jpg", [(1, "\udcff.jpg")]),
        ("é\u2028x\x0cy\n".encode(), [(1, "é\u2028x\x0cy")]),
    ],
)
def test_lines_come_with_their_numbers(write, data, lines):
    assert list(read_lines(write(data), "f.txt")) == lines


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"a\n" + b"x" * 300_000, 2, "the line has more than"),
        (b"a\nb\0c\n", 2, "contains a NUL"),
        ("a\nb".encode("utf-16"), 1, "must be UTF-8 text"),
    ],
)
def test_hostile_lines_are_refused_with_their_number(write, data, line, words):
    with pytest.raises(AnnotationError, match=rf"f\.txt:{line}: .*{words}"):
        list(read_lines(write(data), "f.txt"))


def test_too_large_file_is_refused(write):
    root = write(b"ab\n" * 10)
    assert read_bytes(root, "f.txt", max_bytes=30)
    with pytest.raises(AnnotationError, match="larger than 29 bytes"):
        read_bytes(root, "f.txt", max_bytes=29)


@pytest.mark.parametrize("read", [lambda *a: list(read_lines(*a)), partial(read_bytes, max_bytes=9)])
def test_paths_that_are_not_files_are_refused(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("pipe", ".", "circle", "none.txt", "a" * 300):
        with pytest.raises(AnnotationError):
            read(tmp_path, name)


@pytest.mark.parametrize("read", [lambda *a: list(read_lines(*a)), partial(read_bytes, max_bytes=9)])
def test_files_outside_the_root_are_refused(tmp_path, read):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "other.txt").write_text("other")
    (root / "link.txt").symlink_to("../other.txt")
    for name in ("../other.txt", str(tmp_path / "other.txt"), "x/../../other.txt"):
        with pytest.raises(UnsafePathError):
            read(root, name)
    assert read(root, "link.txt")  # links are the user's own


def test_rows_come_with_the_line_on_which_they_begin(write):
    root = write(b'a, "b, c",\r\n,,\n\n"two\nlines",2\n')
    assert list(read_rows(root, "f.txt")) == [(1, ["a", "b, c", ""]), (4, ["two\nlines", "2"])]
    assert list(read_rows(write(b"a  b c\n"), "f.txt", separator=" ")) == [(1, ["a", "", "b", "c"])]
    with pytest.raises(AnnotationError, match=r"f\.txt:2: the row is not valid CSV"):
        list(read_rows(write(b'a,b\n"a" b,c\n'), "f.txt"))


def test_reading_lines_takes_constant_memory(write):
    root = write(b"line\n" * 200_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(root, "f.txt")) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 2 * text_file.MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_file_returned_in_pieces_is_read_completely(write, monkeypatch):
    root = write(b"0123456789")
    content = read_bytes(root, "f.txt", max_bytes=10)
    read = os.read
    monkeypatch.setattr(text_file.os, "read", lambda file, size: read(file, min(size, 3)))
    assert read_bytes(root, "f.txt", max_bytes=10) == content == b"0123456789"
