"""Image files without annotations as a source: which files, in which order, and which are refused."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from lit_loader.datasets import ImageFilesSource
from lit_loader.errors import AnnotationError


def write(path, size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((size[1], size[0], 3), dtype=np.uint8)).save(path)


def test_images_of_all_folders_are_sorted_by_path(tmp_path):
    for name in ("b.png", "sub/a.jpg", "A.PNG", "sub/deep/c.png", ".hidden.png", ".cache/d.png"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    source = ImageFilesSource(tmp_path, progress=False)
    (table,) = source.tables("predict")
    assert list(table.image_paths) == ["A.PNG", "b.png", "sub/a.jpg", "sub/deep/c.png"]
    assert (table.widths.tolist(), table.heights.tolist()) == ([8] * 4, [6] * 4)
    assert table.num_objects == table.num_classes == 0
    assert [source.tables(stage) for stage in ("train", "val", "test")] == [[], [], []]


def test_one_image_file_is_a_set_of_one(tmp_path):
    write(tmp_path / "a.png")
    write(tmp_path / "b.png")
    (table,) = ImageFilesSource(tmp_path / "b.png").tables("predict")
    assert [table.image_path(row) for row in range(len(table))] == [tmp_path.resolve() / "b.png"]


def test_an_object_fills_each_image_on_request(tmp_path):
    write(tmp_path / "a.png", (8, 6))
    write(tmp_path / "b.png", (3, 9))
    (table,) = ImageFilesSource(tmp_path, object_class="face", progress=False).tables("predict")
    assert table.boxes.tolist() == [[0, 0, 8, 6], [0, 0, 3, 9]]
    assert (table.class_names, table.labels.tolist()) == (("face",), [0, 0])


def test_an_image_that_cannot_be_read_stays_in_the_table(tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    (table,) = ImageFilesSource(tmp_path, progress=False).tables("predict")
    assert list(table.image_paths) == ["a.png", "b.png"]
    assert table.widths.tolist() == [8, 0]


def test_a_folder_without_images_is_refused_with_its_content(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    messages = {
        "empty": r"expected image files, which end in \.jpg.*; got an empty folder",
        "texts": r"expected image files.*; got 1 \*\.txt",
        "texts/a.txt": r"expected a folder or an image file, got a file that does not end in \.jpg",
        "nowhere": "this file or folder does not exist; give a folder of images, or an image",
    }
    for name, message in messages.items():
        with pytest.raises(AnnotationError, match=message):
            ImageFilesSource(tmp_path / name, progress=False).prepare()


def test_the_table_changes_with_the_files_alone(tmp_path):
    write(tmp_path / "a.png")
    source = ImageFilesSource(tmp_path, progress=False)
    source.prepare()
    fingerprint = source.fingerprint()
    source.prepare()
    assert source.fingerprint() is fingerprint
    shutil.copy(tmp_path / "a.png", tmp_path / "b.png")
    source.prepare()
    assert source.fingerprint() is not fingerprint
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() is None
    assert list(copy.tables("predict")[0].image_paths) == ["a.png", "b.png"]
