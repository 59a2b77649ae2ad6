"""Tiles of images as rows of a table: grid, objects, and refused settings."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lit_loader.annotations import AnnotationTable, Attribute, Masks, Tiling, tile_images, tile_table
from lit_loader.annotations.formats import write_annotations
from lit_loader.annotations.tiling import MAX_TILES
from lit_loader.errors import SettingError, UnsafePathError
from tests.support.annotation_tables import full_table

SQUARE = [[1, 1], [5, 1], [5, 4], [1, 4]]


def image_table(sizes, boxes=(), images=(), **columns):
    """A table of images of some (width, height), with boxes in these images."""
    counts = np.bincount(np.asarray(images, dtype=int), minlength=len(sizes))
    return AnnotationTable(
        root="/data",
        image_paths=[f"{number}.png" for number in range(len(sizes))],
        class_names=["cat", "dog"],
        widths=[width for width, _ in sizes],
        heights=[height for _, height in sizes],
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        **{"boxes": boxes, "labels": np.zeros(len(boxes), dtype=int)} | columns,
    )


sizes = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=4)
tilings = st.builds(
    Tiling,
    st.one_of(st.integers(1, 40), st.tuples(st.integers(1, 40), st.integers(1, 40))),
    overlap=st.floats(0, 0.99),
    keep=st.floats(0.01, 1),
)


@given(sizes=sizes, tiling=tilings)
def test_tiles_of_an_image_cover_every_pixel(sizes, tiling):
    tiles = tile_table(image_table(sizes), tiling)
    counts = [np.zeros((height, width), dtype=int) for width, height in sizes]
    for image, (x0, y0, x1, y1) in zip(tile_images(tiles), tiles.regions, strict=True):
        width, height = sizes[image]
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        assert (y1 - y0, x1 - x0) == (min(tiling.sides[0], height), min(tiling.sides[1], width))
        counts[image][y0:y1, x0:x1] += 1
    assert all(count.min() >= 1 for count in counts)
    assert tiles.widths.tolist() == (tiles.regions[:, 2] - tiles.regions[:, 0]).tolist()
    assert tiles.heights.tolist() == (tiles.regions[:, 3] - tiles.regions[:, 1]).tolist()


@given(sizes=sizes, tiling=tilings)
def test_neighbours_overlap_by_the_requested_share_and_no_tile_repeats(sizes, tiling):
    tiles = tile_table(image_table(sizes), tiling)
    images = tile_images(tiles)
    assert len(np.unique(np.column_stack([images, tiles.regions]), axis=0)) == tiles.num_images
    for image in range(len(sizes)):
        for axis, side in enumerate(reversed(tiling.sides)):
            starts = np.unique(tiles.regions[images == image, axis])
            strides = np.diff(starts)
            stride = max(1, round(side * (1 - tiling.overlap)))
            assert (strides[:-1] == stride).all()
            assert (strides[-1:] <= stride).all()


@st.composite
def scenes(draw):
    """A table with boxes, partly without area or outside of their images."""
    image_sizes = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=3))
    number = draw(st.integers(0, 6))
    images = sorted(draw(st.lists(st.integers(0, len(image_sizes) - 1), min_size=number, max_size=number)))
    coordinates = st.one_of(st.integers(-5, 65), st.floats(-5, 65, width=32))
    corners = [sorted(draw(st.tuples(coordinates, coordinates))) for _ in range(2 * number)]
    boxes = [(x[0], y[0], x[1], y[1]) for x, y in zip(corners[::2], corners[1::2], strict=True)]
    crowd = draw(st.lists(st.booleans(), min_size=number, max_size=number))
    return image_table(image_sizes, boxes, images, crowd=crowd, object_ids=np.arange(number))


def exact_box(table, image, row):
    """The part of a box in its image."""
    limits = (int(table.widths[image]), int(table.heights[image])) * 2
    return [min(max(Fraction(float(value)), 0), limit) for value, limit in zip(table.boxes[row], limits, strict=True)]


def exact_share(box, region):
    """The part of a box in a region, the share of its area, and whether they touch."""
    region = [int(value) for value in region]
    cut = [min(max(value, region[i % 2]), region[i % 2 + 2]) for i, value in enumerate(box)]
    touches = all(box[i] <= region[i + 2] and box[i + 2] >= region[i] for i in range(2))
    area = (box[2] - box[0]) * (box[3] - box[1])
    share = (cut[2] - cut[0]) * (cut[3] - cut[1]) / area if area else Fraction(1)
    return cut, share if touches else Fraction(0), touches


def expected_objects(table, image, regions, keep):
    """The objects of each tile of an image, by exact arithmetic: row, box, truncated, undecided."""
    limit = Fraction(1, 10**12)
    objects = [{} for _ in regions]
    for row in range(table.num_objects)[table.objects(image)]:
        box = exact_box(table, image, row)
        parts = [exact_share(box, region) for region in regions]
        largest = max(share for _, share, _ in parts)
        num_largest = sum(largest - share < limit for _, share, _ in parts)
        for tile, (cut, share, touches) in enumerate(parts):
            shows_most = share > 0 and largest - share < limit
            # Rounding may decide a share this close to the limit either way, unless it is exactly 0 or 1. Of tiles that
            # show the same share, one has the object.
            undecided = 0 < share < 1 and abs(share - Fraction(keep)) < limit
            undecided |= shows_most and share < keep and num_largest > 1 and not table.crowd[row]
            if touches and (share >= keep or shows_most or (table.crowd[row] and share > 0) or undecided):
                origin = regions[tile].tolist()[:2] * 2
                relative = [float(value - start) for value, start in zip(cut, origin, strict=True)]
                objects[tile][row] = (relative, cut != box, undecided)
    return objects


@given(table=scenes(), tiling=tilings)
def test_objects_of_a_tile_are_those_of_which_it_shows_enough(table, tiling):
    tiles = tile_table(table, tiling)
    images = tile_images(tiles)
    expected_by_tile = []
    for image in range(table.num_images):
        expected_by_tile += expected_objects(table, image, tiles.regions[images == image], tiling.keep)
    for tile, expected in enumerate(expected_by_tile):
        rows = tiles.object_ids[tiles.objects(tile)].tolist()
        assert rows == sorted(rows)
        assert {row for row, values in expected.items() if not values[-1]} <= set(rows) <= set(expected)
        for row, box, truncated in zip(
            rows, tiles.boxes[tiles.objects(tile)], tiles.truncated[tiles.objects(tile)], strict=True
        ):
            np.testing.assert_allclose(box, expected[row][0], rtol=0, atol=1e-5)
            assert truncated == expected[row][1]


@given(table=scenes(), tiling=tilings)
def test_every_object_with_area_is_in_a_tile(table, tiling):
    tiles = tile_table(table, tiling)
    images = table.image_of_object()
    boxes = [exact_box(table, images[row], row) for row in range(table.num_objects)]
    visible = {row for row, box in enumerate(boxes) if box[0] < box[2] and box[1] < box[3]}
    assert visible <= set(tiles.object_ids.tolist())


@pytest.mark.parametrize(
    ("box", "size", "expected"),
    [
        ([0, 0, 40, 40], (40, 40), [0, 0, 10, 10]),
        ([8, 8, 12, 12], (20, 20), [8, 8, 10, 10]),
        ([8, 8, 12, 13], (20, 20), [8, 0, 10, 3]),
    ],
    ids=["larger than a tile", "at the corner of four tiles", "most in the lower tiles"],
)
def test_object_that_no_tile_shows_enough_of_is_in_the_first_tile_that_shows_most(box, size, expected):
    tiles = tile_table(image_table([size], [box], [0]), Tiling(10, overlap=0, keep=0.5))
    assert tiles.boxes.tolist() == [expected]
    assert tiles.truncated.tolist() == [True]


def test_object_at_the_limit_of_the_visible_share_stays():
    table = image_table([(20, 10)], [[5, 0, 15, 10], [6, 0, 16, 10]], [0, 0], object_ids=[0, 1])
    tiles = tile_table(table, Tiling(10, overlap=0, keep=0.5))
    assert tiles.object_ids.tolist() == [0, 0, 1]
    assert tiles.boxes.tolist() == [[5, 0, 10, 10], [0, 0, 5, 10], [0, 0, 6, 10]]


def test_part_of_a_box_outside_the_image_does_not_count():
    tiles = tile_table(image_table([(20, 10)], [[-90, 0, 5, 10]], [0]), Tiling(10, overlap=0, keep=1))
    assert tiles.boxes.tolist() == [[0, 0, 5, 10]]
    assert tiles.truncated.tolist() == [False]


def test_every_column_follows_its_image_or_object():
    image_only = full_table(
        regions=None,
        widths=[100, 20, 50],
        heights=[80, 20, 60],
        areas=[12.5, np.nan, 81],
        keypoints=[[[1, 2], [3, 4]], [[6, 6], [90, 70]], [[4, 4], [8, 8]]],
    )
    tiles = tile_table(image_only, Tiling((40, 50), overlap=0, keep=0.01))
    assert tiles.regions.tolist()[:4] == [[0, 0, 50, 40], [50, 0, 100, 40], [0, 40, 50, 80], [50, 40, 100, 80]]
    assert tile_images(tiles).tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert list(tiles.image_ids) == [*"aaaab", "ä c", "ä c"]
    assert tiles.source_ids.tolist() == [139] * 4 + [-1] + [2**40] * 2
    assert tiles.image_stamps.tolist() == [7] * 4 + [0] + [-1] * 2
    assert tiles.offsets.tolist() == [0, 2, 2, 2, 2, 2, 3, 3]
    assert tiles.labels.tolist() == [1, 0, 1]
    assert tiles.difficult.tolist() == [True, False, False]
    assert tiles.occluded.tolist() == [False, False, True]
    assert tiles.crowd.tolist() == [True, True, False]
    assert tiles.object_ids.tolist() == [900100, 7, -1]
    np.testing.assert_array_equal(tiles.areas, np.float32([12.5, np.nan, 81]))
    assert tiles.keypoints[1].tolist() == [[6, 6], [90, 70]]
    assert tiles.visibility.tolist() == [[0, 1], [2, 0], [1, 0]]
    assert tiles.attributes["pose"].ids.tolist() == [0, -1, 1]
    assert [len(tiles.masks.polygons(row)) for row in range(3)] == [2, 0, 0]
    assert (tiles.unlabelled_classes, tiles.split, tiles.class_names) == (("owl",), "train", ("cat", "dog", "owl"))


def test_cut_objects_lose_their_area_and_are_truncated_and_keep_their_mask():
    table = image_table(
        [(20, 10)],
        [[5, 0, 15, 10], [0, 0, 4, 4]],
        [0, 0],
        areas=[70, 16],
        masks=Masks.from_rows([[SQUARE], None]),
        keypoints=[[[6, 5], [14, 5]], [[1, 1], [2, 2]]],
        visibility=[[2, 1], [1, 2]],
        keypoint_names=("left", "right"),
        attributes={"pose": Attribute(ids=np.array([1, 0]), names=("front", "side"))},
    )
    tiles = tile_table(table, Tiling(10, overlap=0))
    np.testing.assert_array_equal(tiles.areas, np.float32([np.nan, 16, np.nan]))
    assert tiles.truncated.tolist() == [True, False, True]
    assert tiles.keypoints.tolist() == [[[6, 5], [14, 5]], [[1, 1], [2, 2]], [[-4, 5], [4, 5]]]
    assert tiles.visibility.tolist() == [[2, 0], [1, 2], [0, 1]]
    assert tiles.attributes["pose"].ids.tolist() == [1, 0, 1]
    assert [polygon.tolist() for polygon in tiles.masks.polygons(2)] == [SQUARE]


def test_unknown_sizes_are_read_from_the_headers(tmp_path):
    Image.new("RGB", (30, 10)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    columns = {"root": tmp_path, "class_names": ["cat"], "boxes": [[0, 0, 9, 9], [5, 5, 900, 900]], "labels": [0, 0]}
    table = AnnotationTable(image_paths=["a.png", "b.png"], offsets=[0, 1, 2], **columns)
    tiles = tile_table(table, Tiling(10, overlap=0))
    assert tiles.regions.tolist() == [[0, 0, 10, 10], [10, 0, 20, 10], [20, 0, 30, 10], [0, 0, 0, 0]]
    assert tiles.offsets.tolist() == [0, 1, 1, 1, 2]
    assert tiles.boxes[1].tolist() == [5, 5, 900, 900]
    assert tile_images(tiles).tolist() == [0, 0, 0, 1]
    with pytest.raises(UnsafePathError):
        AnnotationTable(image_paths=["../a.png", "b.png"], offsets=[0, 1, 2], **columns)


def test_an_absurd_number_of_tiles_is_refused():
    with pytest.raises(SettingError, match=rf"4611686014132420608 tiles, more than the {MAX_TILES}.*larger tiles"):
        tile_table(image_table([(2**31 - 1, 2**31 - 1)]), Tiling(1, overlap=0))
    # Sums of products overflow int64 here.
    with pytest.raises(SettingError, match=r"/0\.png alone, 2147483647x2147483647 pixels"):
        tile_table(image_table([(2**31 - 1, 2**31 - 1)] * 9), Tiling(1, overlap=0.99))


def test_an_absurd_number_of_objects_in_tiles_is_refused():
    table = image_table([(2000, 2000)], [[0, 0, 2000, 2000]] * 40, [0] * 40, crowd=[True] * 40)
    with pytest.raises(SettingError, match="divides 40 objects among tiles in 160000000 ways"):
        tile_table(table, Tiling(1, overlap=0))


def test_a_table_of_regions_is_refused():
    tiles = tile_table(image_table([(20, 10)]), Tiling(10))
    with pytest.raises(ValueError, match="already describes regions"):
        tile_table(tiles, Tiling(10))
    with pytest.raises(ValueError, match="has no regions"):
        tile_images(image_table([(20, 10)]))
    with pytest.raises(ValueError, match="begins in the middle"):
        tile_images(tiles.select([1, 2]))


def test_tiles_are_not_written_as_if_they_were_images(tmp_path):
    tiles = tile_table(image_table([(20, 10)], [[5, 0, 15, 10]], [0]), Tiling(10))
    with pytest.raises(ValueError, match="describes regions of images; write the table of whole images"):
        write_annotations("coco", tiles, tmp_path, "tiles.json", allow_loss=True, progress=False)
    assert not list(tmp_path.iterdir())


def test_an_image_that_a_table_has_twice_has_its_tiles_twice():
    tiles = tile_table(image_table([(20, 10)]).select([0, 0]), Tiling(10, overlap=0))
    assert tile_images(tiles).tolist() == [0, 0, 1, 1]


def test_tiles_survive_a_pickle():
    tiles = tile_table(image_table([(20, 10)], [[5, 0, 15, 10]], [0]), Tiling(10))
    copy = pickle.loads(pickle.dumps(tiles))
    np.testing.assert_array_equal(copy.regions, tiles.regions)
    np.testing.assert_array_equal(copy.boxes, tiles.boxes)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": 2**31}, ValueError, "must be in"),
        ({"size": [640]}, TypeError, "pair"),
        ({"size": True}, TypeError, "pair"),
        ({"size": 640.0}, TypeError, "int"),
        ({"size": "640"}, TypeError, "int"),
        ({"size": [640, -1]}, ValueError, "pixels"),
        ({"overlap": 1.0}, ValueError, "fraction of the tile"),
        ({"overlap": -0.1}, ValueError, "fraction of the tile"),
        ({"overlap": float("nan")}, ValueError, "fraction of the tile"),
        ({"overlap": "0.2"}, TypeError, "number"),
        ({"keep": 0}, ValueError, "share of an object's area"),
        ({"keep": 1.5}, ValueError, "share of an object's area"),
        ({"stages": []}, ValueError, "not empty"),
        ({"stages": "train"}, ValueError, "list of train, val"),
        ({"stages": ["training"]}, ValueError, "list of train, val"),
    ],
)
def test_invalid_settings_of_a_tiling_are_refused(settings, error, words):
    with pytest.raises(error, match=words):
        Tiling(**{"size": 640} | settings)


def test_settings_from_a_config_equal_those_from_python():
    assert Tiling([640, 480], stages=["train"]) == Tiling((640, 480), stages=("train",))
