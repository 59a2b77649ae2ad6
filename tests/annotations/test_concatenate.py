from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute, concatenate
from tests.support.annotation_tables import assert_same, full_table

WITHOUT_POINTS = {
    "keypoints": None,
    "visibility": None,
    "keypoint_names": (),
    "flip_pairs": (),
    "normalization_pair": None,
}


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4))
def test_concatenated_parts_equal_selection(parts):
    table = full_table()
    together = concatenate([table.select(part) for part in parts])
    expected = table.select([index for part in parts for index in part])
    for result in (together, expected):
        object.__setattr__(result, "report", table.report)  # reports add up; tested below
    assert_same(together, expected)


def test_class_names_are_merged_in_order_of_first_occurrence():
    a = full_table()
    b = full_table(class_names=("owl", "bee", "ant"))
    both = concatenate([a, b])
    assert both.class_names == ("cat", "dog", "owl", "bee", "ant")
    assert [both.class_names[label] for label in both.labels] == ["dog", "cat", "dog", "bee", "owl", "bee"]


def test_attributes_are_merged_and_missing_ones_have_no_value():
    a = full_table()
    b = full_table(
        attributes={
            "pose": Attribute(ids=np.array([1, 0, -1]), names=("back", "front")),
            "colour": Attribute(ids=np.array([0, 0, 0]), names=("red",)),
        }
    )
    both = concatenate([a, b, full_table(attributes={})])
    pose = both.attributes["pose"]
    colour = both.attributes["colour"]
    assert pose.names == ("front", "side", "back")
    assert pose.ids.tolist() == [0, -1, 1, 0, 2, -1, -1, -1, -1]
    assert colour.names == ("red",)
    assert colour.ids.tolist() == [-1, -1, -1, 0, 0, 0, -1, -1, -1]


def test_objects_of_a_table_without_keypoints_get_absent_ones():
    both = concatenate([full_table(**WITHOUT_POINTS), full_table()])
    assert both.keypoint_schema == full_table().keypoint_schema
    assert not both.keypoints[:3].any()
    assert not both.visibility[:3].any()
    np.testing.assert_array_equal(both.keypoints[3:], full_table().keypoints)
    assert concatenate([full_table(**WITHOUT_POINTS)] * 2).keypoints is None


def test_numbers_areas_and_masks_that_a_table_lacks_are_absent():
    without = full_table(source_ids=None, object_ids=None, areas=None, masks=None)
    both = concatenate([without, full_table()])
    assert both.source_ids.tolist() == [-1, -1, -1, 139, -1, 2**40]
    assert both.object_ids.tolist()[:4] == [-1, -1, -1, 900100]
    np.testing.assert_array_equal(both.areas[:4], [np.nan, np.nan, np.nan, 12.5])
    assert [len(both.masks.polygons(row)) for row in range(6)] == [0, 0, 0, 2, 0, 0]
    assert both.masks.run_lengths(4).counts.tolist() == [3, 2, 7]
    assert concatenate([without, without]).masks is None


def test_category_ids_are_kept_where_tables_agree_on_all():
    table = full_table()
    more = full_table(class_names=("owl", "bee", "dog"), category_ids=[90, 3, 18])
    assert concatenate([table, more]).category_ids.tolist() == [17, 18, 90, 3]
    for ids in ([90, 3, 19], [90, 17, 18], None):  # another number for dog, cat's number for bee, none
        assert (
            concatenate([table, full_table(class_names=("owl", "bee", "dog"), category_ids=ids)]).category_ids is None
        )


def test_reports_are_merged_and_split_is_common_or_explicit():
    a = full_table()
    b = full_table(split="val")
    assert concatenate([a, a]).report.count("swapped") == 2
    assert a.report.count("swapped") == 1
    assert concatenate([a, a]).split == "train"
    assert concatenate([a, b]).split is None
    assert concatenate([a, b], split="both").split == "both"
    assert concatenate([a], split="val").split == "val"
    assert concatenate([a]) is a


def test_tables_without_images_add_nothing_but_names():
    empty = AnnotationTable(
        root="/data", image_paths=[], class_names=["bee"], offsets=[0], boxes=[], labels=[], split="train"
    )
    both = concatenate([empty, full_table(), empty])
    assert both.class_names == ("bee", "cat", "dog", "owl")
    assert_same(both.with_class_names(both.class_names), concatenate([empty, full_table()]))
    assert concatenate([empty, empty]).num_images == 0


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "tables is empty"),
        ([full_table(), full_table("/other")], "roots /data and /other differ"),
        ([full_table(), full_table(unlabelled_classes=())], r"unlabelled_classes \[\(\), \('owl',\)\] differ"),
        ([full_table(), full_table(keypoint_names=("x", "y"))], "one schema"),
        ([full_table(), full_table(flip_pairs=())], "one schema"),
        ([full_table(), full_table(normalization_pair=None)], "one schema"),
    ],
)
def test_tables_with_different_roots_or_schemas_are_refused(tables, words):
    with pytest.raises(ValueError, match=words):
        concatenate(tables)
