from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import AnnotationTable, Attribute, Problem, ReadReport
from lit_loader.errors import CacheError

COLUMNS = ("widths", "heights", "offsets", "boxes", "labels", "difficult", "truncated", "occluded", "crowd")


def full_table(root="/data", **changes):
    """A table that uses everything: 3 images with 2, 0 and 1 objects."""
    report = ReadReport()
    report.add(Problem(kind="swapped", action="fix", file="a.xml", message="m"))
    arguments = {
        "root": root,
        "image_paths": ["images/a.jpg", "images/b.png", "images/ä c.jpg"],
        "image_ids": ["a", "b", "ä c"],
        "class_names": ("cat", "dog", "owl"),
        "widths": [100, 0, 50],
        "heights": [80, 0, 60],
        "offsets": [0, 2, 2, 3],
        "boxes": [[1, 2, 3, 4], [5.5, 6, 7, 8], [0, 0, 9, 9]],
        "labels": [1, 0, 1],
        "difficult": [True, False, False],
        "truncated": [False, True, False],
        "occluded": [False, False, True],
        "crowd": [True, True, False],
        "keypoints": np.arange(12).reshape(3, 2, 2),
        "visibility": [[0, 1], [2, 2], [1, 0]],
        "keypoint_names": ("left", "right"),
        "flip_pairs": ((0, 1),),
        "attributes": {"pose": Attribute(ids=np.array([0, -1, 1]), names=("front", "side"))},
        "split": "train",
        "report": report,
    }
    return AnnotationTable(**(arguments | changes))


def assert_same(a, b):
    assert (a.root, a.class_names, a.split, a.report) == (b.root, b.class_names, b.split, b.report)
    assert (a.keypoint_names, a.flip_pairs) == (b.keypoint_names, b.flip_pairs)
    assert list(a.image_paths) == list(b.image_paths)
    assert list(a.image_ids) == list(b.image_ids)
    for name in (*COLUMNS, "keypoints", "visibility"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert a.attributes.keys() == b.attributes.keys()
    for name in a.attributes:
        assert a.attributes[name].names == b.attributes[name].names
        np.testing.assert_array_equal(a.attributes[name].ids, b.attributes[name].ids)


def test_columns_have_their_types_and_are_read_only():
    table = full_table()
    types = dict(zip(COLUMNS, ("i4", "i4", "i8", "f4", "i8", "?", "?", "?", "?"), strict=True))
    for name, dtype in types.items():
        column = getattr(table, name)
        assert column.dtype == np.dtype(dtype)
        assert not column.flags.writeable
    assert table.keypoints.shape == (3, 2, 2)
    assert table.visibility.dtype == np.uint8


def test_images_and_objects_are_found_by_position():
    table = full_table()
    assert (table.num_images, table.num_objects, table.num_classes) == (3, 3, 3)
    assert [table.objects(i) for i in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 3)]
    assert table.objects(-1) == slice(2, 3)
    assert str(table.image_path(2)) == "/data/images/ä c.jpg"
    assert table.image_id(2) == "ä c"
    assert table.image_of_object().tolist() == [0, 0, 2]
    with pytest.raises(IndexError, match="image 3 is outside"):
        table.objects(3)
    assert repr(table) == "AnnotationTable('/data', split='train', 3 images, 3 objects, 3 classes)"


def test_class_counts_include_classes_and_images_without_objects():
    table = full_table()
    assert table.class_counts().tolist() == [1, 2, 0]
    assert table.image_class_counts().tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert table.class_counts().dtype == table.image_class_counts().dtype == np.int64


def test_a_table_without_images_or_objects_works(tmp_path):
    table = AnnotationTable(root="/", image_paths=[], class_names=["a"], offsets=[0], boxes=[], labels=[])
    assert table.boxes.shape == (0, 4)
    assert table.class_counts().tolist() == [0]
    assert table.image_class_counts().shape == (0, 1)
    table.save(tmp_path / "t.arrow", key="k")
    assert_same(AnnotationTable.load(tmp_path / "t.arrow", key="k"), table)
    assert_same(table.select([]), table)


def test_defaults_are_unknown_sizes_no_flags_and_paths_as_ids():
    table = AnnotationTable(
        root="/", image_paths=["a.jpg"], class_names=["x"], offsets=[0, 1], boxes=[[0, 0, 1, 1]], labels=[0]
    )
    assert table.widths.tolist() == table.heights.tolist() == [0]
    assert not any(getattr(table, flag).any() for flag in ("difficult", "truncated", "occluded", "crowd"))
    assert table.image_id(0) == "a.jpg"
    assert (table.keypoints, table.split, len(table.report)) == (None, None, 0)


def test_a_table_cannot_be_changed_nor_through_the_arrays_it_was_made_of():
    boxes = np.ones((3, 4), dtype=np.float32)
    table = full_table(boxes=boxes)
    boxes[:] = 7
    assert (table.boxes == 1).all()
    with pytest.raises(AttributeError, match="immutable"):
        table.split = "val"
    with pytest.raises(ValueError, match="read-only"):
        table.boxes[0] = 0
    with pytest.raises(TypeError):
        table.attributes["x"] = 1


def test_select_takes_every_column_along():
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
    assert (table.keypoint_names, table.flip_pairs, table.split) == (("left", "right"), ((0, 1),), "train")


@given(st.lists(st.integers(0, 2), max_size=6))
def test_selected_images_have_the_objects_they_had(indices):
    table = full_table()
    selected = table.select(indices)
    for i, index in enumerate(indices):
        assert selected.image_id(i) == table.image_id(index)
        np.testing.assert_array_equal(selected.boxes[selected.objects(i)], table.boxes[table.objects(index)])
    np.testing.assert_array_equal(selected.image_class_counts(), table.image_class_counts()[indices])


@pytest.mark.parametrize(
    ("indices", "error", "words"),
    [
        ([3], IndexError, "leave the table of 3 images"),
        ([-1], IndexError, "leave"),
        ([True, False, True], TypeError, "flatnonzero"),
        ([0.0], TypeError, "not integers"),
        ([[0]], TypeError, "vector"),
    ],
)
def test_select_refuses_what_it_cannot_mean(indices, error, words):
    with pytest.raises(error, match=words):
        full_table().select(indices)


def test_save_and_load_keep_everything_without_copying(tmp_path):
    table = full_table()
    table.save(tmp_path / "t.arrow", key="k")
    loaded = AnnotationTable.load(tmp_path / "t.arrow", key="k")
    assert_same(loaded, table)
    for name in COLUMNS:
        assert not getattr(loaded, name).flags.owndata
    with pytest.raises(CacheError, match="other"):
        AnnotationTable.load(tmp_path / "t.arrow", key="another")


@pytest.mark.parametrize("duplicate", [lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy, copy.copy])
def test_pickled_and_copied_tables_are_equal(duplicate):
    table = full_table()
    assert_same(duplicate(table), table)
    assert not duplicate(table).boxes.flags.writeable


def test_a_loaded_table_and_its_selections_pickle_as_references(tmp_path):
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
    assert_same(pickle.loads(pickle.dumps(pickle.loads(data))), part)


def test_a_reference_to_a_file_that_is_gone_is_a_cache_error(tmp_path):
    full_table().save(tmp_path / "t.arrow", key="k")
    data = pickle.dumps(AnnotationTable.load(tmp_path / "t.arrow", key="k"))
    (tmp_path / "t.arrow").unlink()
    with pytest.raises(CacheError, match="no cache file"):
        pickle.loads(data)


def test_no_python_object_is_kept_for_a_row(tmp_path):
    import gc

    n = 20_000
    before = len(gc.get_objects())
    table = AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(n)],
        class_names=["a"],
        offsets=np.arange(n + 1),
        boxes=np.zeros((n, 4)),
        labels=np.zeros(n, dtype=int),
    )
    for i in range(0, n, 7):
        table.image_path(i), table.image_id(i), table.objects(i)
    gc.collect()
    assert len(gc.get_objects()) - before < 500


def test_loading_leaves_no_descriptor_open(tmp_path):
    full_table().save(tmp_path / "t.arrow", key="k")
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    tables = [AnnotationTable.load(tmp_path / "t.arrow", key="k") for _ in range(20)]
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    assert len(tables) == 20


def test_classes_are_renumbered_by_name_and_travel_as_a_reference(three_images, tmp_path):
    table = three_images.read(use_cache=True, cache_dir=tmp_path / "cache")
    assert table.with_class_names(table.class_names) is table
    renumbered = table.with_class_names(["owl", "dog", "cat"])
    assert renumbered.class_counts().tolist() == [0, 4, 1]
    rows = renumbered.select([0, 2])
    for one in (renumbered, rows):
        again = pickle.loads(pickle.dumps(one))
        assert again.class_names == ("owl", "dog", "cat")
        assert again.labels.tolist() == one.labels.tolist()
        assert len(pickle.dumps(one)) < 700
    with pytest.raises(ValueError, match=r"lack \['dog'\]"):
        table.with_class_names(["cat"])
