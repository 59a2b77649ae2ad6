"""Masks: their content, the pixels they cover, and COCO's RLE strings."""

from __future__ import annotations

import pickle
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations import Masks, RunLengths
from lit_loader.annotations import masks as masks_module
from lit_loader.annotations.masks import MAX_MASK_PIXELS, decode_counts, encode_counts, row_crossings, run_lengths

RECTANGLE = [[1, 1], [5, 1], [5, 4], [1, 4]]
COORDINATE = st.floats(-3, 15, width=32) | st.integers(-3, 15)
POLYGON = st.lists(st.tuples(COORDINATE, COORDINATE), min_size=0, max_size=8)
BITMAP = st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 2**32)).map(
    lambda args: np.random.default_rng(args[2]).integers(0, 2, args[:2]).astype(np.uint8)
)
MASK = st.none() | st.lists(POLYGON, max_size=3) | BITMAP.map(run_lengths)


def rasterize(row, height=12, width=10, **options):
    return Masks.from_rows([row]).rasterize(0, height, width, **options)


def inside(polygon, x, y):
    """The even-odd rule as in a textbook, in exact steps: one ray to the left of a point."""
    crossings = 0
    for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        if (y0 <= y) != (y1 <= y):
            (xa, ya), (xb, yb) = ((x0, y0), (x1, y1)) if y0 <= y1 else ((x1, y1), (x0, y0))
            crossings += xa + (y - ya) * ((xb - xa) / (yb - ya)) <= x
    return crossings % 2


@given(st.lists(POLYGON, max_size=3))
def test_pixel_is_covered_if_its_centre_is_in_a_polygon(polygons):
    polygons = [[(float(np.float32(x)), float(np.float32(y))) for x, y in polygon] for polygon in polygons]
    expected = [
        [max([0, *(inside(p, x + 0.5, y + 0.5) for p in polygons if len(p) > 2)]) for x in range(10)] for y in range(12)
    ]
    np.testing.assert_array_equal(rasterize(polygons), expected)


def test_polygon_of_whole_pixels_covers_them():
    expected = np.zeros((12, 10))
    expected[1:4, 1:5] = 1
    for polygon in (RECTANGLE, RECTANGLE[::-1], RECTANGLE[2:] + RECTANGLE[:2], np.ravel(RECTANGLE)):
        np.testing.assert_array_equal(rasterize([polygon]), expected)
    assert rasterize([RECTANGLE]).dtype == np.uint8


@given(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=1, max_size=1), st.integers(0, 2**32))
def test_polygons_that_share_edges_cover_each_pixel_once(centre, seed):
    rng = np.random.default_rng(seed)
    middle = (float(rng.uniform(1, 9)), float(rng.uniform(1, 11)))
    corners = [(0, 0), (float(rng.uniform(0, 10)), 0), (10, 0), (10, 12), (0, 12)]
    fan = [[middle, a, b] for a, b in zip(corners, corners[1:] + corners[:1], strict=True)]
    np.testing.assert_array_equal(sum(rasterize([triangle]).astype(int) for triangle in fan), np.ones((12, 10)))


def test_self_intersecting_polygon_has_hole_and_polygons_are_united():
    ring = [[0, 0], [8, 0], [8, 8], [0, 8], [0, 0], [2, 2], [6, 2], [6, 6], [2, 6], [2, 2]]
    assert rasterize([ring]).sum() == 64 - 16
    assert rasterize([RECTANGLE, RECTANGLE]).sum() == 12
    assert rasterize([ring, RECTANGLE]).sum() == 64 - 16 + 6
    assert rasterize(None).sum() == rasterize([[[1, 1], [5, 5]]]).sum() == 0


def test_mask_is_clipped_to_canvas_and_scaled():
    huge = [[-1e30, -1e30], [1e38, -1e30], [1e38, 1e38], [-1e30, 1e38]]
    assert rasterize([huge]).all()
    assert not rasterize([[[50, 1], [60, 1], [60, 9]]]).any()
    assert (
        rasterize([RECTANGLE], 24, 5, scale=(0.5, 2)).tolist()
        == rasterize([np.multiply(RECTANGLE, (0.5, 2))], 24, 5).tolist()
    )


@given(BITMAP)
def test_run_lengths_round_trip_bitmap(bitmap):
    runs = run_lengths(bitmap)
    assert (runs.height, runs.width) == bitmap.shape
    assert len(runs.counts) < 2 or (runs.counts[1:] > 0).all()
    np.testing.assert_array_equal(rasterize(runs, *bitmap.shape), bitmap)


def test_run_lengths_go_down_the_columns_and_begin_outside():
    assert rasterize(RunLengths([3, 2, 7], 4, 3), 4, 3).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_run_lengths_of_another_size_are_clipped_padded_and_scaled():
    bitmap = np.random.default_rng(0).integers(0, 2, (9, 7)).astype(np.uint8)
    runs = run_lengths(bitmap)
    np.testing.assert_array_equal(rasterize(runs, 5, 4), bitmap[:5, :4])
    np.testing.assert_array_equal(rasterize(runs, 12, 10), np.pad(bitmap, ((0, 3), (0, 3))))
    np.testing.assert_array_equal(rasterize(runs, 18, 21, scale=(3, 2)), bitmap.repeat(2, 0).repeat(3, 1))
    np.testing.assert_array_equal(rasterize(runs, 3, 7, scale=(1, 1 / 3)), bitmap[1::3])


def test_memory_is_bounded_by_the_canvas(monkeypatch):
    monkeypatch.setattr(np, "repeat", None)  # what would make all its pixels
    assert rasterize(RunLengths([0, MAX_MASK_PIXELS - 1, 1], 1, MAX_MASK_PIXELS), 3, 4).tolist() == [
        [1] * 4,
        [0] * 4,
        [0] * 4,
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (RunLengths([3], 2, 2), "mask 1 add up to 3, but it has 2 x 2 pixels"),
        (RunLengths([2**32 - 1, 5], 2, 2), "add up to 4294967300"),
        (RunLengths([2**31], 2**16, 2**15), "at most 2147483647"),
        (RunLengths([4], -2, -2), "add up to 4"),
        (RunLengths([-1, 5], 2, 2), "counts has values that do not fit uint32"),
        (RunLengths([1.5, 2.5], 2, 2), "counts of type float64 must be uint32"),
        (RunLengths([4], 2**40, 2), "heights has values that do not fit int32"),
        ([[1, 2, 3, 4, 5]], "odd number of values"),
        ([[1, 2, 3, 4, 5, np.nan]], "not finite"),
        ([[1, 2, 3, 4, 5, 1e39]], "not finite"),
    ],
)
def test_invalid_mask_is_refused(row, words):
    with pytest.raises(ValueError, match=words):
        Masks.from_rows([[RECTANGLE], row])


def test_object_with_polygons_and_run_lengths_is_refused():
    both = Masks.from_rows([[RECTANGLE]]).arrays() | {
        name: array
        for name, array in Masks.from_rows([RunLengths([4], 2, 2)]).arrays().items()
        if name in ("run_offsets", "runs", "heights", "widths")
    }
    with pytest.raises(ValueError, match="mask 0 has polygons and run lengths"):
        Masks(*both.values())


def same(a, b):
    assert len(a) == len(b)
    for name, array in a.arrays().items():
        np.testing.assert_array_equal(array, b.arrays()[name])


@given(st.lists(MASK, max_size=5), st.data())
def test_masks_are_taken_joined_and_pickled_row_by_row(rows, data):
    masks = Masks.from_rows(rows)
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    same(masks.take(np.array(picked, dtype=np.int64)), Masks.from_rows([rows[row] for row in picked]))
    cut = data.draw(st.integers(0, len(rows)))
    same(Masks.joined([Masks.from_rows(rows[:cut]), Masks.from_rows(rows[cut:])]), masks)
    same(pickle.loads(pickle.dumps(masks)), masks)
    for row, given_row in enumerate(rows):
        runs = masks.run_lengths(row)
        if isinstance(given_row, RunLengths) and len(given_row.counts):
            assert (runs.height, runs.width, runs.counts.tolist()) == (*given_row[1:], given_row.counts.tolist())
        else:
            assert runs is None
            stored_polygons = [polygon.tolist() for polygon in masks.polygons(row)]
            polygons = [] if isinstance(given_row, RunLengths) else given_row or []
            assert stored_polygons == [np.float32(polygon).reshape(-1, 2).tolist() for polygon in polygons]
    assert not any(array.flags.writeable for array in masks.arrays().values())
    same(Masks.joined([]), Masks.from_rows([]))


# made by the C code of pycocotools, in faster_coco_eval 1.8: encode(asfortranarray(bitmap)) of drawn bitmaps
COCO_TEXTS = {
    "06": [0, 6],
    "_1650000000n0LVO0Q1": [47, 6, 5, 6, 5, 6, 5, 6, 5, 6, 35, 2, 9, 2, 42],
    "c<P340000000Y9]OZG0`W?": [403, 96, 4, 96, 4, 96, 4, 96, 4, 96, 301, 77, 23, 77, 15623],
}


@pytest.mark.parametrize("text", COCO_TEXTS)
def test_coco_rle_strings_round_trip(text):
    assert decode_counts(text).tolist() == decode_counts(text.encode()).tolist() == COCO_TEXTS[text]
    assert encode_counts(COCO_TEXTS[text]) == text


def plain_text(counts):
    """rleToString of pycocotools, line by line."""
    chars = []
    for i, count in enumerate(counts):
        x = count - (counts[i - 2] if i > 2 else 0)
        more = True
        while more:
            c = x & 0x1F
            x >>= 5
            more = x != -1 if c & 0x10 else x != 0
            chars.append(chr((c | 0x20 if more else c) + 48))
    return "".join(chars)


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**32 - 1), max_size=12))
def test_counts_round_trip_and_match_pycocotools(counts):
    text = encode_counts(counts)
    assert text == plain_text(counts)
    assert decode_counts(text).tolist() == counts


@pytest.mark.parametrize(
    "text", ["/", "p", " 1", "5\n", "e", "1Q", "é", "\udcff", "PPPPPPP0", "o" * 10_000, "O", "000O"]
)
def test_invalid_rle_string_is_refused(text):
    with pytest.raises(ValueError, match="counts"):
        decode_counts(text)


@given(st.text(max_size=20) | st.binary(max_size=20))
def test_any_rle_string_decodes_or_is_refused(text):
    try:
        counts = decode_counts(text)
    except ValueError:
        return
    assert (counts >= 0).all()
    assert len(counts) <= len(text)


@pytest.mark.parametrize("at_once", [1, 50, 2**20])
def test_many_polygons_are_drawn_as_their_union(at_once, monkeypatch):
    monkeypatch.setattr(masks_module, "_CROSSINGS_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    polygons = [rng.uniform(-5, 35, (int(rng.integers(0, 8)), 2)) for _ in range(40)]
    union = np.zeros((30, 28), dtype=np.uint8)
    for polygon in polygons:
        union |= rasterize([polygon], 30, 28)
    assert 0 < union.sum() < union.size
    np.testing.assert_array_equal(rasterize(polygons, 30, 28), union)


def test_drawing_time_does_not_grow_with_polygons_times_pixels():
    polygons = np.tile(np.float32([[0, 0], [2000, 0], [0, 1]]), (100_000, 1, 1))
    masks = Masks(
        np.array([0, 100_000]),
        np.arange(0, 600_001, 6),
        polygons.reshape(-1),
        np.zeros(2, np.int64),
        np.zeros(0, np.uint32),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
    )
    begin = time.process_time()
    assert masks.rasterize(0, 2000, 2000).sum() == 1000
    assert time.process_time() - begin < 5  # 100,000 passes over 2,000 pixels and more take longer


def test_row_crossings_count_the_rows_of_every_edge_on_the_canvas():
    points = np.array([[0, 0], [5, 10], [5, -7], [1, 1], [9, 4], [3, 3]], dtype=np.float64)
    assert row_crossings(points, np.array([0, 3, 3, 6]), 8) == 8 + 8 + 0 + 3 + 1 + 2


@given(
    polygon=st.lists(st.tuples(st.floats(-5, 45, width=32), st.floats(-5, 45, width=32)), min_size=3, max_size=8),
    corner=st.tuples(st.integers(0, 39), st.integers(0, 29)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_a_region_of_a_mask_is_a_crop_of_the_whole_mask(polygon, corner, size):
    polygon = np.float32(polygon)
    full_mask = Masks.from_rows([[polygon]]).rasterize(0, 90, 90)
    masks = Masks.from_rows([[polygon], run_lengths(full_mask[:30, :40])])
    rows = slice(corner[1], corner[1] + size[0])
    columns = slice(corner[0], corner[0] + size[1])
    np.testing.assert_array_equal(masks.rasterize(0, *size, corner=corner), full_mask[rows, columns])
    # The canvas may go beyond the annotated image of 40 x 30 pixels.
    full_mask[30:] = 0
    full_mask[:, 40:] = 0
    np.testing.assert_array_equal(masks.rasterize(1, *size, corner=corner), full_mask[rows, columns])


def test_memory_of_a_region_is_bounded_by_its_canvas_and_not_by_the_annotated_height():
    masks = Masks.from_rows([RunLengths([2**30 - 1, 1], 2**30, 1)])
    tracemalloc.start()
    bitmap = masks.rasterize(0, 8, 1, corner=(0, 2**30 - 8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bitmap.ravel().tolist() == [0] * 7 + [1]
    assert peak < 2**20
