from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.formats.wflw import WFLW_ATTRIBUTES
from lit_loader.errors import AnnotationError
from tests.support.text_sets import make_wflw


def test_a_line_is_a_face_with_box_attributes_and_98_points(tmp_path):
    make_wflw(tmp_path)
    table = read_annotations("wflw", tmp_path, "list.txt", image_dir="images", split="train", use_cache=False)
    assert list(table.image_paths) == ["images/a.jpg", "images/b/c.jpg"]
    assert table.keypoints.shape == (2, 98, 2)
    assert table.boxes.tolist() == [[5, 6, 40, 41]] * 2
    assert set(table.attributes) == set(WFLW_ATTRIBUTES)
    assert {attribute.names for attribute in table.attributes.values()} == {("no", "yes")}
    assert table.attributes["expression"].ids.tolist() == [1, 1]
    assert table.attributes["occlusion"].ids.tolist() == [0, 1]
    assert (table.class_names, table.split, table.keypoint_names[-1]) == (("face",), "train", "97")


def test_lines_without_boxes_and_attributes_are_read_on_request(tmp_path):
    make_wflw(tmp_path)
    (tmp_path / "list.txt").write_text("1 2 30 40 images/a.jpg\n")
    options = {"rect_attr": False, "schema": 2, "class_name": "head", "use_cache": False}
    table = read_annotations("wflw", tmp_path, "list.txt", **options)
    assert (table.boxes.tolist(), dict(table.attributes)) == ([[1, 2, 30, 40]], {})
    assert table.class_names == ("head",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 0 1 0 0 1 0 ", " 0 1 0 0 2 0 ", "list.txt:2: attribute 'occlusion' is '2'"),
        (" b/c.jpg", " b/ c.jpg", "list.txt:2: 208 fields"),
        ("41 0", "41", "list.txt:1: 206 fields"),
        ("a.jpg", "#a.jpg", "list.txt:1: there is no image 'images/#a.jpg'"),
    ],
)
def test_malformed_lines_are_refused_with_line(tmp_path, old, new, words):
    make_wflw(tmp_path)
    path = tmp_path / "list.txt"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(AnnotationError, match=words):
        read_annotations("wflw", tmp_path, "list.txt", image_dir="images", use_cache=False)
