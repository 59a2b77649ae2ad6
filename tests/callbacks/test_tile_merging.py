"""Detections in tiles become detections of the image: every object once, and with its whole box."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou

from lit_loader.annotations import Tiling, tile_table
from lit_loader.annotations.masks import Masks, run_lengths
from lit_loader.callbacks.prediction_files import Prediction
from lit_loader.callbacks.tile_merging import TiledImages, merge_boxes, merge_tiles
from lit_loader.recipes import AveragePrecision
from tests.support.tiled_objects import object_table, perfect_predictions, random_objects

SEEDS = st.integers(0, 2**32 - 1)
# Two tiles of 100 pixels that share 20, side by side.
PAIR = [[0, 0, 100, 100], [80, 0, 180, 100]]
PAIR_SIZE = (100, 180)


def rows_of(table_or_prediction):
    """Return labels and boxes as a sorted list, to a hundredth of a pixel."""
    rows = np.column_stack([table_or_prediction.labels, table_or_prediction.boxes])
    return sorted(map(tuple, rows.round(2).tolist()))


def merge_perfect(table, tiling, seed=0):
    tiles = tile_table(table, tiling)
    scores = np.random.default_rng(seed).uniform(0.1, 1, tiles.num_objects) if seed % 2 else None
    return TiledImages(tiles, table).merge(perfect_predictions(tiles, scores))[0]


def average_precision(prediction, table):
    metric = AveragePrecision(table.class_names, max_detections=1000)
    detections = {name: getattr(prediction, name) for name in ("boxes", "labels", "scores")}
    target = {"boxes": table.boxes, "labels": table.labels}
    parts = [{name: torch.tensor(values) for name, values in part.items()} for part in (detections, target)]
    for part in parts:
        part["labels"] += 1
    metric.update(*([part] for part in parts))
    return metric.compute_scores()


def merge(boxes, tiles, scores=None, *, labels=None, regions=PAIR, size=PAIR_SIZE, **settings):
    """Return the boxes that two tiles' boxes, in pixels of the image, merge to."""
    scores = np.linspace(0.9, 0.5, len(boxes)) if scores is None else scores
    labels = np.zeros(len(boxes)) if labels is None else labels
    return merge_boxes(boxes, labels, scores, tiles, regions, size=size, **settings)


# -- perfect predictions lose nothing ---------------------------------------------------------------------


@settings(max_examples=150, deadline=None, database=None)
@given(seed=SEEDS, num_classes=st.integers(1, 3), overlap=st.floats(0.3, 0.6))
def test_objects_that_fit_into_the_overlap_are_merged_exactly(seed, num_classes, overlap):
    table = random_objects(seed, sides=(2, 29), num_objects=15, num_classes=num_classes)
    merged = merge_perfect(table, Tiling(100, overlap=overlap), seed)
    assert rows_of(merged) == rows_of(table)
    if table.num_objects:
        assert average_precision(merged, table).map == 1.0


@settings(max_examples=150, deadline=None, database=None)
@given(seed=SEEDS, overlap=st.floats(0.1, 0.5))
def test_object_of_any_size_is_merged_exactly_if_every_tile_that_shows_it_predicts_it(seed, overlap):
    # The tiles may not tell the parts of several objects apart, see the next test.
    table = random_objects(seed, sides=(2, 600), num_objects=1)
    merged = merge_perfect(table, Tiling(100, overlap=overlap, keep=1e-9), seed)
    assert rows_of(merged) == rows_of(table)


@pytest.mark.parametrize(("largest", "share"), [(90, 0.995), (300, 0.9)])
def test_most_crowded_objects_larger_than_the_overlap_are_merged_exactly(largest, share):
    # Two objects look the same in a zone that both cover completely.
    totals = np.zeros(3, np.int64)
    for seed in range(100):
        table = random_objects(seed, sides=(5, largest), num_objects=12)
        merged = merge_perfect(table, Tiling(100, keep=1e-9), seed)
        common = set(rows_of(merged)) & set(rows_of(table))
        totals += (table.num_objects, len(merged.labels), len(common))
    num_objects, num_merged, num_exact = totals
    assert num_objects <= num_merged <= 1.01 * num_objects
    assert num_exact >= share * num_objects


@settings(max_examples=100, deadline=None, database=None)
@given(seed=SEEDS)
def test_objects_cut_by_one_border_keep_at_least_the_share_that_a_tile_must_show(seed):
    # Tiles that show less than `keep` of an object predict nothing, so its end may be missing.
    table = random_objects(seed, sides=(2, 70), num_objects=1)
    column = object_table(table.boxes * (1, 0, 1, 0) + (0, 5, 0, 45), size=(table.widths[0], 60))
    merged = merge_perfect(column, Tiling(100, keep=0.3), seed)
    assert len(merged.labels) == column.num_objects
    if column.num_objects:
        assert average_precision(merged, column).map_50 == 1.0
        widths = [(boxes[:, 2] - boxes[:, 0]) for boxes in (merged.boxes, column.boxes)]
        assert (widths[0] >= 0.7 * widths[1] - 1e-3).all()


# -- which detections are one object ----------------------------------------------------------------------


def test_detections_of_one_tile_are_different_objects():
    boxes = [[10, 10, 60, 60], [11, 10, 61, 60], [85, 10, 99, 60], [86, 10, 99, 60]]
    merged = merge(boxes, [0, 0, 0, 0])
    assert merged.boxes.tolist() == boxes


def test_halves_of_an_object_at_a_border_are_joined():
    merged = merge([[30, 10, 100, 60], [80, 12, 150, 62]], [0, 1], [0.6, 0.6])
    assert merged.boxes.tolist() == [[30, 11, 150, 61]]
    merged = merge([[30, 10, 100, 60], [80, 11, 150, 61]], [0, 1], [0.8, 0.9])
    assert merged.members == [[1, 0]]


def test_halves_at_a_border_without_overlap_are_joined_if_they_agree_on_it():
    regions = [[0, 0, 100, 100], [100, 0, 200, 100]]
    halves = [[40, 10, 99, 50], [101, 12, 160, 52]]
    distinct_boxes = [[60, 70, 100, 90], [104, 70, 160, 90]]  # the second ends before the border
    merged = merge([*halves, *distinct_boxes], [0, 1, 0, 1], regions=regions, size=(100, 200))
    assert merged.members == [[0, 1], [2], [3]]
    assert merged.boxes[0].tolist() == pytest.approx([40, 11, 160, 51], abs=0.2)


def test_objects_that_touch_at_a_border_stay_apart():
    regions = [[0, 0, 100, 100], [100, 0, 200, 100]]
    merged = merge([[40, 10, 100, 50], [100, 45, 160, 90]], [0, 1], regions=regions, size=(100, 200))
    assert len(merged.members) == 2


def test_adjacent_objects_in_the_overlap_stay_apart():
    # Both tiles show both objects, and each tile cuts one.
    boxes = [[40, 10, 90, 50], [90, 10, 100, 50], [80, 10, 90, 50], [90, 10, 150, 50]]
    merged = merge(boxes, [0, 0, 1, 1])
    assert sorted(merged.boxes.tolist()) == [[40, 10, 90, 50], [90, 10, 150, 50]]


def test_classes_are_merged_separately():
    merged = merge([[82, 10, 98, 40], [82, 10, 98, 40]], [0, 1], labels=[0, 1])
    assert len(merged.members) == 2


def test_a_detection_takes_the_best_of_several_in_a_tile():
    boxes = [[30, 10, 100, 60], [80, 25, 150, 75], [80, 10, 150, 60]]
    merged = merge(boxes, [0, 1, 1])
    assert merged.members == [[0, 2], [1]]


def test_a_detection_stays_with_the_object_that_it_agrees_with_best():
    # The second tile does not show the first object, and its detection of the second one overlaps the first.
    boxes = [[60, 14, 97, 54], [80, 20, 140, 60], [62, 20, 100, 60]]
    merged = merge(boxes, [0, 1, 0], [0.9, 0.8, 0.7])
    assert merged.members == [[0], [1, 2]]
    assert merged.boxes.tolist() == [boxes[0], [62, 20, 140, 60]]


def test_boxes_of_tiles_that_overlap_by_the_threshold_always_agree():
    # The parts in the zone overlap at least as much, so suppression across tiles has nothing left to remove.
    rng = np.random.default_rng(0)
    num_pairs = 0
    for _ in range(3000):
        x = rng.uniform(60, 98)
        widths = rng.uniform(2, 100 - x), rng.uniform(2, 40)
        first_box = np.array([x, 10, x + widths[0], 60])
        second_box = np.array([max(81, x + rng.normal(0, 5)), 10, 0, 60 + rng.normal(0, 10)])
        second_box[2] = second_box[0] + widths[1]
        boxes = torch.tensor(np.stack([first_box, second_box]))
        if box_iou(boxes[:1], boxes[1:]) >= 0.5:
            num_pairs += 1
            assert len(merge(boxes.numpy(), [0, 1]).members) == 1
    assert num_pairs > 50


@settings(max_examples=60, deadline=None, database=None)
@given(seed=SEEDS)
def test_imprecise_duplicates_merge_to_one(seed):
    rng = np.random.default_rng(seed)
    # Far from each other, so that no other object can be meant.
    corners = np.stack(np.meshgrid(np.arange(20, 540, 130), np.arange(20, 540, 130)), axis=-1).reshape(-1, 2)
    boxes = np.concatenate([corners, corners + rng.uniform(40, 100, corners.shape)], axis=1)
    table = object_table(boxes, size=(640, 640))
    tiles = tile_table(table, Tiling(200, overlap=0.25, keep=0.4))
    exact = perfect_predictions(tiles, rng.uniform(0.3, 1, tiles.num_objects))
    noisy = {
        row: Prediction(
            labels=part.labels,
            scores=part.scores,
            boxes=(part.boxes + rng.normal(0, 1, part.boxes.shape)).clip(0, 200).astype(np.float32),
        )
        for row, part in exact.items()
    }
    merged = TiledImages(tiles, table).merge(noisy)[0]
    assert len(merged.labels) == len(boxes)
    nearest = np.abs(merged.boxes[:, None] - table.boxes).max(axis=2).min(axis=1)
    # Tiles that show less than 40 % of an object do not extend its box.
    assert np.median(nearest) < 5


# -- the sides of the box ---------------------------------------------------------------------------------


def test_a_side_that_the_tile_cuts_does_not_count():
    merged = merge([[30, 10, 99, 60], [81, 10, 97, 60]], [0, 1], [0.9, 0.1])
    assert merged.boxes.tolist() == [[30, 10, 97, 60]]


def test_a_side_far_from_the_border_of_its_tile_counts_more():
    # The right side is 5 pixels from the border of the first tile, and farther from the border of the second.
    merged = merge([[85, 10, 95, 60], [85, 10, 97, 60]], [0, 1], [0.5, 0.5])
    # 3 and 10 pixels, after the tolerance of 2 and with the limit of 10.
    assert merged.boxes[0].tolist() == pytest.approx([85, 10, (3 * 95 + 10 * 97) / 13, 60])


def test_a_side_of_a_detection_with_a_higher_score_counts_more():
    merged = merge([[30, 10, 100, 60], [80, 18, 150, 60]], [0, 1], [0.9, 0.3])
    assert merged.boxes[0].tolist() == pytest.approx([30, 12, 150, 60])
    assert merge([[30, 10, 100, 60], [80, 18, 150, 60]], [0, 1], [0, 0]).boxes[0].tolist() == [30, 14, 150, 60]


def test_a_side_that_every_tile_cuts_is_the_outermost():
    merged = merge([[30, 10, 100, 60], [80, 10, 179, 60]], [0, 1], size=(100, 260))
    assert merged.boxes.tolist() == [[30, 10, 179, 60]]


def test_a_side_at_the_border_of_the_image_is_not_cut():
    merged = merge([[0, 0, 100, 60], [80, 0, 180, 60]], [0, 1])
    assert merged.boxes.tolist() == [[0, 0, 180, 60]]
    merged = merge([[85, 0, 100, 60], [85, 1, 150, 60]], [0, 1], [0.6, 0.6])
    assert merged.boxes[0].tolist() == pytest.approx([85, 0.5, 150, 60])


# -- whole predictions ------------------------------------------------------------------------------------


def test_points_and_attributes_are_those_of_the_tile_that_shows_most():
    parts = [
        Prediction(
            labels=np.array([1]),
            scores=np.array([score], np.float32),
            boxes=np.array([box], np.float32),
            keypoints=np.array([[[5.0, 6.0]]], np.float32),
            keypoint_scores=np.array([[score]], np.float32),
            attributes={"finish": np.array([finish])},
        )
        for score, box, finish in ((0.9, [70, 10, 100, 60], 3), (0.6, [0, 10, 60, 60], 4))
    ]
    merged = merge_tiles(parts, PAIR, size=PAIR_SIZE)
    assert merged.size == PAIR_SIZE
    assert merged.boxes.tolist() == [[70, 10, 140, 60]]
    assert merged.scores.tolist() == pytest.approx([0.9])
    assert merged.keypoints.tolist() == [[[85, 6]]]  # of the second tile, whose left border is at 80
    assert merged.keypoint_scores.tolist() == [[pytest.approx(0.6)]]
    assert merged.attributes["finish"].tolist() == [4]


@pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5])
def test_masks_of_tiles_are_united_to_the_mask_of_the_image(overlap):
    rng = np.random.default_rng(1)
    size = (70, 90)
    for _ in range(20):
        x, y = rng.uniform(0, 30, 2)
        box = np.array([x, y, x + rng.uniform(5, 60), y + rng.uniform(5, 60)]).clip(0, [90, 70, 90, 70])
        table = object_table([box], size=size[::-1], masks=Masks.from_rows([[box[[0, 1, 2, 1, 2, 3, 0, 3]]]]))
        image_mask = table.masks.rasterize(0, *size)
        tiles = tile_table(table, Tiling(40, overlap=overlap, keep=1e-9))
        predictions = {}
        for row, part in perfect_predictions(tiles).items():
            x1, y1, x2, y2 = tiles.regions[row]
            masks = [run_lengths(image_mask[y1:y2, x1:x2])] * len(part.labels)
            predictions[row] = Prediction(**{**vars(part), "masks": masks})
        merged = TiledImages(tiles, table).merge(predictions)[0]
        (mask,) = merged.masks
        assert mask.counts.tolist() == run_lengths(image_mask).counts.tolist()
        assert (mask.height, mask.width) == size


@pytest.mark.parametrize("is_empty", [[True, True], [True, False], [False, True]], ids=str)
def test_empty_masks_of_tiles_are_united(is_empty):
    parts = [
        Prediction(
            labels=np.array([0]),
            scores=np.array([0.9], np.float32),
            boxes=np.array([box], np.float32),
            masks=[run_lengths(np.full((100, 100), not empty))],
        )
        for empty, box in zip(is_empty, ([30, 10, 100, 60], [0, 10, 70, 60]), strict=True)
    ]
    (mask,) = merge_tiles(parts, PAIR, size=PAIR_SIZE).masks
    expected = np.zeros(PAIR_SIZE, np.uint8)
    for empty, (x1, y1, x2, y2) in zip(is_empty, PAIR, strict=True):
        expected[y1:y2, x1:x2] |= not empty
    assert mask.counts.tolist() == run_lengths(expected).counts.tolist()


def test_image_without_detections_has_an_empty_prediction():
    empty = Prediction(labels=np.zeros(0, np.int64), scores=np.zeros(0, np.float32), boxes=np.zeros((0, 4), np.float32))
    merged = merge_tiles([empty, empty], PAIR, size=PAIR_SIZE)
    assert merged.labels.shape == (0,)
    assert merged.boxes.shape == (0, 4)


def test_threshold_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"min_iou=0 must be in \(0, 1\]"):
        merge([], [], min_iou=0)


def test_threshold_decides_which_parts_agree():
    boxes = [[30, 10, 100, 60], [80, 20, 150, 70]]  # 40 of 60 rows in common
    assert len(merge(boxes, [0, 1], min_iou=0.6).members) == 1
    assert len(merge(boxes, [0, 1], min_iou=0.7).members) == 2


def test_images_are_complete_if_no_tile_is_missing():
    table = object_table([], size=(150, 90)).select([0, 0, 0])
    tiled = TiledImages(tile_table(table, Tiling(60, overlap=0)), table)
    assert tiled.num_tiles.tolist() == [6, 6, 6]
    assert tiled.complete([*range(6), *range(7, 12), *range(12, 18)]) == [0, 2]
    assert tiled.size(1) == (90, 150)


def test_tiles_of_other_images_are_refused():
    table = object_table([], size=(150, 90))
    tiles = tile_table(table, Tiling(60))
    with pytest.raises(ValueError, match="has tiles of 1 images, expected tiles of"):
        TiledImages(tiles, table.select([0, 0]))


def test_best_hundred_detections_of_a_class_in_a_tile_are_merged():
    boxes = [[82 + row / 100, 10, 98, 60] for row in range(101)] * 2
    tiles = np.repeat([0, 1], 101)
    scores = np.tile(np.linspace(0.9, 0.1, 101), 2)
    merged = merge(boxes, tiles, scores)
    assert sorted(map(len, merged.members)) == [1, 1] + [2] * 100
    assert {tuple(rows) for rows in merged.members if len(rows) == 1} == {(100,), (201,)}
    labels = np.tile(np.arange(101) // 51, 2)
    assert {len(rows) for rows in merge(boxes, tiles, scores, labels=labels).members} == {2}
