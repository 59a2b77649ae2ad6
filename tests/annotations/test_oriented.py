"""Oriented boxes of a table: their corners, and what select, concatenate, tiles and the cache make of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from lit_loader.annotations import AnnotationTable, Tiling, concatenate, tile_table
from lit_loader.annotations.figures import figures_of
from lit_loader.annotations.fingerprint import annotation_digest, table_digests
from lit_loader.annotations.quadrangles import (
    enclosing_boxes,
    rotated_corners,
    signed_areas,
    visible_areas,
    visible_parts,
)

NAN = np.nan
QUAD = [[10, 2], [14, 6], [8, 12], [4, 8]]


def oriented_table(**changes) -> AnnotationTable:
    """Return two images: one with corners and an axis-aligned box, one with a rotated box."""
    columns = {
        "root": "/data",
        "image_paths": ["a.png", "b.png"],
        "class_names": ("ship", "plane"),
        "widths": [40, 60],
        "heights": [30, 50],
        "offsets": [0, 2, 3],
        "boxes": [[4, 2, 14, 12], [1, 2, 5, 9], [15, 10, 35, 20]],
        "labels": [0, 1, 0],
        "corners": [QUAD, *[[[NAN] * 2] * 4] * 2],
        "rotated_boxes": [[NAN] * 5, [NAN] * 5, [25, 15, 10, 20, 90]],
    }
    return AnnotationTable(**(columns | changes))


def test_oriented_corners_are_the_annotated_ones_those_of_the_box_or_of_the_rotated_box():
    table = oriented_table()
    corners = table.oriented_corners()
    assert corners.dtype == np.float32
    assert corners[0].tolist() == QUAD
    assert corners[1].tolist() == [[1, 2], [5, 2], [5, 9], [1, 9]]
    # A quarter turn counter-clockwise moves the left top corner to the left bottom.
    np.testing.assert_allclose(corners[2], [[15, 20], [15, 10], [35, 10], [35, 20]], atol=1e-5)
    np.testing.assert_array_equal(table.oriented_corners([2, 0]), corners[[2, 0]])
    np.testing.assert_array_equal(table.oriented_corners(table.objects(0)), corners[:2])
    assert table.oriented_corners([]).shape == (0, 4, 2)
    assert table.has_orientation().tolist() == [True, False, True]
    with pytest.raises(IndexError):
        table.oriented_corners([3])


def test_rotated_corners_equal_torchvisions_conversion():
    rng = np.random.default_rng(0)
    boxes = rng.uniform([-50, -50, 1, 1, -400], [200, 200, 90, 90, 400], (50, 5)).astype(np.float32)
    tensor = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="CXCYWHR", canvas_size=(100, 100))
    expected = functional.convert_bounding_box_format(tensor, new_format="XYXYXYXY").numpy().reshape(-1, 4, 2)
    np.testing.assert_allclose(rotated_corners(boxes), expected, atol=1e-3)
    # A turned rectangle has the same area, and its box encloses it.
    np.testing.assert_allclose(signed_areas(rotated_corners(boxes)), boxes[:, 2] * boxes[:, 3].astype(float), rtol=1e-6)
    corners = rotated_corners(boxes)
    low, high = np.split(enclosing_boxes(corners), 2, axis=1)
    assert (low[:, None] <= corners).all()
    assert (corners <= high[:, None]).all()


def test_selected_and_concatenated_tables_have_the_oriented_boxes_of_their_objects():
    table = oriented_table()
    swapped = table.select([1, 0])
    np.testing.assert_array_equal(swapped.oriented_corners(), table.oriented_corners([2, 0, 1]))
    np.testing.assert_array_equal(swapped.rotated_boxes, table.rotated_boxes[[2, 0, 1]])
    np.testing.assert_array_equal(table.per_object([2]).rotated_boxes, table.rotated_boxes[[2]])
    plain = oriented_table(corners=None, rotated_boxes=None)
    joined = concatenate([plain, table])
    assert joined.has_orientation().tolist() == [False] * 3 + [True, False, True]
    np.testing.assert_array_equal(joined.corners[3:], table.corners)


def test_saved_tables_restore_every_bit(tmp_path):
    table = oriented_table()
    table.save(tmp_path / "t.arrow", key="k")
    loaded = AnnotationTable.load(tmp_path / "t.arrow", key="k")
    assert loaded.corners.tobytes() == table.corners.tobytes()
    assert loaded.rotated_boxes.tobytes() == table.rotated_boxes.tobytes()
    assert oriented_table(corners=None).rotated_boxes is not None


def test_digests_and_figures_tell_oriented_boxes_apart():
    table = oriented_table()
    turned = oriented_table(rotated_boxes=[[NAN] * 5, [NAN] * 5, [25, 15, 10, 20, -90]])
    digests = table_digests(table)
    other = table_digests(turned)
    assert {kind for kind in digests if digests[kind] != other[kind]} == {"rotated_boxes"}
    assert "corners" not in table_digests(oriented_table(corners=None))
    assert annotation_digest(table, 1) != annotation_digest(turned, 1)
    assert annotation_digest(table, 0) == annotation_digest(turned, 0)
    assert figures_of(table)["oriented_objects"] == 2


def test_tiles_move_oriented_boxes_and_clip_only_the_box_around_them():
    tiles = tile_table(oriented_table(), Tiling(10, overlap=0, keep=0.1))
    source_table = oriented_table()
    source = {0: 0, 1: 2}
    regions = tiles.regions[tiles.image_of_object()]
    images = np.array([path == "b.png" for path in tiles.image_paths])[tiles.image_of_object()]
    is_oriented = tiles.has_orientation()
    assert is_oriented.sum() > 2
    for row in np.flatnonzero(is_oriented):
        expected = source_table.oriented_corners([source[int(images[row])]])[0] - regions[row, :2]
        np.testing.assert_allclose(tiles.oriented_corners([row])[0], expected, atol=1e-5)
    assert (tiles.boxes >= 0).all()
    assert (tiles.boxes <= 10).all()


def test_tiles_have_oriented_objects_by_the_share_of_the_polygon():
    ship = [[2, 0], [40, 38], [38, 40], [0, 2]]
    columns = {
        "root": "/",
        "image_paths": ["a.png"],
        "class_names": ("ship",),
        "widths": [40],
        "heights": [40],
        "offsets": [0, 1],
        "boxes": [[0, 0, 40, 40]],
        "labels": [0],
    }
    tiling = Tiling(20, overlap=0, keep=0.2)
    tiles = tile_table(AnnotationTable(**columns, corners=[ship]), tiling)
    # The tiles beside the diagonal show a quarter of the box, and hardly anything of the ship.
    assert np.diff(tiles.offsets).tolist() == [1, 0, 0, 1]
    assert np.diff(tile_table(AnnotationTable(**columns), tiling).offsets).tolist() == [1, 1, 1, 1]


def test_visible_areas_of_several_regions_equal_those_of_each_region():
    rng = np.random.default_rng(3)
    corners = rotated_corners(rng.uniform([0, 0, 1, 1, -180], [50, 50, 40, 40, 180], (40, 5)))
    regions = np.sort(rng.uniform(0, 50, (40, 2, 2)), axis=1).reshape(40, 4)
    expected = [visible_parts(corners[[row]], regions[row]).areas[0] for row in range(40)]
    np.testing.assert_allclose(visible_areas(corners, regions), expected, atol=1e-9)
