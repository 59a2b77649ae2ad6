"""Tables of several splits: one number for a name in all of them, and views of the cache where they fit."""

from __future__ import annotations

import numpy as np

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.merge import with_same_names
from tests.support.annotation_tables import full_table


def table_of(class_names, labels, *, pose=None, split=None):
    """One image with objects of these labels; ``pose`` is (names, ids)."""
    num_objects = len(labels)
    return AnnotationTable(
        root="/data",
        image_paths=["a.jpg"],
        class_names=class_names,
        offsets=[0, num_objects],
        boxes=np.tile([0, 0, 5, 5], (num_objects, 1)),
        labels=labels,
        attributes={} if pose is None else {"pose": Attribute(names=pose[0], ids=np.array(pose[1]))},
        split=split,
    )


def test_classes_and_attribute_values_get_common_numbers():
    a = table_of(["zebra"], [0, 0], pose=(("up",), [0, -1]), split="train")
    b = table_of(["ant"], [0], pose=(("down",), [0]), split="val")
    first, second = with_same_names([a, b])
    assert first.class_names == second.class_names == ("ant", "zebra")
    assert (first.labels.tolist(), second.labels.tolist()) == ([1, 1], [0])
    assert first.attributes["pose"].names == second.attributes["pose"].names == ("down", "up")
    assert first.attributes["pose"].ids.tolist() == [1, -1]
    assert second.attributes["pose"].ids.tolist() == [0]
    assert (first.split, second.split) == ("train", "val")
    assert first.image_paths[0] == "a.jpg"


def test_names_of_the_most_complete_table_are_used():
    a = table_of(["zebra", "ant"], [0, 1], pose=(("up", "down"), [0, 1]))
    b = table_of(["ant"], [0], pose=(("down",), [0]))
    first, second = with_same_names([a, b])
    assert first is a
    assert second.class_names == ("zebra", "ant")
    assert second.labels.tolist() == [1]
    assert second.attributes["pose"].names == ("up", "down")
    assert second.attributes["pose"].ids.tolist() == [1]


def test_table_without_points_or_attributes_gets_absent_ones():
    table = full_table()
    names = ("keypoints", "visibility", "normalization_pair")
    without = full_table(**dict.fromkeys(names), keypoint_names=(), flip_pairs=(), attributes={})
    first, second = with_same_names([table, without])
    assert first is table
    assert second.keypoint_schema == table.keypoint_schema
    assert not second.visibility.any()
    assert second.attributes["pose"].ids.tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(second.boxes, table.boxes)


def test_tables_with_equal_names_are_unchanged(tmp_path):
    table = table_of(["face"], [0], pose=(("up",), [0]))
    table.save(tmp_path / "table.arrow", key="k")
    loaded = AnnotationTable.load(tmp_path / "table.arrow", key="k")
    assert with_same_names([loaded, loaded]) == [loaded, loaded]
    assert with_same_names([]) == []
