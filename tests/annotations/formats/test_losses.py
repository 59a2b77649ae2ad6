from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.formats import ReadPolicy, find_writer, read_annotations, write_annotations
from tests.support.any_table import assert_same_table, tables


def losses(table, format, **options):
    return find_writer(format)(**options).losses(table)


def table_of(**columns):
    arguments = {
        "root": "/",
        "image_paths": ["a.jpg"],
        "class_names": ["x"],
        "offsets": [0, 1],
        "boxes": np.array([[1, 2, 3, 4]], dtype=np.float32),
        "labels": [0],
        "widths": [9],
        "heights": [9],
    }
    return AnnotationTable(**(arguments | columns))


POINTS = {
    "keypoints": np.array([[[1, 2], [3, 4]]], dtype=np.float32),
    "keypoint_names": ["p", "q"],
    "flip_pairs": [(0, 1)],
}
NO_POINTS = {"keypoints": np.zeros((0, 2, 2), dtype=np.float32), "visibility": np.zeros((0, 2), dtype=np.uint8)}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
def test_coco_losses_are_exact(tmp_path_factory, table):
    root = tmp_path_factory.mktemp("set")
    lost = write_annotations("coco", table, root, "a.json", allow_loss=True, progress=False)
    assert lost == losses(table, "coco")
    policy = ReadPolicy(missing_image="keep", degenerate="keep")
    restored = read_annotations("coco", root, "a.json", policy=policy, use_cache=False, progress=False)
    if lost:
        with pytest.raises(AssertionError):
            assert_same_table(restored, table)
    else:
        assert_same_table(restored, table)


@pytest.mark.parametrize("format", ["coco"])
def test_full_tables_are_kept(format):
    pose = {"pose": Attribute(ids=np.array([1]), names=("z", "a"))}
    flags = {name: [True] for name in ("difficult", "truncated", "occluded", "crowd")}
    table = table_of(**POINTS, **flags, attributes=pose, visibility=[[1, 2]], split="s", class_names=["x", "a"])
    assert losses(table, format) == []


@pytest.mark.parametrize(
    ("format", "columns", "words"),
    [
        ("coco", {**POINTS, "visibility": [[0, 2]]}, "1 absent points with a place"),
        ("coco", {"heights": [0]}, "1 widths or heights"),
        ("coco", {"boxes": [[-1e30, 0, 1, 1]]}, "1 boxes exactly"),
        (
            "coco",
            {"image_paths": ["a.jpg"] * 2, "offsets": [0, 1, 1], "widths": [9] * 2, "heights": [9] * 2},
            "1 images that have the same file",
        ),
        ("coco", {"object_ids": [-1]}, "object_ids, since one is missing or repeated"),
        ("coco", {"category_ids": [5, 5], "class_names": ["x", "y"]}, "category_ids, since one is missing or repeated"),
        (
            "coco",
            {**POINTS, "class_names": [], "labels": [], "boxes": [], "offsets": [0, 0]} | NO_POINTS,
            "names of points",
        ),
    ],
)
def test_each_loss_is_described_and_refused_unless_allowed(tmp_path, format, columns, words):
    table = table_of(**columns)
    (lost,) = losses(table, format)
    assert words in lost
    with pytest.raises(ValueError, match=f"cannot hold {words}.*allow_loss=True"):
        write_annotations(format, table, tmp_path / "set", "a.json")
    assert not (tmp_path / "set").exists()
    assert write_annotations(format, table, tmp_path / "set", "a.json", allow_loss=True) == [lost]


def test_lost_ids_need_no_allow_loss(tmp_path):
    table = table_of(source_ids=[7], category_ids=[5], object_ids=[3])
    lost = write_annotations("yolo", table, tmp_path, "train", progress=False)
    assert lost == ["1 ids of images", "1 ids of classes", "1 ids of objects"]
    with pytest.raises(ValueError, match="cannot hold 1 areas of objects; pass allow_loss=True"):
        write_annotations("yolo", table_of(source_ids=[7], areas=[2.5]), tmp_path, "val", progress=False)


def test_losses_of_a_list_depend_on_its_columns():
    table = table_of(**POINTS, visibility=[[2, 2]])
    assert losses(table, "keypoints_txt", columns="path class points box") == []
    assert losses(table, "keypoints_txt", columns="path class box") == ["points"]


@pytest.mark.parametrize(("format", "options"), [("keypoints_txt", {"columns": "path class box"}), ("yolo", {})])
def test_ids_and_areas_are_lost_by_name(format, options):
    table = table_of(source_ids=[7], category_ids=[5], object_ids=[3], areas=[2.5])
    expected = ["1 ids of images", "1 ids of classes", "1 ids of objects", "1 areas of objects"]
    assert losses(table, format, **options) == expected
    assert losses(table_of(), format, **options) == []
