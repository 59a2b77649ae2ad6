from __future__ import annotations

import os

import pytest

from lit_loader.annotations.formats.folder import IMAGE_EXTENSIONS, Folder, is_image_name, join_path
from lit_loader.errors import AnnotationError, UnsafePathError


def find_image(folder, path, is_stem=False):
    return next(folder.find_images([path], [is_stem]))


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    for name in ("a.jpg", "A.JPG", "b", "b.png", "c.PNG", "deep/d.jpg", "deep/er/e.tif", "notes.txt", "x.y"):
        (root / name).write_bytes(b"x")
    for name in ("two.TIF", "two.png", "two.jpg", ".hidden.jpg"):
        (root / name).write_bytes(b"x")
    (root / "link.jpg").symlink_to("deep/d.jpg")
    (root / "circle.jpg").symlink_to("circle.jpg")
    (root / "broken.jpg").symlink_to("none.jpg")
    (root / "folder").symlink_to("deep")
    (root / "dir.jpg").mkdir()
    os.mkfifo(root / "pipe.jpg")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f.jpg").write_bytes(b"x")
    (root / "out.jpg").symlink_to("../outside/f.jpg")
    (root / "elsewhere").symlink_to("../outside")
    return root


@pytest.mark.parametrize(
    ("path", "images"),
    [
        ("a.jpg", ["a.jpg"]),
        ("a", ["a.jpg"]),
        ("b", ["b"]),
        ("two", ["two.jpg", "two.png", "two.TIF"]),
        ("c.png", []),
        ("x.y", ["x.y"]),
        ("x", []),
        ("deep/er/e.tif", ["deep/er/e.tif"]),
        ("link.jpg", ["link.jpg"]),
        ("folder/er/e", ["folder/er/e.tif"]),
        ("out.jpg", ["out.jpg"]),
        ("elsewhere/f", ["elsewhere/f.jpg"]),
        ("circle.jpg", []),
        ("dir.jpg", []),
        ("pipe.jpg", []),
        ("none/none.jpg", []),
        ("a.jpg/b.jpg", []),
        ("n" * 300, []),
        ("\udcff.jpg", []),
    ],
)
def test_images_are_found_with_or_without_their_ending_and_through_any_link(root, path, images):
    assert find_image(Folder(root), path) == images


def test_every_ending_counts_in_upper_and_lower_case():
    assert all(is_image_name(f"a{ending}") and is_image_name(f"a{ending.upper()}") for ending in IMAGE_EXTENSIONS)
    assert not is_image_name("a.txt")


def test_wrong_paths_do_not_access_the_disk(root, monkeypatch):
    folder = Folder(root)
    find_image(folder, "a.jpg")
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"listed {path}"))
    for i in range(10):
        assert find_image(folder, f"none{i}/a") == []
        assert find_image(folder, f"none{i}") == []


def test_folder_lists_files_folders_and_broken_links(root):
    folder = Folder(root)
    assert folder.files("deep") == ["d.jpg"]
    assert folder.folders(".") == ["deep", "dir.jpg", "elsewhere", "folder"]
    assert {"broken.jpg", "circle.jpg", "out.jpg"} <= set(folder.files("."))
    assert not {"pipe.jpg", ".hidden.jpg"} & set(folder.files("."))
    assert folder.files("none") == folder.folders("none") == list(folder.below("none")) == []


def test_each_subfolder_is_entered_once_and_no_parent(root):
    (root / "deep/up").symlink_to(root)
    (root / "deep/again").symlink_to(root / "deep/er")
    folder = Folder(root)
    assert list(folder.tree(".")) == [".", "deep", "deep/again", "dir.jpg", "elsewhere"]
    assert list(folder.below("deep")) == ["deep/d.jpg", "deep/again/e.tif"]


def test_a_folder_that_cannot_be_listed_is_an_error(root, monkeypatch):
    scandir = os.scandir

    def fail(path):
        if path.name == "er":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(AnnotationError, match=r"deep/er: the folder cannot be listed \(Permission denied\)"):
        list(Folder(root).below("."))


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("deep/d.jpg", ["deep/d.jpg"]),
        ("deep", ["deep/d.jpg"]),
        ("*/d.jpg", ["deep/d.jpg", "folder/d.jpg"]),
        ("*/*/*.tif", None),
        ("**/[de].*", ["deep/d.jpg"]),
        ("**/**/e*", None),
        ("dee?/**", None),  # folders alone
        ("fol*/d.jpg", ["folder/d.jpg"]),
        ("elsewhere/*", ["elsewhere/f.jpg"]),
        ("none", None),
        ("*.txt", None),
    ],
)
def test_files_are_found_by_name_folder_or_pattern(root, name, paths):
    if paths is None:
        with pytest.raises(AnnotationError, match=r"no file .* with the extension '\.jpg'"):
            Folder(root).find_files(name, ending=".jpg")
    else:
        assert Folder(root).find_files(name, ending=".jpg") == paths


@pytest.mark.parametrize("name", ["..", "/etc", "deep/../../a.jpg", ""])
def test_names_that_lead_out_of_root_are_refused(root, name):
    folder = Folder(root)
    for look in (folder.stamp, lambda name: folder.find_files(name, ending=".jpg")):
        with pytest.raises(UnsafePathError):
            look(name)


def test_stamps_have_size_and_time_of_files_and_time_of_folders(root):
    folder = Folder(root)
    os.utime(root / "a.jpg", ns=(5, 7))
    os.utime(root / "deep", ns=(5, 9))
    assert [folder.stamp(name) for name in ("a.jpg", "deep")] == [(1, 7), (0, 9)]
    for name in ("pipe.jpg", "none.jpg", "circle.jpg"):
        with pytest.raises(AnnotationError, match=name):
            folder.stamp(name)


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
def test_joined_paths_are_normalized(folder, path, joined):
    assert join_path(folder, path) == joined


def test_stem_with_dot_matches_images(tmp_path):
    (tmp_path / "img").mkdir()
    for name in ("a.jpg", "a.jpg.PNG", "a.jpg.jpeg", "a.jpg.txt", "b.jpg"):
        (tmp_path / "img" / name).touch()
    folder = Folder(tmp_path)
    assert find_image(folder, "img/a.jpg") == ["img/a.jpg"]
    assert find_image(folder, "img/a.jpg", is_stem=True) == ["img/a.jpg.jpeg", "img/a.jpg.PNG"]
    assert find_image(folder, "img/b.jpg", is_stem=True) == ["img/b.jpg"]
    assert find_image(folder, "img/a") == ["img/a.jpg"]
    assert [folder.is_file(path) for path in ("img/a.jpg.txt", "img", "img/c", "none/a.jpg")] == [True] + [False] * 3
