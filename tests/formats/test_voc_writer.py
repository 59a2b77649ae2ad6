from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.errors import UnsafePathError
from lit_loader.formats import VocPolicy, read_voc, write_voc, write_voc_xml
from lit_loader.formats.voc_parse import parse_voc_files

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp", "Cn"]), min_size=1, max_size=8
)
NAMES = NAMES.filter(lambda name: name == name.strip() and "\ufffe" not in name and "\uffff" not in name)
CORNERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4)
OBJECTS = st.lists(st.tuples(NAMES, CORNERS, st.booleans(), st.booleans(), st.booleans()), max_size=4)


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
    read = parse_voc_files(["a.xml"], root=root, malformed="raise")
    assert (read.filenames, read.sizes.tolist()) == ([filename], [[640, 480]])
    assert [read.names[i] for i in read.name_ids] == names
    np.testing.assert_array_equal(read.corners, np.array(boxes, dtype=np.float64).reshape(-1, 4))
    assert read.flags.tolist() == [list(row) for row in zip(difficult, truncated, occluded, strict=True)]


def test_whole_numbers_are_written_without_a_fraction(tmp_path):
    write_voc_xml(
        tmp_path / "a.xml",
        filename="a.jpg",
        width=9,
        height=9,
        depth=1,
        names=["x"],
        boxes=[[1, 2.0, 3.5, 4]],
    )
    text = (tmp_path / "a.xml").read_text()
    assert "<xmin>1</xmin>" in text
    assert "<ymin>2</ymin>" in text
    assert "<xmax>3.5</xmax>" in text
    assert "<depth>1</depth>" in text


def test_a_table_written_and_read_is_the_same_table(three_images, tmp_path):
    three_images.add("d/e", ("owl &amp; &lt;co>", 1, 1, 2, 3, "<difficult>1</difficult>"), size=None)
    three_images.split("train", "c\nd/e\na\n")
    table = three_images.read(split="train")
    write_voc(table, tmp_path / "copy")
    policy = VocPolicy(missing_image="keep")
    again = read_voc(tmp_path / "copy", split="train", policy=policy, use_cache=False)
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
        ({"boxes": [[0, 0, 1, 1]] * 2}, "boxes has 2 rows; there are 1 names"),
        ({"difficult": []}, "difficult has 0 rows"),
        ({"boxes": [[0, 0, 1, np.nan]]}, "finite"),
        ({"names": ["a\0b"]}, "character that XML cannot"),
        ({"filename": "\ud800.jpg"}, "character that XML cannot"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, change, words):
    arguments = {"filename": "a.jpg", "width": 1, "height": 1, "names": ["x"], "boxes": [[0, 0, 1, 1]]}
    with pytest.raises(ValueError, match=words):
        write_voc_xml(tmp_path / "a.xml", **(arguments | change))
    assert not (tmp_path / "a.xml").exists()


def test_a_table_that_voc_cannot_hold_is_refused(tmp_path):
    base = {"root": "/", "class_names": ["x"], "offsets": [0, 1], "boxes": [[0, 0, 1, 1]], "labels": [0]}
    one = {**base, "image_paths": ["a.jpg"], "image_ids": ["a"]}
    pose = {"pose": Attribute(ids=np.array([0]), names=("front",))}
    for change in ({"crowd": [True]}, {"attributes": pose}):
        with pytest.raises(ValueError, match="cannot be written as VOC"):
            write_voc(AnnotationTable(**one, **change), tmp_path)
    with pytest.raises(ValueError, match="same id"):
        write_voc(AnnotationTable(**one).select([0, 0]), tmp_path)
    with pytest.raises(UnsafePathError):
        write_voc(AnnotationTable(**{**one, "image_ids": ["../a"]}), tmp_path)
