from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from lit_loader.annotations.formats.keypoints_txt import KeypointsTxtWriter
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.table import AnnotationTable, Attribute
from lit_loader.errors import UnsafePathError
from tests.support.any_table import attribute_values

KEEP = ReadPolicy(missing_image="keep", degenerate="keep", swapped="raise", invalid_keypoint="raise")
FLAGS = ("difficult", "truncated", "occluded", "crowd")
BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
ALL = "path class box points_v attribute:pose"
COORDINATE = st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False)
NAME = st.text(st.sampled_from("ab9_-#é語. "), min_size=1, max_size=8)


@st.composite
def tables(draw, *, blanks: bool):
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    total = sum(counts)
    num_points = draw(st.integers(1, 4))
    text = NAME.map(str.strip) if blanks else NAME.map(lambda name: "".join(name.split()))
    names = draw(st.lists(text.filter(lambda name: name not in ("", "-")), min_size=1, max_size=3, unique=True))

    def array(elements, *shape):
        size = int(np.prod(shape))
        return np.array(draw(st.lists(elements, min_size=size, max_size=size))).reshape(shape)

    visibility = array(st.integers(0, 2), total, num_points).astype(np.uint8)
    points = array(COORDINATE, total, num_points, 2)
    return AnnotationTable(
        root=tempfile.gettempdir(),
        image_paths=[f"no such folder/{i}.jpg" if blanks else f"deep/{i}.jpg" for i in range(len(counts))],
        class_names=names,
        offsets=np.cumsum([0, *counts]),
        boxes=np.sort(array(COORDINATE, 4 * total)).reshape(total, 4),  # sorted, so no corners are swapped
        labels=array(st.integers(0, len(names) - 1), total),
        keypoints=np.where((visibility > 0)[..., None], points, 0.0).astype(np.float32),
        visibility=visibility,
        keypoint_names=[f"p{i}" for i in range(num_points)],
        attributes={"pose": Attribute(ids=array(st.integers(-1, len(names) - 1), total), names=tuple(names))},
    )


@given(data=st.data(), separator=st.sampled_from([None, ",", ";", "\t"]), box_format=st.sampled_from(BOX_FORMATS))
def test_lists_are_read_as_they_were_written(data, separator, box_format):
    table = data.draw(tables(blanks=separator is not None))
    options = {"columns": ALL, "separator": separator, "box_format": box_format}
    reading = {"schema": KeypointSchema(names=table.keypoint_names), "class_names": table.class_names, "comment": None}
    with tempfile.TemporaryDirectory() as folder:
        losses = write_annotations("keypoints_txt", table, folder, "a/list.txt", allow_loss=True, **options)
        assert all("exact" in words and box_format != "xyxy" for words in losses)
        restored = read_annotations(
            "keypoints_txt", folder, "a/list.txt", policy=KEEP, use_cache=False, **reading, **options
        )
        write_annotations("keypoints_txt", restored, folder, "list.txt", allow_loss=bool(losses), **options)
        assert losses or Path(folder, "list.txt").read_bytes() == Path(folder, "a/list.txt").read_bytes()
    assert list(restored.image_paths) == list(table.image_paths)
    for name in ("offsets", "labels", "keypoints", "visibility", *(() if losses else ("boxes",))):
        np.testing.assert_array_equal(getattr(restored, name), getattr(table, name), err_msg=name)
    assert attribute_values(restored, "pose") == attribute_values(table, "pose")


@pytest.fixture
def table(tmp_path):
    return make_table(tmp_path)


def make_table(root, **changed):
    parts = {
        "root": root,
        "image_paths": ["images/a.jpg", "images/b c.jpg"],
        "class_names": ["cat", "dog"],
        "offsets": [0, 1, 2],
        "boxes": [[1, 2, 3.5, 4], [0.1, -0.0, 1e6, 1e7]],
        "labels": [1, 0],
        "keypoints": np.array([[[1, 2], [3.5, 4]], [[0, 0], [5, 6]]]),
        "visibility": np.array([[2, 2], [0, 1]]),
        "keypoint_names": ["l", "r"],
        "attributes": {"pose": Attribute(ids=np.array([0, -1]), names=("left",))},
    }
    return AnnotationTable(**(parts | changed))


def test_numbers_are_short_and_exact(table, tmp_path):
    write_annotations("keypoints_txt", table, tmp_path, "l.csv", columns=ALL, separator=";")
    assert (tmp_path / "l.csv").read_text().splitlines() == [
        "images/a.jpg;dog;1;2;3.5;4;1;2;2;3.5;4;2;left",
        "images/b c.jpg;cat;0.1;0;1000000;10000000;0;0;0;5;6;1;-",
    ]


def test_paths_are_written_relative_to_the_folder_of_the_images(table, tmp_path):
    options = {"columns": "path xmin ymin xmax ymax class", "separator": ",", "allow_loss": True}
    write_annotations("keypoints_txt", table, tmp_path, "l.csv", image_dir="images", **options)
    assert (tmp_path / "l.csv").read_text().startswith("a.jpg,1,2,3.5,4,dog\n")
    with pytest.raises(ValueError, match="is not in image_dir='deep'"):
        write_annotations("keypoints_txt", table, tmp_path, "l.csv", image_dir="deep", **options)


@pytest.mark.parametrize(
    ("changed", "columns", "losses"),
    [
        ({}, ALL, []),
        ({}, "path box points_v attribute:pose", ["classes"]),
        ({}, "path class points_v attribute:pose", ["boxes"]),
        ({}, "path class box attribute:pose", ["points"]),
        ({}, "path class box points attribute:pose", ["visibility of points"]),
        ({}, "path class box points_v", ["attribute 'pose'"]),
        *(({flag: [True, False]}, ALL, [f"1 {flag} objects"]) for flag in FLAGS),
        ({"image_paths": ["a", "b", "c"], "offsets": [0, 1, 2, 2]}, ALL, ["1 images without objects"]),
        ({"image_paths": ["a", "a"]}, ALL, ["1 images that have the same file as another"]),
        ({"visibility": [[0, 2], [2, 1]]}, ALL, ["1 absent points with a place"]),
        ({"boxes": [[1, 2, 3.5, 4], [4.5, 5.5, 5.5, 6.5]]}, "path class points_v attribute:pose", []),
        ({"labels": [1, 1]}, "path box points_v attribute:pose", []),
        ({}, "path", ["classes", "boxes", "points", "attribute 'pose'"]),
    ],
)
def test_losses_are_named_and_refused_unless_allowed(tmp_path, changed, columns, losses):
    table = make_table(tmp_path, **changed)
    assert KeypointsTxtWriter(columns=columns).losses(table) == losses
    options = {"columns": columns, "separator": ","}
    if losses:
        with pytest.raises(ValueError, match=f"cannot hold {losses[0]}.*allow_loss=True"):
            write_annotations("keypoints_txt", table, tmp_path, "l.csv", **options)
        assert not (tmp_path / "l.csv").exists()
    assert write_annotations("keypoints_txt", table, tmp_path, "l.csv", allow_loss=True, **options) == losses
    assert (tmp_path / "l.csv").exists()


@pytest.mark.parametrize("box_format", ["xywh", "cxcywh"])
def test_widths_that_do_not_restore_the_corner_are_a_loss(tmp_path, box_format):
    table = make_table(tmp_path, boxes=[[-1.7e10, 0, -1.00001, 4], [1, 2, 3, 4]])
    assert KeypointsTxtWriter(columns=ALL).losses(table) == []
    losses = KeypointsTxtWriter(columns=ALL, box_format=box_format).losses(table)
    assert losses == [f"1 exact boxes in box_format={box_format!r}"]


@pytest.mark.parametrize(
    ("changed", "separator", "words"),
    [
        ({}, None, "path 'images/b c.jpg' cannot be in a list with blanks between"),
        ({"class_names": ["a,b", "dog"]}, ",", "class 'a,b' cannot be in a list with separator=','"),
        ({"class_names": [" cat", "dog"]}, ",", "class ' cat' cannot be"),
        ({"class_names": ["c\nat", "dog"]}, ",", r"class 'c\\nat' cannot be"),
        ({"class_names": ["c" * 257, "dog"]}, ",", "more than 256 characters"),
        ({"image_paths": ["#a", "b"]}, ",", "path '#a' at the start of a line would be a comment"),
        ({"image_paths": ["\ufeffa", "b"]}, ",", "at the start of a line"),
        ({"attributes": {"pose": Attribute(ids=np.array([0, 0]), names=("-",))}}, ",", "'-', which means none"),
    ],
)
def test_texts_that_a_list_cannot_hold_are_refused(tmp_path, changed, separator, words):
    with pytest.raises(ValueError, match=words):
        table = make_table(tmp_path, **changed)
        write_annotations("keypoints_txt", table, tmp_path, "l.csv", columns=ALL, separator=separator)
    assert not (tmp_path / "l.csv").exists()


NO_POINTS = {"keypoints": None, "visibility": None, "keypoint_names": ()}


@pytest.mark.parametrize(
    ("options", "changed", "words"),
    [
        ({"columns": "path skip"}, {}, "nothing to write"),
        ({"columns": "path attribute:hat"}, {}, r"attributes \['hat'\]; the table has \['pose'\]"),
        ({"columns": "path", "box_format": "xywh"}, {}, "needs a box of four numbers"),
        ({"columns": "class"}, {}, "have no 'path'"),
        ({"columns": "path", "separator": "ab"}, {}, "must be one character"),
        ({"columns": ALL}, NO_POINTS, "ask for points; the table has none"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(tmp_path, options, changed, words):
    with pytest.raises(ValueError, match=words):
        write_annotations("keypoints_txt", make_table(tmp_path, **changed), tmp_path, "l.csv", **options)


def test_name_outside_the_root_is_refused(table, tmp_path):
    with pytest.raises(UnsafePathError):
        write_annotations("keypoints_txt", table, tmp_path / "root", "../l.csv", columns=ALL, separator=",")
