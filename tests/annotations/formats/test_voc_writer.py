from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import ReadPolicy, Rows, read_annotations, write_annotations
from lit_loader.annotations.formats.voc import VocReader, voc_image_paths
from lit_loader.errors import UnsafePathError
from tests.support.voc_set import write_voc_xml

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp", "Cn"]), min_size=1, max_size=8)
NAMES = NAMES.filter(lambda name: name == name.strip() and "\ufffe" not in name and "\uffff" not in name)
CORNERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4)
OBJECTS = st.lists(st.tuples(NAMES, CORNERS, st.booleans(), st.booleans(), st.booleans()), max_size=4)
read_voc = partial(read_annotations, "voc", use_cache=False, progress=False)
KEEP = ReadPolicy(missing_image="keep", unreadable_image="keep")


def write_voc(table, root, **options):
    return write_annotations("voc", table, root, table.split or ".", progress=False, **options)


def columns(objects):
    return [list(column) for column in zip(*objects, strict=True)] if objects else [[], [], [], [], []]


@settings(max_examples=25)
@given(OBJECTS, NAMES)
def test_a_written_file_is_read_back_exactly(tmp_path_factory, objects, filename):
    root = tmp_path_factory.getbasetemp()
    names, boxes, difficult, truncated, occluded = columns(objects)
    write_voc_xml(
        root / "a.xml",
        filename=filename,
        width=640,
        height=480,
        names=names,
        boxes=boxes,
        difficult=difficult,
        truncated=truncated,
        occluded=occluded,
    )
    read = Rows(root, ReadPolicy())
    VocReader().read(read, ("a", "a.xml", None))
    found = read.objects.rows()
    assert (read.images.file_names, read.images.sizes.tolist()) == ([filename], [640, 480])
    assert [list(read.class_names)[i] for i in found["label"]] == names
    np.testing.assert_array_equal(found["box"].astype(np.float32), np.float32(boxes).reshape(-1, 4))
    flags = [d | t << 1 | o << 2 for d, t, o in zip(difficult, truncated, occluded, strict=True)]
    assert found["flags"].tolist() == flags
    assert len(read.report) == 0


def test_whole_numbers_are_written_without_a_fraction(tmp_path):
    write_voc_xml(tmp_path / "a.xml", filename="a.jpg", width=9, height=9, names=["x"], boxes=[[1, 2.0, 3.5, 4]])
    text = (tmp_path / "a.xml").read_text()
    assert "<xmin>1</xmin>" in text
    assert "<ymin>2</ymin>" in text
    assert "<xmax>3.5</xmax>" in text
    assert "<depth>3</depth>" in text


def test_a_table_written_and_read_is_the_same_table(three_images, tmp_path):
    three_images.add("d/e", ("owl &amp; &lt;co>", 1, 1, 2, 3, "<difficult>1</difficult>"), size=None)
    three_images.split("train", "c\nd/e\na\n")
    table = three_images.read("train", unreadable_image="keep")
    write_voc(table, tmp_path / "copy")
    again = read_voc(tmp_path / "copy", "train", policy=KEEP)
    assert again.class_names == table.class_names
    assert list(again.image_ids) == list(table.image_ids)
    for name in ("widths", "heights", "offsets", "boxes", "labels", "difficult", "truncated", "occluded"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))


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
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, change, words):
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
    table = AnnotationTable(
        root="/",
        class_names=["x"],
        offsets=[0, 0, 0],
        boxes=[],
        labels=[],
        image_paths=["p.jpg", "q.jpg"],
        image_ids=image_ids,
    )
    with pytest.raises(error, match=words):
        write_voc(table, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("folder", ["annotation_dir", "image_dir"])
def test_folders_cannot_lead_out_of_the_root(three_images, tmp_path, folder):
    with pytest.raises(UnsafePathError):
        write_voc(three_images.read(), tmp_path / "set", **{folder: "../elsewhere"})
    assert not (tmp_path / "set").exists()


def test_ids_of_other_formats_lose_their_extension_and_say_where_the_image_belongs(tmp_path):
    table = AnnotationTable(
        root="/", class_names=[], offsets=[0, 0, 0], boxes=[], labels=[], image_paths=["train/a.b.PNG", "c"]
    )
    assert voc_image_paths(table) == ["JPEGImages/train/a.b.PNG", "JPEGImages/c"]
    assert voc_image_paths(table, image_dir="x/y") == ["x/y/train/a.b.PNG", "x/y/c"]
    write_voc(table, tmp_path, image_dir="x/y")
    assert (tmp_path / "Annotations/train/a.b.xml").is_file()
    assert "<filename>a.b.PNG</filename>" in (tmp_path / "Annotations/train/a.b.xml").read_text()
    again = read_voc(tmp_path, image_dir="x/y", policy=KEEP)
    assert list(again.image_ids) == ["c", "train/a.b"]
    assert again.image_paths[1] == "x/y/train/a.b.PNG"


def test_an_image_of_two_extensions_is_found_again(tmp_path):
    paths = ["JPEGImages/a.jpg.jpg", "JPEGImages/sub/b.png.png"]
    parts = {"class_names": [], "offsets": [0, 0, 0], "boxes": [], "labels": []}
    for image_ids in (["a.jpg", "sub/b.png"], ["a.jpg.jpg", "sub/b.png.png"]):
        table = AnnotationTable(root=tmp_path, image_paths=paths, image_ids=image_ids, **parts)
        assert voc_image_paths(table) == paths
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    write_voc(table, tmp_path)
    again = read_voc(tmp_path, policy=KEEP)
    assert list(again.image_ids) == ["a.jpg", "sub/b.png"]
    assert list(again.image_paths) == paths


def test_a_set_without_images_is_read_back(tmp_path):
    empty = {"image_paths": [], "class_names": [], "offsets": [0], "boxes": [], "labels": []}
    write_voc(AnnotationTable(root=tmp_path, split="val", **empty), tmp_path)
    for name, split in (("val", "val"), (".", None)):
        table = read_voc(tmp_path, name)
        assert (table.num_images, table.split) == (0, split)


def test_the_name_that_is_written_is_the_split(three_images, tmp_path):
    three_images.split("train", "c\nb\n")
    table = three_images.read("train")
    for name in ("val", "."):
        with pytest.raises(ValueError, match=f"name='{re.escape(name)}' must be the table's split, 'train'"):
            write_annotations("voc", table, tmp_path / "new", name, progress=False)
    assert not (tmp_path / "new").exists()
    write_annotations("voc", three_images.read(), tmp_path / "new", "all", progress=False)
    assert (tmp_path / "new/ImageSets/Main/all.txt").read_text() == "a\nb\nc\n"
