from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lit_loader.annotations import Attribute
from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from tests.support.any_table import assert_same_table, small_table, tables

KEEP = ReadPolicy(missing_image="keep", degenerate="keep", out_of_image="keep", keypoint_outside="keep")


def read(root, name="a.json", **options):
    return read_annotations("coco", root, name, policy=KEEP, use_cache=False, **options)


def write_coco(table, path, **options):
    return write_annotations("coco", table, path.parent, path.name, **options)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(table=tables(exact=True))
def test_tables_come_back_exactly(tmp_path_factory, table):
    root = tmp_path_factory.mktemp("set")
    assert write_coco(table, root / "a.json") == []
    restored = read(root)
    assert_same_table(restored, table)
    assert list(restored.image_paths) == list(table.image_paths)
    write_coco(restored, root / "b.json")
    assert (root / "b.json").read_bytes() == (root / "a.json").read_bytes()


SIDES = st.floats(-(2.0**14), 2.0**14, width=32).filter(lambda side: not 0 < abs(side) < 1e-3)


@given(corners=st.lists(st.tuples(SIDES, SIDES, SIDES, SIDES), min_size=1, max_size=12))
def test_boxes_of_pixels_come_back_bit_for_bit(tmp_path_factory, corners):
    boxes = [[min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)] for x1, y1, x2, y2 in corners]
    root = tmp_path_factory.getbasetemp()
    table = small_table(boxes=boxes, offsets=[0, len(boxes)], labels=[0] * len(boxes))
    write_coco(table, root / "a.json")
    np.testing.assert_array_equal(read(root).boxes, table.boxes)


def test_file_has_the_keys_of_coco(tmp_path):
    points = {"keypoints": np.array([[[3, 4], [5, 0.1]], [[0, 0], [0, 0]]], dtype=np.float32)}
    points |= {"visibility": [[2, 1], [0, 0]], "keypoint_names": ["p", "q"], "flip_pairs": [(0, 1)]}
    image = {"image_paths": ["day/a.jpg"], "image_ids": ["17"], "widths": [64], "heights": [48], "split": "val"}
    objects = {"boxes": [[1, 2, 4.5, 10], [0, 0, 1, 1]], "offsets": [0, 2], "labels": [1, 0]}
    objects |= {"class_names": ["cat", "dog"], "crowd": [False, True], "difficult": [True, False]}
    pose = {"pose": Attribute(ids=np.array([1, -1]), names=("up", "down"))}
    table = small_table(**points, **image, **objects, attributes=pose)
    write_coco(table, tmp_path / "sub/a.json")
    document = json.loads((tmp_path / "sub/a.json").read_text())
    assert document["images"] == [{"id": 17, "file_name": "day/a.jpg", "width": 64, "height": 48}]
    points = {"keypoints": ["p", "q"], "skeleton": [], "flip_pairs": [[0, 1]], "normalization_pair": None}
    cat = {"id": 1, "name": "cat", "supercategory": ""} | points
    assert document["categories"] == [cat, cat | {"id": 2, "name": "dog"}]
    first = {"id": 1, "image_id": 17, "category_id": 2, "bbox": [1, 2, 3.5, 8], "area": 28, "iscrowd": 0, "ignore": 1}
    first |= {"keypoints": [3, 4, 2, 5, 0.1, 1], "num_keypoints": 2, "attributes": {"pose": "down"}}
    second = {"id": 2, "image_id": 17, "category_id": 1, "bbox": [0, 0, 1, 1], "area": 1, "iscrowd": 1}
    second |= {"keypoints": [0, 0, 0, 0, 0, 0], "num_keypoints": 0}
    assert document["annotations"] == [first, second]
    assert document["attributes"] == [{"name": "pose", "values": ["up", "down"]}]
    assert_same_table(read(tmp_path, "sub/a.json"), table)


@pytest.mark.parametrize(
    ("image_ids", "numbers"),
    [(["7", "3"], [7, 3]), (["7", "07"], [1, 2]), (["a", "b"], [1, 2]), (["7", "7"], [1, 2]), (["²", "1"], [1, 2])],
)
def test_whole_numbers_are_written_as_ids_and_other_ids_by_name(tmp_path, image_ids, numbers):
    table = small_table(
        image_paths=["a.jpg", "b.jpg"], image_ids=image_ids, offsets=[0, 0, 1], widths=[9, 9], heights=[9, 9]
    )
    write_coco(table, tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert [image["id"] for image in document["images"]] == numbers
    assert list(read(tmp_path).image_ids) == image_ids


def test_existing_file_is_replaced_only_by_a_complete_one(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_coco(small_table(boxes=[[0, 0, 1, 1]]), path)
    content = path.read_bytes()
    monkeypatch.setattr("lit_loader.annotations.formats.coco.writer._categories", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_coco(small_table(boxes=[[0, 0, 2, 2]]), path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (content, [path])


@pytest.mark.parametrize("path", ["bild-ä.jpg", "/".join(["d" * 60] * 5) + "/é\u2028.jpg"])
def test_names_outside_ascii_come_back_exactly(tmp_path, path):
    table = small_table(class_names=["目\u2028é"], image_paths=[path])
    write_coco(table, tmp_path / "a.json")
    assert_same_table(read(tmp_path), table)


NO_IDS = np.array([-1])
MANY_POINTS = {"keypoints": np.zeros((1, 3000, 2)), "visibility": np.zeros((1, 3000), np.uint8)}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"class_names": ["n" * 300]}, "class name .* has 300 characters"),
        ({"class_names": ["\ud800"]}, "class name .* is not Unicode"),
        ({"split": "s" * 300}, "split .* has 300 characters"),
        ({"attributes": {"q": Attribute(ids=NO_IDS, names=("v" * 300,))}}, "value of attribute 'q'"),
        ({"attributes": {"q" * 300: Attribute(ids=NO_IDS, names=())}}, "name of an attribute"),
        (MANY_POINTS | {"keypoint_names": [f"p{i}" for i in range(3000)]}, "3000 points are more than MAX_POINTS=2048"),
        ({"image_paths": ["\udcff.jpg"]}, r"'\\udcff.jpg' is not Unicode.*rename"),
        ({"image_ids": ["\udcff.jpg"]}, r"'\\udcff.jpg' is not Unicode.*rename"),
    ],
)
def test_names_that_would_not_be_read_back_are_refused(tmp_path, columns, words):
    with pytest.raises(ValueError, match=words):
        write_coco(small_table(**columns), tmp_path / "a.json")
    assert not list(tmp_path.iterdir())
