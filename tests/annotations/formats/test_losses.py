from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lit_loader.annotations.formats import ReadPolicy, find_writer, read_annotations, write_annotations
from tests.support.any_table import assert_same_table, small_table, tables


def losses(table, format, **options):
    return find_writer(format)(**options).losses(table)


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
    losses_written = write_annotations("coco", table, root, "a.json", allow_loss=True)
    assert losses_written == losses(table, "coco")
    policy = ReadPolicy(missing_image="keep", degenerate="keep")
    restored = read_annotations("coco", root, "a.json", policy=policy, use_cache=False)
    with pytest.raises(AssertionError) if losses_written else nullcontext():
        assert_same_table(restored, table)


TWO_IMAGES = {"image_paths": ["a.jpg"] * 2, "offsets": [0, 1, 1], "widths": [9] * 2, "heights": [9] * 2}
EMPTY = {"class_names": [], "labels": [], "boxes": [], "offsets": [0, 0]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({**POINTS, "visibility": [[0, 2]]}, "1 absent points with a place"),
        ({"heights": [0]}, "1 widths or heights"),
        ({"boxes": [[-1e30, 0, 1, 1]]}, "1 boxes exactly"),
        (TWO_IMAGES, "1 images that have the same file"),
        ({"object_ids": [-1]}, "object_ids, since one is missing or repeated"),
        ({"category_ids": [5, 5], "class_names": ["x", "y"]}, "category_ids, since one is missing or repeated"),
        (POINTS | EMPTY | NO_POINTS, "names of points"),
    ],
)
def test_each_coco_loss_is_described_and_refused_unless_allowed(tmp_path, columns, words):
    table = small_table(**columns)
    (loss,) = losses(table, "coco")
    assert words in loss
    with pytest.raises(ValueError, match=f"cannot hold {words}.*allow_loss=True"):
        write_annotations("coco", table, tmp_path / "set", "a.json")
    assert not (tmp_path / "set").exists()
    assert write_annotations("coco", table, tmp_path / "set", "a.json", allow_loss=True) == [loss]


@pytest.mark.parametrize(("format", "options"), [("keypoints_txt", {"columns": "path class box"}), ("yolo", {})])
def test_lost_ids_need_no_allow_loss_but_lost_areas_do(tmp_path, format, options):
    ids = ["1 ids of images", "1 ids of classes", "1 ids of objects"]
    table = small_table(source_ids=[7], category_ids=[5], object_ids=[3])
    assert write_annotations(format, table, tmp_path, "train", **options) == ids
    # `convert` writes the area of the box into COCO files; losing it is allowed.
    with_area_of_box = small_table(areas=[(small_table().boxes[0, 2:] - small_table().boxes[0, :2]).prod()])
    assert losses(with_area_of_box, format, **options) == []
    with_areas = small_table(source_ids=[7], category_ids=[5], object_ids=[3], areas=[2.5])
    assert losses(with_areas, format, **options) == [*ids, "1 areas of objects"]
    with pytest.raises(ValueError, match="cannot hold 1 areas of objects; pass allow_loss=True"):
        write_annotations(format, with_areas, tmp_path, "val", **options)
