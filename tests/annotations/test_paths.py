from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations.paths import check_relative, resolve_under
from lit_loader.errors import UnsafePathError


@pytest.mark.parametrize("relative", ["a.jpg", "a/b.jpg", "./a", "...", "a..b", "..a", "äö.jpg"])
def test_paths_below_the_root_are_resolved(tmp_path, relative):
    assert resolve_under(tmp_path, relative) == (tmp_path / relative).resolve()


@pytest.mark.parametrize(
    "relative", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "..", "a\0b", "a\\..\\b"]
)
def test_unsafe_paths_are_refused_naming_file_and_line(tmp_path, relative):
    with pytest.raises(UnsafePathError, match=r"^list\.txt:7: path"):
        resolve_under(tmp_path, relative, source="list.txt", line=7)
    with pytest.raises(UnsafePathError):
        check_relative(relative)


def test_links_that_leave_the_root_are_refused(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for relative in ("folder", "folder/x", "file"):
        with pytest.raises(UnsafePathError, match="symbolic link"):
            resolve_under(root, relative)


def test_links_within_the_root_and_a_linked_root_are_followed(tmp_path):
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "link").symlink_to("real")
    (tmp_path / "alias").symlink_to(root)
    assert resolve_under(tmp_path / "alias", "link/x") == (root / "real" / "x").resolve()


def test_a_circle_of_links_and_a_name_beyond_any_limit_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for relative in ("a/x", "n" * 100_000):
        try:
            assert resolve_under(tmp_path, relative).is_relative_to(tmp_path.resolve())
        except UnsafePathError as error:
            assert len(str(error)) < 1_000  # noqa: PT017  (either outcome is safe)


@given(st.text(alphabet="./\\a\0", max_size=12))
def test_what_is_accepted_stays_below_the_root(tmp_path_factory, relative):
    root = tmp_path_factory.getbasetemp()
    with contextlib.suppress(UnsafePathError):
        assert resolve_under(root, relative).is_relative_to(root.resolve())
