from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations import AnnotationTable, KeypointSchema, concatenate, with_same_names
from lit_loader.annotations.table import COLUMNS
from lit_loader.errors import CacheError
from tests.support.annotation_tables import assert_same, full_table


def test_columns_have_their_types_and_are_read_only():
    table = full_table()
    types = {
        **dict.fromkeys(("source_ids", "image_stamps", "category_ids", "offsets", "labels", "object_ids"), np.int64),
        **dict.fromkeys(("widths", "heights", "regions", "file_sizes", "shards"), np.int32),
        **dict.fromkeys(("boxes", "corners", "rotated_boxes", "areas", "keypoints"), np.float32),
        **dict.fromkeys(("difficult", "truncated", "occluded", "crowd"), np.bool_),
        "visibility": np.uint8,
    }
    ragged = ("image_paths", "image_ids", "image_places", "object_places", "masks")
    assert {*types, *ragged} == {*COLUMNS, "offsets"}
    for name, dtype in types.items():
        column = getattr(table, name)
        assert column.dtype == dtype
        assert not column.flags.writeable
    assert table.keypoints.shape == (3, 2, 2)
    for name in ragged:
        assert not any(array.flags.writeable for array in getattr(table, name).arrays().values())


def test_every_operation_preserves_all_columns(tmp_path):
    table = full_table()
    assert all(getattr(table, name) is not None for name in COLUMNS)
    table.save(tmp_path / "t.arrow", key="k")
    loaded = AnnotationTable.load(tmp_path / "t.arrow", key="k")
    parts = concatenate([table.select([0, 1]), table.select([2])])
    object.__setattr__(parts, "report", table.report)  # reports add up
    for same in (
        table.select([0, 1, 2]),
        table.select([2, 0, 1]).select([1, 2, 0]),
        parts,
        loaded,
        pickle.loads(pickle.dumps(loaded)),
        pickle.loads(pickle.dumps(table)),
        copy.copy(table),
        copy.deepcopy(table),
        table.with_class_names(["dog", "owl", "cat"]).with_class_names(table.class_names),
        with_same_names([table.with_class_names(["dog", "owl", "cat"]), table])[0].with_class_names(table.class_names),
        dataclasses.replace(table),
    ):
        assert_same(same, table)
        assert not same.boxes.flags.writeable
    for name, spec in COLUMNS.items():
        # Loading maps the file and copies nothing.
        assert not any(array.flags.owndata for array in spec.to_arrays(name, getattr(loaded, name)).values())
    objects = table.per_object()
    assert_same(objects.select([0, 1, 2]), objects)
    assert all(getattr(objects, name) is not None for name in COLUMNS)


def test_images_and_objects_are_indexed_by_position():
    table = full_table()
    assert (table.num_images, table.num_objects, table.num_classes) == (3, 3, 3)
    assert [table.objects(i) for i in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 3)]
    assert len(table) == 3
    assert table.objects(-1) == slice(2, 3)
    assert str(table.image_path(2)) == "/data/images/ä c.jpg"
    assert table.image_id(2) == "ä c"
    assert table.image_of_object().tolist() == [0, 0, 2]
    with pytest.raises(IndexError, match="image 3 is outside"):
        table.objects(3)
    assert repr(table) == "AnnotationTable('/data', split='train', 3 images, 3 objects, 3 classes)"


def test_keypoint_schema_is_built_from_columns(tmp_path):
    schema = KeypointSchema(names=("left", "right"), flip_pairs=((0, 1),), normalization_pair=(1, 0))
    full_table().save(tmp_path / "t.arrow", key="k")
    for table in (full_table(), AnnotationTable.load(tmp_path / "t.arrow", key="k")):
        assert table.keypoint_schema == schema
    assert full_table(flip_pairs=(), normalization_pair=None).keypoint_schema == KeypointSchema(names=schema.names)
    none = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    assert full_table(**none, normalization_pair=None).keypoint_schema is None


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
    assert (table.source_ids, table.category_ids, table.object_ids, table.areas, table.masks) == (None,) * 5


def test_table_is_immutable_and_independent_of_source_arrays():
    boxes = np.ones((3, 4), dtype=np.float32)
    table = full_table(boxes=boxes)
    boxes[:] = 7
    assert (table.boxes == 1).all()
    with pytest.raises(AttributeError, match="cannot assign"):
        table.split = "val"
    with pytest.raises(ValueError, match="read-only"):
        table.boxes[0] = 0
    with pytest.raises(TypeError):
        table.attributes["x"] = 1


def test_unpickling_without_file_is_cache_error(tmp_path):
    full_table().save(tmp_path / "t.arrow", key="k")
    data = pickle.dumps(AnnotationTable.load(tmp_path / "t.arrow", key="k"))
    (tmp_path / "t.arrow").unlink()
    with pytest.raises(CacheError, match=r"t\.arrow does not exist; read the annotations again"):
        pickle.loads(data)


def test_table_has_no_python_object_per_row(tmp_path):
    import gc

    n = 20_000
    num_before = len(gc.get_objects())
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
    assert len(gc.get_objects()) - num_before < 500


def test_loading_leaves_no_descriptor_open(tmp_path):
    full_table().save(tmp_path / "t.arrow", key="k")
    num_open = sum(1 for _ in Path("/proc/self/fd").iterdir())
    tables = [AnnotationTable.load(tmp_path / "t.arrow", key="k") for _ in range(20)]
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == num_open
    assert len(tables) == 20
