"""Statistics of tables against counts by hand, for sets of every kind."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.inspection.statistics import MEASURES, statistics_of
from tests.support.any_table import small_table, tables

CLASSES = ("common", "rare", "absent", "third")


def random_table(seed: int, *, num_images: int = 40) -> AnnotationTable:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, num_images)
    num_objects = int(counts.sum())
    corners = rng.uniform(-20, 200, (num_objects, 2))
    sides = np.exp(rng.normal(3.5, 1, (num_objects, 2)))
    sides[::7, 0] = 0  # boxes without area
    return AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(num_images)],
        class_names=CLASSES,
        widths=rng.choice([0, 120, 240, 250], num_images),
        heights=rng.choice([120, 200], num_images),
        offsets=np.cumsum([0, *counts]),
        boxes=np.hstack([corners, corners + sides]),
        labels=rng.choice([0, 1, 3], num_objects, p=[0.7, 0.1, 0.2]),
        areas=np.where(rng.random(num_objects) < 0.5, np.nan, sides.prod(axis=1) / 2),
        keypoints=rng.uniform(-20, 260, (num_objects, 3, 2)),
        visibility=rng.integers(0, 3, (num_objects, 3)),
        keypoint_names=("a", "b", "c"),
        normalization_pair=(0, 2),
        attributes={"pose": Attribute(ids=rng.integers(-1, 2, num_objects), names=("up", "down"))},
    )


def objects_of(table):
    """Yield the size of the image, the box and the row of each object."""
    for image in range(table.num_images):
        size = int(table.widths[image]), int(table.heights[image])
        for row in range(table.offsets[image], table.offsets[image + 1]):
            yield size, table.boxes[row].astype(np.float64).tolist(), row


def measures_by_hand(table) -> dict[str, list[float]]:
    # The table has no oriented boxes, which alone have an angle.
    values: dict[str, list[float]] = {name: [] for name in MEASURES if name != "box_angle"}
    for width, height in zip(table.widths.tolist(), table.heights.tolist(), strict=True):
        if width and height:
            values["image_width"].append(width)
            values["image_height"].append(height)
            values["image_megapixels"].append(width * height / 1e6)
            values["image_aspect_ratio"].append(width / height)
    values["objects_per_image"] = np.diff(table.offsets).tolist()
    for (width, height), (x_min, y_min, x_max, y_max), row in objects_of(table):
        box_width = x_max - x_min
        box_height = y_max - y_min
        first, _, last = table.visibility[row]
        if first and last:
            values["normalization_distance"].append(math.dist(table.keypoints[row, 0], table.keypoints[row, 2]))
        if box_width <= 0 or box_height <= 0:
            continue
        values["box_width"].append(box_width)
        values["box_height"].append(box_height)
        values["box_side"].append(math.sqrt(box_width * box_height))
        values["box_aspect_ratio"].append(box_width / box_height)
        if width and height:
            values["box_relative_side"].append(math.sqrt(box_width * box_height / width / height))
    return values


def test_distributions_equal_measures_by_hand():
    train = random_table(1)
    val = random_table(2, num_images=9)
    statistics = statistics_of({"train": train, "val": val})
    for name, table in {"train": train, "val": val}.items():
        for measure, values in measures_by_hand(table).items():
            if not values:  # boxes without an angle
                assert measure not in statistics.sets[name].distributions
                continue
            distribution = statistics.sets[name].distributions[measure]
            assert distribution.num_values == len(values)
            assert distribution.mean == pytest.approx(np.mean(values))
            assert distribution.quantiles[[0, 3, 6]] == pytest.approx([min(values), median(values), max(values)])
            assert distribution.counts.sum() == len(values)
            edges = distribution.edges.tolist()
            counts = [sum(low <= value < high for value in values) for low, high in pairwise(edges)]
            counts[-1] += sum(value == edges[-1] for value in values)
            assert distribution.counts.tolist() == counts
            assert np.array_equal(distribution.edges, statistics.sets["train"].distributions[measure].edges)


def test_areas_medians_and_centres_equal_counts_by_hand():
    table = random_table(3)
    statistics = statistics_of({"train": table}).sets["train"]
    areas = np.zeros((len(CLASSES), 3), dtype=int)
    sides = [[] for _ in CLASSES]
    centres = np.zeros((32, 32), dtype=int)
    num_outside = 0
    for (width, height), (x_min, y_min, x_max, y_max), row in objects_of(table):
        box_area = (x_max - x_min) * (y_max - y_min)
        if box_area <= 0:
            continue
        area = box_area if np.isnan(table.areas[row]) else table.areas[row]
        areas[table.labels[row], 0 if area < 1024 else 1 if area < 9216 else 2] += 1
        sides[table.labels[row]].append(math.sqrt(box_area))
        if width and height:
            x = (x_min + x_max) / 2 / width
            y = (y_min + y_max) / 2 / height
            if 0 <= x <= 1 and 0 <= y <= 1:
                centres[min(31, int(y * 32)), min(31, int(x * 32))] += 1
            else:
                num_outside += 1
    assert statistics.area_counts.tolist() == areas.tolist()
    medians = [median(values) if values else np.nan for values in sides]
    np.testing.assert_allclose(statistics.median_sides, medians)
    assert statistics.centres.tolist() == centres.tolist()
    assert statistics.num_centres_outside == num_outside > 0


def test_points_outside_and_sizes_equal_counts_by_hand():
    table = random_table(4)
    statistics = statistics_of({"train": table}).sets["train"]
    outside = [0, 0, 0]
    for (width, height), _, row in objects_of(table):
        for point, ((x, y), state) in enumerate(zip(table.keypoints[row], table.visibility[row], strict=True)):
            outside[point] += bool(state and width and height and not (0 <= x <= width and 0 <= y <= height))
    assert statistics.points_outside.tolist() == outside
    assert min(outside) > 0
    sizes = [size for size in zip(table.widths.tolist(), table.heights.tolist(), strict=True) if all(size)]
    assert {(w, h): n for w, h, n in statistics.image_sizes} == {size: sizes.count(size) for size in set(sizes)}
    counts = [n for *_, n in statistics.image_sizes]
    assert counts == sorted(counts, reverse=True)
    assert statistics.num_image_sizes == len(set(sizes))


def test_co_occurrence_counts_images_of_all_sets(monkeypatch):
    # Smaller than a set, so that images are counted in several parts.
    monkeypatch.setattr("lit_loader.inspection.statistics._IMAGES_AT_ONCE", 7)
    parts = [random_table(5), random_table(6, num_images=10)]
    matrix = statistics_of({"train": parts[0], "val": parts[1]}).co_occurrence
    images = [
        {CLASSES[label] for label in table.labels[table.objects(i)]} for table in parts for i in range(table.num_images)
    ]
    assert set(matrix.class_names) == {"common", "rare", "third"}
    assert matrix.class_names[0] == "common"
    assert matrix.num_images == 50
    for row, first in enumerate(matrix.class_names):
        for column, second in enumerate(matrix.class_names):
            count = sum({first, second} <= classes for classes in images)
            assert matrix.images[row, column] == count
            expected = sum(first in classes for classes in images) * sum(second in classes for classes in images) / 50
            assert matrix.lift[row, column] == pytest.approx(count / expected)
    pairs = matrix.pairs(2)
    assert [pair[2] for pair in pairs] == sorted((pair[2] for pair in matrix.pairs(9)), reverse=True)[:2]


def test_matrix_of_many_classes_has_the_most_frequent_ones():
    num_classes = 100
    labels = np.repeat(np.arange(num_classes), np.arange(1, num_classes + 1))
    table = small_table(
        image_paths=[f"{i}.jpg" for i in range(len(labels))],
        class_names=[f"class {c}" for c in range(num_classes)],
        widths=[9] * len(labels),
        heights=[9] * len(labels),
        offsets=range(len(labels) + 1),
        boxes=np.tile([1, 2, 3, 4], (len(labels), 1)),
        labels=labels,
    )
    matrix = statistics_of({"train": table}).co_occurrence
    assert matrix.class_names == tuple(f"class {c}" for c in range(99, 79, -1))
    assert matrix.images.shape == (20, 20)
    assert matrix.pairs(5) == []


def test_whole_images_with_a_class_have_no_statistics_of_boxes():
    filled = small_table(boxes=[[0, 0, 9, 9]])
    statistics = statistics_of({"train": filled}).sets["train"]
    assert not [name for name in statistics.distributions if name.startswith("box")]
    assert statistics.area_counts.sum() == statistics.centres.sum() == 0
    # One object that fills its image is a box like any other.
    both = small_table(offsets=[0, 2], boxes=[[0, 0, 9, 9], [1, 1, 3, 3]], labels=[0, 0])
    assert statistics_of({"train": both}).sets["train"].area_counts.tolist() == [[2, 0, 0]]


@pytest.mark.parametrize("num_images", [0, 1])
def test_set_without_objects_has_statistics_of_images(num_images):
    table = small_table(
        image_paths=["a.jpg"] * num_images,
        image_ids=["a"] * num_images,
        class_names=(),
        offsets=[0] * (num_images + 1),
        boxes=np.zeros((0, 4)),
        labels=[],
        widths=[9] * num_images,
        heights=[9] * num_images,
    )
    statistics = statistics_of({"train": table})
    assert statistics.sets["train"].figures["empty_images"] == num_images
    assert ("image_width" in statistics.sets["train"].distributions) == bool(num_images)
    assert statistics.co_occurrence.images.shape == (0, 0)
    json.dumps(statistics.to_dict())


def test_largest_boxes_have_finite_statistics():
    table = small_table(boxes=[[-3e38, -3e38, 3e38, 3e38]])
    distributions = statistics_of({"train": table}).sets["train"].distributions
    assert distributions["box_side"].mean == pytest.approx(6e38)
    assert all(np.isfinite(part.edges).all() for part in distributions.values())


def test_equal_negative_angles_are_in_one_bin():
    table = small_table(rotated_boxes=[[10, 10, 8, 4, -30.5]])
    angles = statistics_of({"train": table}).sets["train"].distributions["box_angle"]
    assert angles.edges[0] < -30.5 < angles.edges[1]
    assert angles.counts.tolist() == [1]


@given(tables())
def test_statistics_of_any_table_are_json_data(table):
    statistics = statistics_of({"train": table, "val": table.select([0])})
    text = json.dumps(statistics.to_dict(), allow_nan=False)
    assert json.loads(text)["sets"]["train"]["figures"]["objects"] == table.num_objects


def test_sets_with_different_classes_are_refused():
    with pytest.raises(ValueError, match=r"'val' has the classes \('y',\), and 'train' has \('x',\); give both"):
        statistics_of({"train": small_table(), "val": small_table(class_names=["y"])})
    with pytest.raises(ValueError, match="at least one table"):
        statistics_of({})
