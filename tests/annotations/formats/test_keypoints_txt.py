from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.formats.keypoints_txt import KeypointsTxtReader
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import write_image


@pytest.fixture
def read(tmp_path):
    for name in ("a.jpg", "b c.jpg", "deep/d.png"):
        write_image(tmp_path / name)

    def read(text, **options):
        (tmp_path / "list.txt").write_text(text)
        options = {"use_cache": False, "cache_dir": tmp_path / "cache"} | options
        return read_annotations("keypoints_txt", tmp_path, "list.txt", **options)

    return read


def test_points_and_class_after_the_path(read):
    text = "# faces\r\n\r\na.jpg 1 2 30 5.5 sad\r\ndeep/d.png 5 6 7 8 happy\r\n  # end"
    table = read(text, columns="path points class", schema=2)
    assert list(table.image_paths) == ["a.jpg", "deep/d.png"]
    assert (table.class_names, table.labels.tolist()) == (("happy", "sad"), [1, 0])
    assert table.keypoints.tolist() == [[[1, 2], [30, 5.5]], [[5, 6], [7, 8]]]
    assert table.boxes.tolist() == [[1, 2, 30, 5.5], [5, 6, 7, 8]]
    assert (table.visibility == 2).all()
    assert table.widths.tolist() == [60, 60]
    assert table.keypoint_names == ("00", "01")


def test_columns_have_any_order_and_may_be_skipped(read):
    columns = "attribute:pose skip xmin ymin skip xmax ymax attribute:hat path"
    table = read("left 7 1 2 x 30 40 - a.jpg", columns=columns)
    assert (table.boxes.tolist(), table.class_names) == ([[1, 2, 30, 40]], ("object",))
    assert table.attributes["pose"].names == ("left",)
    assert (table.attributes["hat"].names, table.attributes["hat"].ids.tolist()) == ((), [-1])


def test_paths_alone_are_images_without_objects(read):
    table = read("a.jpg\ndeep/d.png", columns="path", class_names=["cat"])
    assert (list(table.image_paths), table.num_objects) == (["a.jpg", "deep/d.png"], 0)
    assert read("a.jpg\na.jpg", columns="path", class_name="cat").num_objects == 2


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_paths_may_have_blanks_between_other_separators(read, separator):
    text = separator.join([" b c.jpg ", "big cat", "1", " 2", "30", "40"])
    table = read(text, columns=["path", "class", "box"], separator=separator)
    assert (list(table.image_paths), table.class_names) == (["b c.jpg"], ("big cat",))


def test_path_with_blanks_is_refused_with_the_remedy(read):
    words = r"list\.txt:2: 6 fields; columns 'path box' ask for 5; see `separator` for p"
    with pytest.raises(AnnotationError, match=words):
        read("a.jpg 1 2 3 4\nb c.jpg 1 2 3 4", columns="path box")


def test_flags_of_points_set_their_visibility(read):
    text = "a.jpg 1 2 0 3 4 1 5 6 -1"
    table = read(text, columns="path points_v", schema=3, visibility_values={"0.0": 2, 1: 1, -1: 0})
    assert table.visibility.tolist() == [[2, 1, 0]]
    assert table.keypoints[0, 2].tolist() == [0, 0]
    plain = read("a.jpg 1 2 0 3 4 1 5 6 2", columns="path points_v", schema=3)
    assert plain.visibility.tolist() == [[0, 1, 2]]
    with pytest.raises(AnnotationError, match=r"list\.txt:1: flag -1 of a point must be one of 0, 1, 2"):
        read(text, columns="path points_v", schema=3)


def test_schema_sets_names_and_flip_pairs(read):
    table = read("a.jpg " + "1 2 " * 5, columns="path points", schema="face_5", policy={"degenerate": "keep"})
    assert table.keypoint_schema == KEYPOINT_SCHEMAS["face_5"]


@pytest.mark.parametrize(
    ("numbers", "options", "box", "point"),
    [
        ("1 2 30 40 5 6", {}, [1, 2, 30, 40], [5, 6]),
        ("1 2 30 40 5 6", {"one_based": True}, [0, 1, 29, 39], [4, 5]),
        ("1 2 30 40 5 6", {"box_format": "xywh"}, [1, 2, 31, 42], [5, 6]),
        ("11 22 20 40 5 6", {"box_format": "cxcywh"}, [1, 2, 21, 42], [5, 6]),
        ("1 2 30 40 5 6", {"y_up": True}, [1, 10, 30, 48], [5, 44]),
        ("0 0.5 0.5 1 1 1", {"normalized": True, "y_up": True}, [0, 0, 30, 25], [60, 0]),
        ("0 0.5 0.5 1 1 1", {"normalized": True}, [0, 25, 30, 50], [60, 50]),
    ],
)
def test_coordinates_are_converted_to_pixels(read, numbers, options, box, point):
    table = read(f"a.jpg {numbers}", columns="path box points", schema=1, **options)
    assert (table.boxes.tolist(), table.keypoints.tolist()) == ([box], [[point]])


def test_header_and_comments_are_skipped(read):
    text = "2\npath x y w h\na.jpg 1 2 3 4\n#b.jpg 1 2 3 4\n"
    assert read(text, columns="path box", header=2).num_objects == 1
    assert read("h\na.jpg 1 2 3 4", columns="path box", header=True).num_objects == 1
    assert read("% no\na.jpg 1 2 3 4", columns="path box", comment="%").num_objects == 1
    with pytest.raises(AnnotationError, match=r"list\.txt:4: there is no image '#b.jpg'"):
        read(text, columns="path box", header=2, comment=None)


def test_attribute_values_replace_texts(read):
    columns = "path attribute:smile"
    table = read("a.jpg 1", columns=columns, attribute_values={"0": "no", "1": "yes"})
    assert (table.attributes["smile"].names, table.attributes["smile"].ids.tolist()) == (("no", "yes"), [1])
    with pytest.raises(AnnotationError, match=r"list\.txt:1: attribute 'smile' is '2'; known: '0', '1'"):
        read("a.jpg 2", columns=columns, attribute_values={"0": "no", "1": "yes"})


def test_names_and_folders_follow_options(read):
    table = read("d.png", columns="path", image_dir="deep", class_name="cat", split="val", class_names=["dog", "cat"])
    assert (list(table.image_paths), list(table.image_ids)) == (["deep/d.png"], ["d.png"])
    assert (table.class_names, table.labels.tolist(), table.split) == (("dog", "cat"), [1], "val")
    assert table.boxes.tolist() == [[0, 0, 60, 50]]


def test_an_empty_field_is_an_absent_point(read):
    table = read("a.jpg,1,2,,4", columns="path points", separator=",", schema=2, policy={"degenerate": "keep"})
    assert (table.visibility.tolist(), table.keypoints.tolist()) == ([[2, 0]], [[[1, 2], [0, 0]]])


def test_y_up_needs_the_size_of_the_image(read):
    options = {"columns": "path points", "schema": 2, "y_up": True, "policy": {"missing_image": "keep"}}
    with pytest.raises(AnnotationError, match=r"from the lower edge of the image, and the size of 'none\.jpg'"):
        read("none.jpg 1 2 3 4", **options)


def test_malformed_lines_are_dropped_and_listed(read):
    text = "a.jpg 1 2 3\na.jpg 1 2 3 x\na.jpg 1 2 3 4\n\ta.jpg nan 2 3 4\n"
    table = read(text, columns="path box", policy={"malformed": "drop"})
    assert table.report.counts == {("malformed", "drop"): 2, ("non_finite", "drop"): 1}
    assert [problem.line for problem in table.report.problems] == [1, 2, 4]
    with pytest.raises(AnnotationError, match=r"list\.txt:2: expected number 4 of 4, got 'x'"):
        read("\n" + text[12:], columns="path box")


def test_unsafe_paths_are_refused_under_every_policy(read):
    with pytest.raises(UnsafePathError, match=r"list\.txt:2"):
        read("a.jpg\n../a.jpg", columns="path", policy={"malformed": "drop", "missing_image": "drop"})


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": "path attribute:x"},
        {"separator": ","},
        {"class_names": ["x", "y"]},
        {"comment": None},
        {"split": "val"},
        {"image_dir": "deep"},
        {"policy": {"missing_image": "drop"}},
        {"columns": "path class points", "schema": 2},
        {"columns": "path class points_v", "schema": 2, "visibility_values": {3: 2}},
        {"columns": "path attribute:x", "attribute_values": {"x": "y"}},
    ],
)
def test_every_option_is_part_of_the_cache_key(read, monkeypatch, changed):
    options = {"columns": "path class", "use_cache": True}
    assert read("a.jpg x", **options).num_images == 1
    monkeypatch.setattr(KeypointsTxtReader, "read", lambda *_: pytest.fail("read again"))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        read("a.jpg x", **options | changed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "class"}, "have no 'path'"),
        ({"columns": "path path"}, "hold 'path' twice"),
        ({"columns": "path color"}, "hold 'color'; each must be one of path, class"),
        ({"columns": "path points"}, "no schema do not go together"),
        ({"columns": "path", "schema": 5}, "a schema of 5 points do not go together"),
        ({"columns": "path points points_v", "schema": 5}, "give one column of points"),
        ({"columns": "path xmin ymin xmax"}, "must hold all of"),
        ({"columns": "path box xmin ymin xmax ymax"}, "must hold all of"),
        ({"columns": "path attribute:"}, "each must be one of"),
        ({"columns": "path class", "class_name": "x"}, "exclude each other"),
        ({"columns": "path", "box_format": "xywh"}, "needs a box of four numbers"),
        ({"columns": "path xmin ymin xmax ymax", "box_format": "cxcywh"}, "needs a box of four numbers"),
        ({"columns": "path box", "box_format": "yxyx"}, "must be 'xyxy' or 'xywh' or 'cxcywh'"),
        ({"columns": "path", "one_based": True, "y_up": True}, "exclude each other"),
        ({"columns": "path", "one_based": True, "normalized": True}, "exclude each other"),
        ({"columns": "path", "separator": "."}, "must be one character"),
        ({"columns": "path", "comment": ""}, "would skip every line"),
        ({"columns": "path", "header": -1}, "must be a number of lines"),
        ({"columns": "path", "visibility_values": {0: 1}}, "need a column 'points_v'"),
        ({"columns": "path points_v", "schema": 1, "visibility_values": {0: 3}}, "must mean 0 absent"),
        ({"columns": "path", "attribute_values": {"0": "no"}}, "need a column of an attribute"),
    ],
)
def test_contradicting_options_are_refused(read, options, words):
    with pytest.raises(ValueError, match=words):
        read("a.jpg", **options)
