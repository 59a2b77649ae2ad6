"""Selected images, objects as samples, renumbered classes: their content, and their small pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, image_weights
from tests.support.annotation_tables import assert_same, full_table


def test_select_keeps_every_column():
    table = full_table().select([2, 1, 0, 2])
    assert list(table.image_ids) == ["ä c", "b", "a", "ä c"]
    assert table.offsets.tolist() == [0, 1, 1, 3, 4]
    assert table.labels.tolist() == [1, 1, 0, 1]
    assert table.boxes[:, 2].tolist() == [9, 3, 7, 9]
    assert table.widths.tolist() == [50, 0, 100, 50]
    assert table.occluded.tolist() == [True, False, False, True]
    assert table.crowd.tolist() == [False, True, True, False]
    assert table.keypoints[:, 0, 0].tolist() == [8, 0, 4, 8]
    assert table.visibility[:, 0].tolist() == [1, 0, 2, 1]
    assert table.attributes["pose"].ids.tolist() == [1, 0, -1, 1]
    assert table.source_ids.tolist() == [2**40, -1, 139, 2**40]
    assert table.object_ids.tolist() == [-1, 900100, 7, -1]
    assert [len(table.masks.polygons(row)) for row in range(4)] == [0, 2, 0, 0]
    assert (table.keypoint_names, table.flip_pairs, table.split) == (("left", "right"), ((0, 1),), "train")


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([3], IndexError, "outside a table of 3 (images|objects)"),
        ([-1], IndexError, "outside"),
        ([True, False, True], TypeError, "flatnonzero"),
        ([0.0], TypeError, "expected integer indices"),
        ([[0]], TypeError, "shape"),
        (1, TypeError, "shape"),
    ],
)
@pytest.mark.parametrize("method", [AnnotationTable.select, AnnotationTable.per_object])
def test_invalid_rows_are_refused(method, rows, error, words):
    with pytest.raises(error, match=words):
        method(full_table(), rows)


def test_loaded_table_and_its_selections_pickle_as_references(tmp_path):
    n = 100_000
    big = AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(n)],
        class_names=["a"],
        offsets=np.arange(n + 1),
        boxes=np.zeros((n, 4)),
        labels=np.zeros(n, dtype=int),
    )
    big.save(tmp_path / "t.arrow", key="k")
    loaded = AnnotationTable.load(tmp_path / "t.arrow", key="k")
    assert len(pickle.dumps(loaded)) < 400
    assert_same(pickle.loads(pickle.dumps(loaded)), big)
    part = loaded.select(np.arange(0, n, 2)).select([5, 3])
    data = pickle.dumps(part)
    assert len(data) < 1_000
    assert list(pickle.loads(data).image_ids) == ["10.jpg", "6.jpg"]
    assert len(pickle.dumps(loaded.per_object())) < 400
    assert len(pickle.dumps(loaded.with_class_names(["b", "a"]).per_object([0]))) < 700
    assert_same(pickle.loads(pickle.dumps(pickle.loads(data))), part)


def test_unlabelled_classes_survive_a_pickle_as_reference(tmp_path):
    full_table(unlabelled_classes=()).save(tmp_path / "t.arrow", key="k")
    table = AnnotationTable.load(tmp_path / "t.arrow", key="k").with_unlabelled_classes(["owl"])
    data = pickle.dumps(table.select([2, 0]))
    assert b"t.arrow" in data
    assert_same(pickle.loads(data), table.select([2, 0]))


def test_unlabelled_classes_must_be_classes_of_the_table():
    with pytest.raises(ValueError, match=r"unlabelled_classes \['bee'\] are not among the classes"):
        full_table(unlabelled_classes=["bee"])


def test_class_names_must_include_all_classes_of_the_table():
    table = full_table()
    assert table.with_class_names(table.class_names) is table
    with pytest.raises(ValueError, match=r"lacks .*\['dog'\]"):
        table.with_class_names(["cat", "owl"])


def test_category_ids_follow_classes_or_are_dropped():
    table = full_table()
    turned = table.with_class_names(["owl", "cat", "dog"])
    assert turned.category_ids.tolist() == [90, 17, 18]
    assert table.with_class_names([*table.class_names, "bee"]).category_ids is None
    with_ids = table.with_class_names([*table.class_names, "bee"], category_ids=[17, 18, 90, 3])
    assert with_ids.category_ids.tolist() == [17, 18, 90, 3]
    assert with_ids.with_class_names(with_ids.class_names) is with_ids


def test_per_object_keeps_every_column_of_each_object():
    table = full_table()
    objects = table.per_object()
    assert (objects.num_images, objects.num_objects) == (3, 3)
    assert list(objects.image_ids) == ["a", "a", "ä c"]
    assert objects.image_path(2) == table.image_path(2)
    assert (objects.widths.tolist(), objects.heights.tolist()) == ([100, 100, 50], [80, 80, 60])
    assert objects.offsets.tolist() == [0, 1, 2, 3]
    assert (objects.split, objects.report, objects.root) == (table.split, table.report, table.root)
    assert objects.keypoint_schema == table.keypoint_schema
    for name in ("boxes", "labels", "difficult", "truncated", "occluded", "crowd", "keypoints", "visibility"):
        np.testing.assert_array_equal(getattr(objects, name), getattr(table, name))
    np.testing.assert_array_equal(objects.attributes["pose"].ids, table.attributes["pose"].ids)


@given(st.lists(st.integers(0, 2), max_size=6))
def test_per_object_keeps_order_of_rows(rows):
    table = full_table()
    objects = table.per_object(rows)
    np.testing.assert_array_equal(objects.boxes, table.boxes[rows])
    assert list(objects.image_ids) == [table.image_id(i) for i in table.image_of_object()[rows]]
    assert_same(objects.per_object(), objects)
    weights = image_weights(objects, [1.0, 2.0, 3.0])  # image weights are now object weights
    np.testing.assert_array_equal(weights, np.array([1.0, 2.0, 3.0])[objects.labels])


def apply(table, step):
    """Derive a table; numbers beyond the table wrap around."""
    kind, numbers = step
    if kind == "select":
        return table.select([n % table.num_images for n in numbers] if table.num_images else [])
    if kind == "objects":
        return table.per_object([n % table.num_objects for n in numbers] if table.num_objects else [])
    if kind == "every object":
        return table.per_object()
    names = [*table.class_names, f"new {len(table.class_names)}"]
    return table.with_class_names([*names[len(numbers) :], *names[: len(numbers)]])


KINDS = st.sampled_from(["select", "objects", "every object", "rename"])
STEPS = st.lists(st.tuples(KINDS, st.lists(st.integers(0, 5), max_size=5)), max_size=5)


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "t.arrow"
    full_table().save(path, key="k")
    return AnnotationTable.load(path, key="k")


@given(steps=STEPS)
def test_any_derived_table_pickles_as_reference(cached, steps):
    table = cached
    plain = full_table()
    for step in steps:
        table = apply(table, step)
        plain = apply(plain, step)
    assert_same(table, plain)
    reopened = pickle.loads(pickle.dumps(table))
    assert_same(reopened, plain)
    assert b"jpg" not in pickle.dumps(reopened)  # still no column in it
    assert_same(pickle.loads(pickle.dumps(plain)), plain)
