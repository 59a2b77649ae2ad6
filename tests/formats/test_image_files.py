from __future__ import annotations

import os

import pytest

from lit_loader.errors import UnsafePathError
from lit_loader.formats.image_files import ImageFiles, image_stamps, join_path


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    for name in ("a.jpg", "A.JPG", "b", "b.png", "c.PNG", "deep/d.jpg", "deep/er/e.tif", "notes.txt", "x.y"):
        (root / name).write_bytes(b"x")
    (root / "link.jpg").symlink_to("deep/d.jpg")
    (root / "folder").symlink_to("deep")
    (root / "dir.jpg").mkdir()
    os.mkfifo(root / "pipe.jpg")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f.jpg").write_bytes(b"x")
    return root


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.jpg", "a.jpg"),
        ("a", "a.jpg"),
        ("b", "b"),
        ("c", "c.PNG"),
        ("c.png", None),
        ("x.y", "x.y"),
        ("x", None),
        ("deep/d", "deep/d.jpg"),
        ("deep/er/e.tif", "deep/er/e.tif"),
        ("link.jpg", "link.jpg"),
        ("folder/d.jpg", "folder/d.jpg"),
        ("folder/er/e", "folder/er/e.tif"),
        ("dir.jpg", None),
        ("dir", None),
        ("pipe.jpg", None),
        ("none.jpg", None),
        ("none/none.jpg", None),
        ("a.jpg/b.jpg", None),
        ("deep", None),
        ("n" * 300, None),
        ("\udcff.jpg", None),
    ],
)
def test_files_are_found_with_or_without_their_ending(root, path, found):
    assert ImageFiles(root.resolve()).find(path) == found


@pytest.mark.parametrize("target", ["../outside/f.jpg", "loop.jpg"])
def test_links_out_of_the_root_are_refused_with_the_line(root, target):
    (root / "loop.jpg").symlink_to(target)
    with pytest.raises(UnsafePathError, match=r"list\.txt:3"):
        ImageFiles(root.resolve()).find("loop.jpg", source="list.txt", line=3)
    (root / "out").symlink_to("../outside")
    with pytest.raises(UnsafePathError, match=r"list\.txt:3"):
        ImageFiles(root.resolve()).find("out/f.jpg", source="list.txt", line=3)


def test_wrong_paths_cost_no_look_at_the_disk(root, monkeypatch):
    files = ImageFiles(root.resolve())
    files.find("a.jpg")
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"listed {path}"))
    for i in range(10):
        assert files.find(f"none{i}/a") is None
        assert files.find(f"none{i}") is None


@pytest.mark.parametrize(
    ("folder", "path", "joined"),
    [
        (".", "a.jpg", "a.jpg"),
        ("x/y", "a.jpg", "x/y/a.jpg"),
        (".", "./a//b/./c.jpg", "a/b/c.jpg"),
        ("x", "a\\b.jpg", "x/a/b.jpg"),
        (".", "a..b.jpg", "a..b.jpg"),
    ],
)
def test_paths_are_joined_in_their_shortest_spelling(folder, path, joined):
    assert join_path(folder, path) == joined


@pytest.mark.parametrize("path", ["..", "a/../../b", "/a", "", "a\0", "..\\a"])
def test_paths_that_leave_a_folder_are_refused(path):
    with pytest.raises(UnsafePathError):
        join_path("x", path)


def test_stamps_change_with_every_image_below_the_folder(root):
    before = image_stamps(root.resolve(), ".")
    names = [stamp.name for stamp in before]
    assert names == sorted(names)
    assert {"a.jpg", "deep/er/e.tif", "link.jpg", "folder"} < set(names)
    assert "notes.txt" not in names
    (root / "deep/d.jpg").write_bytes(b"longer")
    changed = image_stamps(root.resolve(), ".")
    assert [a.name for a, b in zip(before, changed, strict=True) if a != b] == ["deep/d.jpg"]
    assert [stamp.name for stamp in image_stamps(root.resolve(), "deep")] == ["d.jpg", "er/e.tif"]
    assert image_stamps(root.resolve(), "none") == []
