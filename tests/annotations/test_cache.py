from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations import cache, image_labels, image_weights
from lit_loader.annotations.formats import read_annotations, reader
from lit_loader.errors import AnnotationError, CacheError
from lit_loader.foundation.files import cache_folder

OPENED: list[str] | None = None


def _note_opens(event, arguments):
    if OPENED is not None and event == "open":
        OPENED.append(str(arguments[0]))


sys.addaudithook(_note_opens)


@pytest.fixture
def opened(monkeypatch):
    """Every path that Python opens while the test runs."""
    paths: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "OPENED", paths)
    return paths


@pytest.fixture
def read(three_images, tmp_path):
    """Read the three images through a cache of the test's own; counts the builds."""
    three_images.split("train", "a\nb\nc\n")

    def read(**arguments):
        return three_images.read(**{"name": "train", "use_cache": True, "cache_dir": tmp_path / "cache"} | arguments)

    return read


@pytest.fixture
def builds(monkeypatch):
    """A list that grows by one for each table built from XML."""
    builds = []
    original = reader.build_table
    monkeypatch.setattr(reader, "build_table", lambda *a, **k: builds.append(1) or original(*a, **k))
    return builds


def touch(path, seconds=10):
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + seconds * 10**9))


def files_of(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.arrow"))


def test_warm_read_opens_no_annotation_or_image(read, opened, three_images):
    read()
    assert {Path(path).suffix for path in opened if str(three_images.root) in path} == {".xml", ".txt", ".jpg"}
    opened.clear()
    table = read()
    table.image_class_counts(), image_labels(table), image_weights(table, np.ones(2))
    assert {Path(path).suffix for path in opened if str(three_images.root) in path} == {".txt"}


def test_warm_table_equals_cold_table_and_is_mapped(read, builds, three_images):
    three_images.add("b", ("dog", 9, 9, 3, 3))
    fresh = read(use_cache=False)
    cold = read()
    warm = read()
    assert len(builds) == 2
    for table in (cold, warm):
        assert not table.boxes.flags.owndata
        assert (table.class_names, table.report, table.root) == (fresh.class_names, fresh.report, fresh.root)
        assert table.report.problems[0].file == "Annotations/b.xml"
        np.testing.assert_array_equal(table.boxes, fresh.boxes)
        assert list(table.image_paths) == list(fresh.image_paths)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: touch(v.root / "Annotations/a.xml"),
        lambda v: v.add("a", ("dog", 1, 1, 2, 2)),
        lambda v: v.split("train", "a\nb\n"),
        lambda v: v.split("train", "b\na\nc\n"),
        lambda v: touch(v.root / "ImageSets/Main/train.txt"),
    ],
    ids=["time", "content", "split", "order", "time of the split"],
)
def test_change_of_sources_or_settings_rebuilds_table(read, builds, three_images, change):
    read()
    change(three_images)
    read()
    read()
    assert len(builds) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"one_based": True},
        {"class_names": ["cat", "dog"]},
        {"name": "."},
        {"degenerate": "keep"},
        {"split_dir": "./ImageSets/Main"},
    ],
)
def test_each_setting_has_its_own_cached_table(read, builds, arguments):
    read()
    read(**arguments)
    read(**arguments)
    assert len(builds) == 2


def test_unrelated_changes_keep_table_fresh(read, builds, three_images):
    read()
    three_images.add("z")
    (three_images.root / "notes.txt").touch()
    touch(three_images.root / "JPEGImages/a.jpg")
    (three_images.root / "JPEGImages/new.jpg").touch()
    read(num_workers=1, progress=True)
    assert len(builds) == 1


def test_use_cache_false_reads_and_writes_no_cache(read, builds, tmp_path):
    read(use_cache=False)
    read(use_cache=False)
    assert len(builds) == 2
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"junk" * 100, None], ids=["empty", "junk", "cut short"])
def test_damaged_cache_file_is_rebuilt(read, builds, tmp_path, content):
    read()
    (file,) = files_of(tmp_path)
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2] if content is None else content)
    assert read().num_images == 3
    assert len(builds) == 2
    assert file.read_bytes() == good


def test_table_of_another_root_is_not_used(read, tmp_path):
    table = read()
    (file,) = files_of(tmp_path)
    dataclasses.replace(table, root="/elsewhere").save(file, key=file.stem)
    assert read().root == table.root


def test_files_changed_during_read_are_read_again(read, three_images, monkeypatch, builds):
    original = reader.build_table

    def build(*arguments, **named):
        if len(builds) == 1:
            three_images.add("a", ("dog", 1, 1, 2, 2))
        return original(*arguments, **named)

    num_objects = read(use_cache=False).num_objects
    monkeypatch.setattr(reader, "build_table", build)
    assert read().num_objects == num_objects
    assert read().num_objects == num_objects + 1


def test_set_with_two_files_of_one_id_is_cached(read, three_images, builds):
    folder = three_images.root / "Annotations"
    (folder / "a.XML").write_bytes((folder / "a.xml").read_bytes())
    tables = [read(name=".", duplicate_id="drop") for _ in range(2)]
    assert [table.num_images for table in tables] == [3, 3]
    assert len(builds) == 1


def test_trusted_cache_returns_last_table_without_checking_files(read, builds, three_images, opened):
    read()
    three_images.split("train", "a\n")
    opened.clear()
    assert read(trust_cache=True).num_images == 3
    assert not [path for path in opened if str(three_images.root) in path]
    assert read().num_images == 1
    assert read(trust_cache=True).num_images == 1
    assert len(builds) == 2


@pytest.mark.parametrize("damage", ["none yet", "no table", "other options", "read only"])
def test_trusted_cache_without_table_reads_files(read, builds, tmp_path, monkeypatch, damage):
    if damage != "none yet":
        read(one_based=damage == "other options")
    if damage == "no table":
        files_of(tmp_path)[0].unlink()
    if damage == "read only":
        monkeypatch.setattr(cache.os, "access", lambda *arguments: False)
    assert read(trust_cache=True).num_images == 3
    assert len(builds) == {"none yet": 1, "no table": 2, "other options": 2}.get(damage, 1)


def test_trusted_cache_never_returns_older_table(read, builds, three_images):
    read(missing_image="drop")
    (three_images.root / "JPEGImages/c.jpg").unlink()
    touch(three_images.root / "Annotations/c.xml")
    assert read(missing_image="drop").num_images == 2  # which is not kept
    assert read(missing_image="drop", trust_cache=True).num_images == 2


def test_damaged_record_of_last_read_counts_as_missing(read, builds, tmp_path):
    read()
    (path,) = (tmp_path / "cache").rglob("*.last")
    key = path.read_bytes()
    for damaged in (b"\xff" + key, b"../" + key, b""):
        path.write_bytes(damaged)
        assert read(trust_cache=True).num_images == 3
        assert path.read_bytes() == key
    assert len(builds) == 1


def test_a_failed_read_leaves_nothing_in_the_cache(read, three_images, tmp_path):
    three_images.raw("b", "<oops")
    with pytest.raises(AnnotationError):
        read()
    assert files_of(tmp_path) == []


def test_unwritable_cache_warns_and_keeps_table_in_memory(read, tmp_path):
    (tmp_path / "cache").touch()
    with pytest.warns(UserWarning, match=r"cannot be used .*use_cache=False"):
        assert read().num_images == 3


def _read_into(root, folder, queue):
    queue.put(pickle.dumps(read_annotations("voc", root, cache_dir=folder, progress=False)))


def test_concurrent_writers_leave_one_complete_file(three_images, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    arguments = (three_images.root, tmp_path / "cache", queue)
    workers = [context.Process(target=_read_into, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    tables = [pickle.loads(queue.get()) for _ in workers]
    for worker in workers:
        worker.join()
        worker.close()
    queue.close()
    assert [table.num_objects for table in tables] == [5] * 4
    assert len(files_of(tmp_path)) == 1


def test_the_folder_follows_the_argument_then_xdg_then_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "lit_loader"
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "lit_loader"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "lit_loader"

    def no_home():
        raise RuntimeError

    monkeypatch.setattr(cache.Path, "home", no_home)
    with pytest.raises(CacheError, match="cache_dir"):
        cache_folder()


def test_data_folder_stays_unchanged(read, three_images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = sorted(three_images.root.rglob("*"))
    read(cache_dir=None)
    assert sorted(three_images.root.rglob("*")) == files
    assert len(files_of(tmp_path)) == 1
