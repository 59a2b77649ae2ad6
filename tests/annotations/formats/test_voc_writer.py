from __future__ import annotations

import re
from functools import partial

import pytest

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from lit_loader.annotations.formats.voc import voc_image_paths
from lit_loader.errors import UnsafePathError
from tests.support.voc_set import write_voc_xml

read_voc = partial(read_annotations, "voc", use_cache=False, progress=False)
KEEP = ReadPolicy(missing_image="keep", unreadable_image="keep")


def table_without_objects(image_paths, **columns):
    offsets = [0] * (len(image_paths) + 1)
    columns = {"root": "/", "class_names": [], "offsets": offsets, "boxes": [], "labels": [], **columns}
    return AnnotationTable(image_paths=image_paths, **columns)


def write_voc(table, root, **options):
    return write_annotations("voc", table, root, table.split or ".", progress=False, **options)


def test_the_folder_of_annotations_may_be_named_and_a_split_is_optional(three_images, tmp_path):
    write_voc(three_images.read(), tmp_path, annotation_dir="xml")
    assert sorted(path.name for path in (tmp_path / "xml").iterdir()) == ["a.xml", "b.xml", "c.xml"]
    assert not (tmp_path / "ImageSets").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ["a\0b"]}, "character that XML cannot"),
        ({"filename": "\ud800.jpg"}, "character that XML cannot"),
        ({"names": [" x"]}, "class ' x' would not be read back"),
        ({"names": ["x" * 300]}, "would not be read back"),
        ({"keypoints": [[[1, 2]]], "schema": {"names": ["p "]}}, "point 'p ' would not be read back"),
        ({"attributes": {"pose": ["a\0"]}}, "character that XML cannot"),
        ({"attributes": {"pose": [" a"]}}, "value of attribute 'pose' ' a' would not be read back"),
        ({"attributes": {" ": ["a"]}}, "attribute ' ' would not be read back"),
    ],
)
def test_names_that_xml_cannot_hold_are_refused_and_no_file_is_left(tmp_path, change, words):
    arguments = {"filename": "a.jpg", "width": 1, "height": 1, "names": ["x"], "boxes": [[0, 0, 1, 1]]}
    with pytest.raises(ValueError, match=words):
        write_voc_xml(tmp_path / "a.xml", **(arguments | change))
    assert not (tmp_path / "a.xml").exists()


@pytest.mark.parametrize(
    ("image_ids", "error", "words"),
    [
        (["a", "a"], ValueError, "'p.jpg' and 'q.jpg' have the same id 'a'"),
        (["a.jpg", "a"], ValueError, "have the same id 'a'"),
        (["../a", "b"], UnsafePathError, r"'\.\.'"),
        ([".a", "b"], ValueError, "with a dot"),
        (["a ", "b"], ValueError, "with a space"),
        (["a\nb", "c"], ValueError, "with a space"),
        (["a/", "b"], ValueError, "cannot be a line"),
    ],
)
def test_ids_that_cannot_be_files_are_refused_before_anything_is_written(tmp_path, image_ids, error, words):
    table = table_without_objects(["p.jpg", "q.jpg"], image_ids=image_ids)
    with pytest.raises(error, match=words):
        write_voc(table, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("folder", ["annotation_dir", "image_dir"])
def test_folders_cannot_lead_out_of_the_root(three_images, tmp_path, folder):
    with pytest.raises(UnsafePathError):
        write_voc(three_images.read(), tmp_path / "set", **{folder: "../elsewhere"})
    assert not (tmp_path / "set").exists()


def test_ids_of_other_formats_lose_their_extension(tmp_path):
    table = table_without_objects(["train/a.b.PNG", "c"])
    assert voc_image_paths(table) == ["JPEGImages/train/a.b.PNG", "JPEGImages/c"]
    assert voc_image_paths(table, image_dir="x/y") == ["x/y/train/a.b.PNG", "x/y/c"]
    write_voc(table, tmp_path, image_dir="x/y")
    assert (tmp_path / "Annotations/train/a.b.xml").is_file()
    assert "<filename>a.b.PNG</filename>" in (tmp_path / "Annotations/train/a.b.xml").read_text()
    restored = read_voc(tmp_path, image_dir="x/y", policy=KEEP)
    assert list(restored.image_ids) == ["c", "train/a.b"]
    assert restored.image_paths[1] == "x/y/train/a.b.PNG"


def test_an_image_with_two_extensions_is_found_after_writing(tmp_path):
    paths = ["JPEGImages/a.jpg.jpg", "JPEGImages/sub/b.png.png"]
    for image_ids in (["a.jpg", "sub/b.png"], ["a.jpg.jpg", "sub/b.png.png"]):
        table = table_without_objects(paths, image_ids=image_ids)
        assert voc_image_paths(table) == paths
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    write_voc(table, tmp_path)
    restored = read_voc(tmp_path, policy=KEEP)
    assert list(restored.image_ids) == ["a.jpg", "sub/b.png"]
    assert list(restored.image_paths) == paths


def test_a_set_without_images_is_read_back(tmp_path):
    write_voc(table_without_objects([], split="val"), tmp_path)
    for name, split in (("val", "val"), (".", None)):
        table = read_voc(tmp_path, name)
        assert (table.num_images, table.split) == (0, split)


def test_name_must_be_the_split_of_the_table(three_images, tmp_path):
    three_images.split("train", "c\nb\n")
    table = three_images.read("train")
    for name in ("val", "."):
        with pytest.raises(ValueError, match=f"name='{re.escape(name)}' must be the table's split, 'train'"):
            write_annotations("voc", table, tmp_path / "new", name, progress=False)
    assert not (tmp_path / "new").exists()
    write_annotations("voc", three_images.read(), tmp_path / "new", "all", progress=False)
    assert (tmp_path / "new/ImageSets/Main/all.txt").read_text() == "a\nb\nc\n"
