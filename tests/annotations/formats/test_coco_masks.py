"""Masks, ids and areas of COCO JSON: read into the table, written back the same, odd ones named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from lit_loader.annotations.masks import encode_counts
from lit_loader.errors import AnnotationError

SQUARE = [1, 1, 4, 1, 4, 3, 1, 3]
RUNS = [11, 2, 8, 2, 77]  # of 10 x 10: columns 1 and 2, rows 1 and 2


def annotation(number, segmentation, **fields):
    box = {"bbox": [1, 1, 3, 2], "area": 6.5}
    return {"id": number, "image_id": 40, "category_id": 90, "segmentation": segmentation, **box, **fields}


def write(folder, *annotations):
    data = {
        "images": [{"id": 40, "file_name": "a.png", "width": 10, "height": 10}],
        "categories": [{"id": 90, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": annotations,
    }
    (folder / "a.json").write_text(json.dumps(data))


def read(folder, name="a.json", **options):
    options = {"policy": {"missing_image": "keep"}, "use_cache": False, **options}
    return read_annotations("coco", folder, name, **options)


def pixels(table, row):
    return table.masks.rasterize(row, 10, 10)


def test_polygons_and_run_lengths_become_the_same_pixels(tmp_path):
    write(
        tmp_path,
        annotation(3, [[1, 1, 3, 1, 3, 3, 1, 3]]),
        annotation(5, {"size": [10, 10], "counts": RUNS}, iscrowd=1),
        annotation(8, {"size": [10, 10], "counts": encode_counts(RUNS)}),
        annotation(9, []),
        annotation(10, [SQUARE, [6, 6, 8, 6, 8, 8, 6, 8]]),
    )
    table = read(tmp_path)
    square = np.zeros((10, 10), np.uint8)
    square[1:3, 1:3] = 1
    for row in (0, 1, 2):
        np.testing.assert_array_equal(pixels(table, row), square)
    assert not pixels(table, 3).any()
    assert pixels(table, 4).sum() == 6 + 4
    assert table.report.counts == {("missing_image", "keep"): 1}


def test_ids_and_areas_are_written_back(tmp_path):
    write(tmp_path, annotation(30, [SQUARE]), annotation(10, {"size": [10, 10], "counts": RUNS}, category_id=7))
    table = read(tmp_path)
    assert (table.source_ids.tolist(), table.object_ids.tolist()) == ([40], [30, 10])
    assert dict(zip(table.class_names, table.category_ids.tolist(), strict=True)) == {"cat": 90, "dog": 7}
    assert table.areas.tolist() == [6.5, 6.5]
    assert write_annotations("coco", table, tmp_path, "b.json") == []
    original, written = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    for record, written_record in zip(original["annotations"], written["annotations"], strict=True):
        assert record.items() <= written_record.items()
    assert sorted(category["id"] for category in written["categories"]) == [7, 90]
    restored = read(tmp_path, "b.json")
    for name in ("source_ids", "category_ids", "object_ids", "areas"):
        np.testing.assert_array_equal(getattr(restored, name), getattr(table, name))
    np.testing.assert_array_equal(pixels(restored, 0), pixels(table, 0))


def test_missing_box_is_around_the_polygons(tmp_path):
    write(tmp_path, annotation(1, [SQUARE, [6, 6, 8, 6, 8, 9, 6, 9]], bbox=None))
    assert read(tmp_path).boxes.tolist() == [[1, 1, 8, 9]]


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ("abc", "expected segmentation as polygons or run lengths"),
        ([[1, 2, "x", 4, 5, 6]], "expected a polygon as x, y"),
        ([[1, 2, 1e30, 4, 5, 6]], "beyond 1e\\+28"),
        ({"size": [10, 10], "counts": [3, 4]}, r"expected whole numbers that add up to the 100 pixels of \[10, 10\]"),
        ({"size": [10, 10], "counts": [49.5, 50.5]}, "expected whole numbers"),
        ({"size": [10, 10], "counts": [-1, 101]}, "expected whole numbers that add up"),
        ({"size": [10, 10], "counts": "~~~"}, "counts of a mask"),
        ({"size": [1 << 40, 1 << 40], "counts": [1]}, "expected whole numbers that add up"),
        ({"size": [10, 10], "counts": [2**62] * 4 + [100]}, "counts of a mask"),
        ({"size": [10, 10], "counts": [str(run) for run in RUNS]}, "counts of a mask"),
        ({"size": [10, 10], "counts": [[1], [2]]}, "counts of a mask"),
        ({"size": [10, 10], "counts": None}, "counts of a mask"),
        ({"size": [5, 20], "counts": [100]}, "a mask of 20 x 5 pixels in an image of 10 x 10"),
        ({"size": "big", "counts": RUNS}, r"expected the size of a mask as \[height, width\]"),
        ({"size": [10, 10], "counts": {"a": 1}}, "counts of a mask"),
    ],
)
def test_invalid_masks_are_malformed(tmp_path, segmentation, message):
    write(tmp_path, annotation(1, segmentation), annotation(2, [SQUARE]))
    with pytest.raises(AnnotationError, match=rf"a\.json.*{message}"):
        read(tmp_path)
    table = read(tmp_path, policy=ReadPolicy(missing_image="keep", malformed="drop"))
    assert (table.object_ids.tolist(), table.report.count("malformed", "drop")) == ([2], 1)


def test_polygon_of_two_points_is_dropped_and_counted(tmp_path):
    write(tmp_path, annotation(1, [[1, 1, 2, 2], SQUARE]))
    table = read(tmp_path)
    assert pixels(table, 0).sum() == 6
    assert table.report.count("odd_polygon", "left out") == 1


def test_formats_without_masks_refuse_them_by_name(tmp_path):
    write(tmp_path, annotation(1, [SQUARE]))
    with pytest.raises(ValueError, match="format 'voc' cannot hold 1 masks"):
        write_annotations("voc", read(tmp_path), tmp_path / "voc", ".")


def test_real_masks_have_the_areas_in_their_file(shared_data):
    table = read(shared_data / "coco_small", "annotations.json", image_dir="images")
    image_of = table.image_of_object()
    for row in range(table.num_objects):
        image = int(image_of[row])
        drawn = table.masks.rasterize(row, int(table.heights[image]), int(table.widths[image])).sum()
        assert drawn == pytest.approx(table.areas[row], rel=0.15, abs=16)


def test_run_lengths_without_box_are_malformed(tmp_path):
    write(tmp_path, annotation(3, {"size": [10, 10], "counts": RUNS}, bbox=None))
    with pytest.raises(AnnotationError, match="object 0: expected a bbox for each object with run lengths"):
        read(tmp_path)
    assert read(tmp_path, masks=False).boxes.tolist() == [[0, 0, 10, 10]]


def test_polygon_beyond_the_image_is_reported_by_its_box(tmp_path):
    write(tmp_path, annotation(3, [[-2, 1, 12, 1, 12, 3]], bbox=None))
    policy = {"missing_image": "keep", "out_of_image": "clip"}
    table = read(tmp_path, policy=policy)
    assert table.report.count("out_of_image", "clip") == 1
    assert table.boxes.tolist() == [[0, 1, 10, 3]]


def test_masks_that_take_too_long_to_draw_are_malformed(tmp_path):
    image = {"id": 40, "file_name": "a.png", "width": 4000, "height": 4000}
    zigzag = [number for x in range(1100) for number in (x, 4000 * (x % 2))]
    annotations = [annotation(1, [SQUARE]), annotation(2, [SQUARE, zigzag]), annotation(3, [zigzag[:1200]])]
    data = {"images": [image], "categories": [{"id": 90, "name": "cat"}], "annotations": annotations}
    (tmp_path / "a.json").write_text(json.dumps(data))
    words = r"a\.json:1: object 1: .* 1104 points .* cross 4400004 rows .* MAX_ROW_CROSSINGS=4194304"
    with pytest.raises(AnnotationError, match=words):
        read(tmp_path)
    table = read(tmp_path, policy={"missing_image": "keep", "malformed": "drop"})
    assert table.object_ids.tolist() == [1, 3]
    assert table.report.counts[("malformed", "drop")] == 1
    assert read(tmp_path, masks=False).num_objects == 3
