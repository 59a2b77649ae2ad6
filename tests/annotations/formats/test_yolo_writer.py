from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.annotations.formats import ReadPolicy, find_writer, read_annotations, write_annotations
from lit_loader.annotations.masks import Masks, RunLengths
from tests.support.any_table import assert_same_table, small_table, tables

KEEP = ReadPolicy(degenerate="keep", out_of_image="keep", keypoint_outside="keep")


def read(root, name="train", **options):
    return read_annotations("yolo", root, name, policy=KEEP, use_cache=False, **options)


def write(table, root, name="train", **options):
    return write_annotations("yolo", table, root, name, **options)


def without_losses(table, **columns):
    """Return a table that YOLO can hold: ids are paths, and flip pairs are in the order of their points."""
    names = {"boxes", "labels", "offsets", "widths", "heights", "class_names", "masks"}
    names |= {"keypoints", "visibility", "keypoint_names", "normalization_pair"}
    names |= {"keypoint_sigmas", "skeleton"}
    values = {name: getattr(table, name) for name in names}
    flip_pairs = sorted(tuple(sorted(pair)) for pair in table.flip_pairs)
    return AnnotationTable(root=table.root, split="train", flip_pairs=flip_pairs, **values, **columns)


def make_images(table, root):
    for i, path in enumerate(table.image_paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("1", (int(table.widths[i]), int(table.heights[i]))).save(root / path, "png")


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables(exact=True), folder=st.sampled_from(["images", "images/train", "pictures"]))
def test_boxes_and_points_come_back_exactly(tmp_path_factory, table, folder):
    root = tmp_path_factory.mktemp("set")
    paths = [f"{folder}/{i}.png" for i in range(table.num_images)]
    table = without_losses(table, image_paths=paths)
    make_images(table, root)
    losses = write(table, root, allow_loss=True)
    restored = read(root)
    if losses:
        assert all("boxes exactly" in words for words in losses)
    else:
        assert_same_table(restored, table)
    write(restored, root / "again")
    assert (root / "again/data.yaml").read_bytes() == (root / "data.yaml").read_bytes()
    for path in root.glob("**/*.txt"):
        if "again" not in path.parts:
            assert (root / "again" / path.relative_to(root)).read_bytes() == path.read_bytes()


SIDE = st.integers(1, 4000)
COORDINATE = st.floats(-50, 5000, width=32).map(lambda value: value + 0.0)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    polygons=st.lists(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=3, max_size=6), max_size=4),
    size=st.tuples(SIDE, SIDE),
)
def test_polygons_come_back_bit_for_bit_with_tight_boxes(tmp_path_factory, polygons, size):
    root = tmp_path_factory.mktemp("set")
    arrays = [np.array(points, dtype=np.float32) for points in polygons]
    boxes = [[*points.min(axis=0), *points.max(axis=0)] for points in arrays]
    objects = {"offsets": [0, len(arrays)], "boxes": boxes, "labels": [i % 2 for i in range(len(arrays))]}
    masks = Masks.from_rows([[points] for points in arrays])
    table = table_of(**objects, masks=masks, widths=size[:1], heights=size[1:], split="train")
    make_images(table, root)
    assert write(table, root) == []
    restored = read(root)
    assert_same_table(restored, table)
    for row, points in enumerate(arrays):
        (part,) = restored.masks.polygons(row)
        np.testing.assert_array_equal(part, points)


def table_of(**columns):
    cat_and_dog = {"image_paths": ["images/a.png"], "class_names": ["cat", "dog"], "labels": [1]}
    pixels = {"boxes": np.array([[6, 10, 30, 20]], dtype=np.float32), "widths": [60], "heights": [50]}
    return small_table(**(cat_and_dog | pixels | columns))


POINTS = {
    "keypoints": np.array([[[6, 25], [3, 4], [0, 0]]], dtype=np.float32),
    "visibility": [[2, 1, 0]],
    "keypoint_names": ["l", "m", "r"],
    "flip_pairs": [(0, 2)],
    "normalization_pair": (0, 1),
}
SQUARE = [[6, 10], [30, 10], [30, 20], [6, 20]]
TRIANGLE = [[40, 30], [50, 30], [50, 40]]


def test_files_are_in_the_layout_of_ultralytics(tmp_path):
    write(table_of(image_paths=["images/day/a.png"], **POINTS), tmp_path)
    write(table_of(image_paths=["images/b.png"], **POINTS), tmp_path, "val")
    assert (tmp_path / "train.txt").read_text() == "./images/day/a.png\n"
    row = "1 0.3 0.3 0.4 0.2 0.1 0.5 2 0.05 0.08 1 0 0 0\n"
    assert (tmp_path / "labels/day/a.txt").read_text() == row
    names = ["l", "m", "r"]
    points = {"kpt_shape": [3, 3], "flip_idx": [2, 1, 0], "kpt_names": {0: names, 1: names}}
    points |= {"normalization_pair": [0, 1]}
    data = yaml.safe_load((tmp_path / "data.yaml").read_text())
    assert data == {"train": "train.txt", "val": "val.txt", "names": {0: "cat", 1: "dog"}} | points


@pytest.mark.parametrize("task", ["detect", "segment", "pose"])
def test_task_selects_masks_or_points(tmp_path, task):
    table = table_of(**POINTS, masks=Masks.from_rows([[SQUARE]]))
    make_images(table, tmp_path)
    losses = write(table, tmp_path, allow_loss=True, task=task)
    points = ["3 points of each object"]
    assert losses == {"detect": ["1 masks", *points], "segment": points, "pose": ["1 masks"]}[task]
    restored = read(tmp_path)
    assert (restored.masks is not None, restored.keypoints is not None) == (task == "segment", task == "pose")
    np.testing.assert_array_equal(restored.boxes, table.boxes)


FLAGS = ("difficult", "truncated", "occluded", "crowd")
TWO_IMAGES = {"image_paths": ["images/a.png"] * 2, "offsets": [0, 1, 1], "widths": [60] * 2, "heights": [50] * 2}
SAME_LABEL = TWO_IMAGES | {"image_paths": ["images/a.png", "images/a.jpg"]}
WITHOUT_POLYGON = "1 objects without a polygon, which get their box"


@pytest.mark.parametrize(
    ("columns", "losses"),
    [
        ({}, []),
        *(({flag: [True]}, [f"1 {flag} objects"]) for flag in FLAGS),
        ({"attributes": {"pose": Attribute(ids=np.array([0]), names=("up",))}}, ["1 values of attribute 'pose'"]),
        ({**POINTS, "visibility": [[2, 0, 0]]}, ["1 absent points with a place"]),
        ({"boxes": [[-1e30, 0, 1, 1]]}, ["1 boxes exactly"]),
        (TWO_IMAGES, ["1 images that have the same file as another"]),
        ({"masks": Masks.from_rows([[SQUARE, TRIANGLE]]), "boxes": [[6, 10, 50, 40]]}, ["1 masks of several polygons"]),
        ({"masks": Masks.from_rows([[TRIANGLE]])}, ["1 boxes that are not around their polygons"]),
        ({"masks": Masks.from_rows([None])}, [WITHOUT_POLYGON]),
        ({"masks": Masks.from_rows([RunLengths([0, 3000], 50, 60)])}, [WITHOUT_POLYGON, "1 masks of run lengths"]),
    ],
)
def test_losses_are_counted_and_refused_unless_allowed(tmp_path, columns, losses):
    table = table_of(**columns)
    assert find_writer("yolo")().losses(table) == losses
    if losses:
        with pytest.raises(ValueError, match=f"cannot hold {losses[0]}.*allow_loss=True"):
            write(table, tmp_path / "set")
        assert not (tmp_path / "set").exists()
    assert write(table, tmp_path / "set", allow_loss=True) == losses


@pytest.mark.parametrize("count", [2, 3, 4])
def test_joined_polygons_cover_the_same_pixels(tmp_path, count):
    parts = [np.array(SQUARE) / 2 + [7 * (i % 2), 9 * i] for i in range(count)]
    table = table_of(masks=Masks.from_rows([[part.astype(np.float32) for part in parts]]))
    make_images(table, tmp_path)
    write(table, tmp_path, allow_loss=True)
    restored = read(tmp_path)
    assert len(restored.masks.polygons(0)) == 1
    np.testing.assert_array_equal(restored.masks.rasterize(0, 50, 60), table.masks.rasterize(0, 50, 60))


@pytest.mark.parametrize(
    ("columns", "name", "words"),
    [
        ({"widths": [0]}, "train", "size of image 'images/a.png' is unknown"),
        ({"split": "val"}, "train", "the table's split, 'val'"),
        ({}, "names", "must be a word such as 'train'"),
        ({}, ".", "must be a word such as 'train'"),
        ({"image_paths": ["images/a\n.png"]}, "train", "cannot be in a list"),
        ({"image_paths": ["train.png"]}, "train", "label file 'train.txt'"),
        (SAME_LABEL, "train", "'images/a.jpg' cannot be .* label file 'labels/a.txt' with 'images/a.png'"),
        ({"class_names": ["cat", "d" * 300]}, "train", "cannot be in a data.yaml"),
        ({"class_names": ["cat", "\udcff"]}, "train", "cannot be in a data.yaml"),
    ],
)
def test_invalid_sets_are_refused_before_a_file_is_written(tmp_path, columns, name, words):
    with pytest.raises(ValueError, match=words):
        write(table_of(**columns), tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, dog]\ntrain: images/train\n",
        "names: {0: dog, 1: cat}\nval: val.txt\n",
        "path: /data\nnames: [a]\n",
    ],
)
def test_a_data_file_of_another_is_not_touched(tmp_path, text):
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ValueError, match="has other classes or points; write into another folder"):
        write(table_of(), tmp_path)
    assert (tmp_path / "data.yaml").read_text() == text
    assert len(list(tmp_path.iterdir())) == 1


NAMES = ("no", "~", "null", "0x1", "1_0", "a: b", "#x", "x #y", "{", "é語", "'", '"', "- a", "*a", "yes", "1.0")


def test_names_with_a_meaning_in_yaml_come_back_exactly(tmp_path):
    table = table_of(class_names=NAMES)
    make_images(table, tmp_path)
    write(table, tmp_path)
    assert read(tmp_path).class_names == NAMES
