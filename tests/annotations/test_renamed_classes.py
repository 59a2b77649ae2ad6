"""Classes that are renamed, merged or dropped: labels, objects, and small pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable
from tests.support.annotation_tables import assert_same, full_table

new_names = st.none() | st.sampled_from(["cat", "dog", "owl", "bird"])


def test_renamed_and_merged_classes_keep_every_object():
    table = full_table().with_renamed_classes({"cat": "pet", "dog": "pet"})
    assert table.class_names == ("pet", "owl")
    assert table.labels.tolist() == [0, 0, 0]
    assert table.category_ids is None
    assert table.unlabelled_classes == ("owl",)
    assert_same(table, full_table(class_names=("pet", "owl"), labels=[0, 0, 0], category_ids=None))


def test_objects_of_dropped_classes_vanish_and_images_stay():
    table = full_table().with_renamed_classes({"dog": None, "owl": None})
    assert table.class_names == ("cat",)
    assert table.offsets.tolist() == [0, 1, 1, 1]
    assert list(table.image_ids) == ["a", "b", "ä c"]
    assert table.boxes.tolist() == [[5.5, 6, 7, 8]]
    assert table.object_ids.tolist() == [7]
    assert table.keypoints.tolist() == [[[4, 5], [6, 7]]]
    assert table.attributes["pose"].ids.tolist() == [-1]
    assert table.unlabelled_classes == ()


def test_table_without_changes_is_the_same_object():
    table = full_table()
    assert table.with_renamed_classes({}) is table
    assert table.with_renamed_classes({"dog": "dog"}) is table


def test_unknown_classes_are_refused():
    with pytest.raises(ValueError, match=r"classes \['emu'\] are not among the table's \('cat', 'dog', 'owl'\)"):
        full_table().with_renamed_classes({"emu": "bird"})


@pytest.fixture(scope="module")
def table_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.arrow"
    full_table(unlabelled_classes=()).save(path, key="k")
    return path


@given(
    first=st.dictionaries(st.sampled_from(["cat", "dog", "owl"]), new_names),
    second=st.dictionaries(st.sampled_from(["cat", "dog", "owl", "bird", "emu"]), new_names),
    rows=st.none() | st.lists(st.integers(0, 2), max_size=4),
    is_selected_first=st.booleans(),
    by_object=st.booleans(),
)
def test_renamed_tables_of_a_file_pickle_as_references(table_file, first, second, rows, is_selected_first, by_object):
    table = AnnotationTable.load(table_file, key="k")
    if is_selected_first and rows is not None:
        table = table.select(rows)
    table = table.with_renamed_classes(first)
    # A class that the file does not have, as a common numbering adds it.
    table = table.with_class_names(("emu", *table.class_names))
    table = table.with_renamed_classes({old: new for old, new in second.items() if old in table.class_names})
    if not is_selected_first and rows is not None:
        table = table.select(rows)
    if by_object:
        table = table.per_object(np.arange(table.num_objects)[::-1])
    data = pickle.dumps(table)
    assert b"t.arrow" in data
    assert_same(pickle.loads(data), table)


def test_objects_as_samples_are_pickled_as_arrays_after_a_class_was_dropped(table_file):
    table = AnnotationTable.load(table_file, key="k").per_object().with_renamed_classes({"cat": None})
    assert table.offsets.tolist() == [0, 1, 1, 2]
    assert_same(pickle.loads(pickle.dumps(table)), table)
