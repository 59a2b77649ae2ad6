"""The registry: every format by name, options known by signature, mistakes told with what was meant."""

from __future__ import annotations

import inspect
import re

import pytest

from lit_loader.errors import AnnotationError
from lit_loader.formats import VocPolicy, read_voc
from lit_loader.formats.registry import READERS, WRITERS, find_format, read_annotations, write_annotations
from tests.face_lists import OPTIONS, write_faces


def same(a, b):
    assert list(a.image_paths) == list(b.image_paths)
    assert a.class_names == b.class_names
    assert (a.boxes == b.boxes).all()
    assert (a.labels == b.labels).all()


@pytest.mark.parametrize("entry", READERS.values(), ids=list(READERS))
def test_every_reader_has_the_arguments_that_all_readers_have(entry):
    parameters = inspect.signature(entry.load()).parameters
    shared = {"class_names", "policy", "cache_dir", "use_cache", "num_workers", "progress", entry.named_by}
    assert shared <= set(parameters)
    assert not shared & set(entry.options())
    assert entry.description
    assert entry.make_policy({}) == entry.make_policy(None)


@pytest.mark.parametrize("entry", WRITERS.values(), ids=list(WRITERS))
def test_every_writer_is_there_with_the_format_it_writes(entry):
    assert entry.format in READERS
    assert next(iter(inspect.signature(entry.load()).parameters)) == "table"
    assert entry.description


def test_a_name_stands_for_the_reader(three_images, tmp_path):
    three_images.split("train", "a\nb\n")
    quiet = {"use_cache": False, "progress": False}
    same(
        read_annotations("voc", three_images.root, "train", **quiet),
        read_voc(three_images.root, split="train", **quiet),
    )
    assert read_annotations("voc", three_images.root, ".", **quiet).num_images == 3


def test_every_argument_reaches_the_reader(three_images, tmp_path):
    three_images.add("d", ("bird", 5, 5, 5, 9))
    cache = tmp_path / "cache"
    table = read_annotations(
        "voc",
        three_images.root,
        ".",
        class_names=["dog", "cat", "bird"],
        policy={"degenerate": "keep"},
        cache_dir=cache,
        num_workers=0,
        progress=False,
        one_based=True,
    )
    assert table.class_names == ("dog", "cat", "bird")
    assert table.class_counts().tolist() == [4, 1, 1]
    assert table.boxes[0].tolist() == [0, 1, 29, 39]
    assert len(list(cache.rglob("*.arrow"))) == 1
    with pytest.raises(ValueError, match="num_workers=-1"):
        read_annotations("voc", three_images.root, ".", num_workers=-1)
    dropped = read_annotations(
        "voc", three_images.root, ".", policy=VocPolicy(), use_cache=False, progress=False
    )
    assert dropped.report.count("degenerate") == 1


def test_what_is_not_known_is_told_with_what_was_meant(tmp_path):
    with pytest.raises(ValueError, match=r"'cocoa' cannot be read; did you mean 'coco'\? formats: voc, coco"):
        read_annotations("cocoa", tmp_path, "x")
    with pytest.raises(
        ValueError, match=r"has no option 'colums'; did you mean 'columns'\? its options: colu"
    ):
        read_annotations("points_list", tmp_path, "x", colums="path")
    with pytest.raises(ValueError, match="'points_list' needs the option 'columns'"):
        read_annotations("points_list", tmp_path, "x")
    with pytest.raises(
        ValueError, match=r"has no 'bad_points'; did you mean 'bad_point'\? it has: malformed"
    ):
        read_annotations("points_list", tmp_path, "x", policy={"bad_points": "drop"}, **OPTIONS)
    with pytest.raises(ValueError, match="malformed='fix' must be one of"):
        read_annotations("points_list", tmp_path, "x", policy={"malformed": "fix"}, **OPTIONS)
    with pytest.raises(ValueError, match="'wflw' cannot be written; formats: voc, coco, points_list"):
        find_format(WRITERS, "wflw")


def test_what_is_written_by_name_is_read_by_name(three_images, tmp_path):
    three_images.split("val", "a\nb\nc\n")
    quiet = {"use_cache": False, "progress": False}
    table = read_annotations("voc", three_images.root, "val", **quiet)
    new = tmp_path / "new"
    with pytest.raises(ValueError, match="name='train' must be the table's split, 'val'"):
        write_annotations("voc", table, new, "train", progress=False)
    with pytest.raises(ValueError, match="has no option 'columns'"):
        write_annotations("voc", table, new, "val", columns=["path"])
    write_annotations("voc", table, new, "val", annotation_dir="xml", progress=False)
    again = read_annotations(
        "voc", new, "val", annotation_dir="xml", policy={"missing_image": "keep"}, **quiet
    )
    assert (again.boxes == table.boxes).all()
    write_annotations("coco", table, new, "val.json", progress=False)
    same(
        read_annotations("coco", new, "val.json", policy={"missing_image": "keep"}, **quiet),
        table,
    )


def test_what_would_be_lost_is_refused_or_returned(tmp_path):
    write_faces(tmp_path, "train.txt", 6)
    quiet = {"use_cache": False, "progress": False}
    table = read_annotations("points_list", tmp_path, "train.txt", **quiet, **OPTIONS)
    assert write_annotations("points_list", table, tmp_path, "all.txt", columns=OPTIONS["columns"]) == []
    assert (tmp_path / "all.txt").read_text() == (tmp_path / "train.txt").read_text()
    with pytest.raises(ValueError, match="cannot hold classes"):
        write_annotations("points_list", table, tmp_path, "few.txt", columns="path points")
    assert not (tmp_path / "few.txt").exists()
    lost = write_annotations(
        "points_list", table, tmp_path, "few.txt", allow_loss=True, columns="path points"
    )
    assert lost == ["classes"]


def test_errors_of_the_data_pass_through(tmp_path):
    write_faces(tmp_path, "train.txt", 2)
    with (tmp_path / "train.txt").open("a") as file:
        file.write("images/person0_0.png 1 2 3\n")
    with pytest.raises(AnnotationError, match=r"train.txt:3"):
        read_annotations("points_list", tmp_path, "train.txt", use_cache=False, progress=False, **OPTIONS)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("image_dir", 3, "option image_dir=3 of format 'points_list' must be text"),
        ("normalized", "maybe", "normalized='maybe' of format 'points_list' must be true or false"),
        ("header", "x", "must be true or false or a whole number"),
        ("columns", 3, "must be a list of text or text"),
        ("columns", ["path", 3], "must be a list of text or text"),
        ("box_format", "yxyx", "must be 'xyxy' or 'xywh'"),
        ("attribute_values", {"0": False}, "must be a mapping of text to text or null"),
        ("attribute_values", {0: "no"}, "must be a mapping of text to text or null"),
        ("class_name", True, "must be text or null"),
        ("visibility_values", [0], "must be a mapping of a number to a whole number or null"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, option, value, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        read_annotations("points_list", tmp_path, "x", **{"columns": "path", option: value})


def test_a_value_of_the_type_is_taken():
    takes = READERS["points_csv"].takes
    assert takes("path_column", 0)
    assert takes("path_column", "file")
    assert not takes("path_column", None)
    assert not takes("path_column", False)
    assert takes("box_columns", ("a", 3, "c", 4))
    assert not takes("box_columns", "abcd")
    assert takes("schema", {"names": ["a"]})
    assert takes("no_such_option", object())
