"""Rows of label files."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.annotations.formats import Rows, read_annotations
from lit_loader.errors import AnnotationError
from tests.support.any_table import assert_same_table
from tests.support.text_sets import write_image

NAMES = "names: {0: cat, 1: dog}\n"


def read(root, name="train", **options):
    return read_annotations("yolo", root, name, use_cache=False, **options)


def make_set(root, rows, *, data=NAMES, file="data.yaml"):
    """Write one image of 60 x 50 pixels and its label file; ``data`` is the data file's text, or None for none."""
    write_image(root / "images/train/a.jpg")
    (root / "labels/train").mkdir(parents=True)
    (root / "labels/train/a.txt").write_text(rows)
    if data is not None:
        (root / file).write_text(data)
    return root


def test_boxes_are_centre_and_size_in_fractions(tmp_path):
    table = read(make_set(tmp_path, "1 0.5 0.5 0.2 0.4\n\n0.0 0.1 0.1 0.1 0.1\n"))
    np.testing.assert_allclose(table.boxes, [[24, 15, 36, 35], [3, 2.5, 9, 7.5]], rtol=1e-6)
    assert table.labels.tolist() == [1, 0]
    assert (table.class_names, table.split, table.masks) == (("cat", "dog"), "train", None)
    assert list(table.image_paths) == ["images/train/a.jpg"]


def test_polygons_and_rotated_boxes_are_masks_with_tight_boxes(tmp_path):
    rows = "0 0.1 0.1 0.5 0.1 0.5 0.5\n1 0.5 0.5 0.2 0.4\n0 0 0 0.5 0 0.5 1 0 1\n"
    table = read(make_set(tmp_path, rows))
    np.testing.assert_allclose(table.boxes, [[6, 5, 30, 25], [24, 15, 36, 35], [0, 0, 30, 50]], rtol=1e-6)
    assert [len(table.masks.polygons(row)) for row in range(3)] == [1, 0, 1]
    np.testing.assert_allclose(table.masks.polygons(0)[0], [[6, 5], [30, 5], [30, 25]], rtol=1e-6)


POSE = NAMES + "kpt_shape: [2, 3]\n"


def test_points_have_three_numbers_with_their_visibility(tmp_path):
    table = read(make_set(tmp_path, "0 0.5 0.5 0.2 0.4 0.5 0.1 2 0.25 0.5 1\n1 0.5 0.5 0.2 0.4 0 0 0 1 1 2", data=POSE))
    assert table.keypoints.tolist() == [[[30, 5], [15, 25]], [[0, 0], [60, 50]]]
    assert table.visibility.tolist() == [[2, 1], [0, 2]]
    assert (table.keypoint_names, table.flip_pairs) == (("00", "01"), ())


def test_negative_points_without_flags_are_absent(tmp_path):
    rows = "0 0.5 0.5 0.2 0.4 0 0 0.25 0.5\n1 0.5 0.5 0.2 0.4 -1 0.5 0.5 -0.1\n"
    table = read(make_set(tmp_path, rows, data=NAMES + "kpt_shape: [2, 2]\n"))
    assert table.visibility.tolist() == [[2, 2], [0, 0]]
    assert table.keypoints.tolist() == [[[0, 0], [15, 25]], [[0, 0], [0, 0]]]


def test_data_file_sets_names_and_pairs_of_points(tmp_path):
    more = "flip_idx: [2, 1, 0]\nkpt_names:\n  0: [l, m, r]\n  1: [l, m, r]\nnormalization_pair: [0, 2]\n"
    rows = "0 0.5 0.5 0.2 0.4" + " 0.5 0.5" * 3
    table = read(make_set(tmp_path, rows, data=NAMES + "kpt_shape: [3, 2]\n" + more))
    assert table.keypoint_names == ("l", "m", "r")
    assert (table.flip_pairs, table.normalization_pair) == (((0, 2),), (0, 2))
    named = read(tmp_path, schema={"names": ["a", "b", "c"], "flip_pairs": [["a", "b"]]})
    assert (named.keypoint_names, named.flip_pairs) == (("a", "b", "c"), ((0, 1),))


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        ('[12, "01"]', "pairs of whole numbers from 0, got 12"),
        ("[[0, 2]]", "skeleton has position 2, but there are 2 points"),
        ("[[0, -1]]", "pairs of whole numbers from 0"),
        (f"[{'[0, 1], ' * 2049}]", "a list of at most 2048 pairs"),
    ],
)
def test_bad_skeleton_is_reported_and_the_points_are_read(tmp_path, skeleton, message):
    rows = "0 0.5 0.5 0.2 0.4 0.5 0.1 2 0.25 0.5 1\n"
    table = read(make_set(tmp_path, rows, data=f"{POSE}skeleton: {skeleton}\n"))
    (problem,) = table.report.problems
    assert (problem.kind, problem.action, problem.file) == ("bad_skeleton", "ignore", "data.yaml")
    assert message in problem.message
    assert (table.skeleton, len(table.keypoint_names)) == ((), 2)
    (tmp_path / "data.yaml").write_text(f"{POSE}skeleton: [[0, 1]]\n")
    assert read(tmp_path).skeleton == ((0, 1),)


@pytest.mark.parametrize(
    ("row", "count", "size"),
    [("0 0.5 0.5 0.2 0.4" + " 0.5 0.5" * 6, 6, 2), ("0 0.5 0.5 0.2 0.4" + " 0.5 0.5 2" * 4, 4, 3)],
)
def test_ambiguous_row_follows_the_task_or_data_file(tmp_path, row, count, size):
    root = make_set(tmp_path, row, data="cat\ndog\n", file="classes.txt")
    with pytest.raises(AnnotationError, match=r"a\.txt:1: 17 numbers are a polygon or points: choose the task"):
        read(root)
    assert len(read(root, task="segment").masks.polygons(0)[0]) == 8
    points = read(root, task="pose", schema=count)
    assert points.keypoints.shape == (1, count, 2)
    np.testing.assert_allclose(points.boxes, [[24, 15, 36, 35]], rtol=1e-6)
    (root / "data.yaml").write_text(NAMES)  # of ultralytics, where a set with points says so
    assert read(root).masks is not None
    (root / "data.yaml").write_text(f"{NAMES}kpt_shape: [{count}, {size}]\n")
    assert read(root).keypoints.shape == (1, count, 2)


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ("0 0.5 0.5 0.2 0.4 0.9", {}, "6 numbers, .* remove the confidence of a prediction"),
        ("0 0.1 0.1 0.5 0.1 0.5 0.5 0.9", {}, "8 numbers, .* remove the confidence of a prediction"),
        ("0 0.1 0.1", {}, "3 numbers, where a row has 5 or 7, 9, 11, ... for a polygon"),
        ("0 0.1 0.1 0.5 0.1 0.5 0.5", {"task": "detect"}, "7 numbers, where a row has 5; see `task`"),
        ("0 0 0 1 0 1 1 0 1", {"task": "detect"}, r".*an oriented box \(YOLO-OBB\) is read with task='obb'"),
        ("0 0.5 0.5 0.2 0.4", {"task": "pose", "schema": 2}, "5 numbers, where a row has 9 or 11"),
        ("2 0.5 0.5 0.2 0.4", {}, "class 2 has no name: data.yaml has 2, from 0 on"),
        ("-1 0.5 0.5 0.2 0.4", {}, "class -1 has no name"),
        ("nan 0.5 0.5 0.2 0.4", {}, "class nan has no name"),
        ("cat 0.5 0.5 0.2 0.4", {}, "expected number 1 of 5, got 'cat'"),
        ("0 0.1 0.1 nan 0.1 0.5 0.5", {}, ".* a coordinate that is not finite"),
        ("0 0.5 0.5 0.2 0.4 0.5 0.1 3 0.25 0.5 1", {"schema": 2}, r"visibility \[3.0, 1.0\] must be 0, 1 or 2"),
    ],
)
def test_malformed_rows_are_refused_with_line_or_dropped(tmp_path, row, options, words):
    good = "0 0.5 0.5 0.2 0.4" + (" 0.5 0.5 2" * options.get("schema", 0))
    root = make_set(tmp_path, f"{good}\n{row}\n")
    with pytest.raises(AnnotationError, match=rf"labels/train/a\.txt:2: {words}"):
        read(root, **options)
    table = read(root, policy={"malformed": "drop"}, **options)
    assert (table.num_objects, table.report.count("malformed", "drop")) == (1, 1)


def test_binary_label_file_drops_its_whole_image(tmp_path):
    root = make_set(tmp_path, "0 0.5 0.5 0.2 0.4\n\0\0\0\n")
    write_image(root / "images/train/b.jpg")
    (root / "labels/train/b.txt").write_text("1 0.5 0.5 0.2 0.4\n")
    with pytest.raises(AnnotationError, match=r"a\.txt:2: the line contains a NUL"):
        read(root)
    table = read(root, policy={"malformed": "drop"})
    assert list(table.image_paths) == ["images/train/b.jpg"]


def test_image_without_label_file_follows_the_policy(tmp_path):
    root = make_set(tmp_path, "")
    assert (read(root).num_images, read(root).num_objects) == (1, 0)
    (root / "labels/train/a.txt").unlink()
    with pytest.raises(AnnotationError, match=r"'images/train/a.jpg' has no label file 'labels/train/a.txt'"):
        read(root)
    empty = read(root, policy={"missing_annotation": "empty"})
    assert (empty.num_images, empty.report.count("missing_annotation", "empty")) == (1, 1)
    dropped = read(root, policy={"missing_annotation": "drop"})
    assert (dropped.num_images, dropped.report.count("missing_annotation", "drop")) == (0, 1)


def test_many_files_are_the_same_table_for_any_number_of_processes(tmp_path):
    root = make_set(tmp_path, "0 0.5 0.5 0.2 0.4 0.1 0.1 2\n", data=NAMES + "kpt_shape: [1, 3]\n")
    for i in range(500):
        write_image(root / f"images/train/{i}.png", (10 + i % 7, 20))
        (root / f"labels/train/{i}.txt").write_text("1 0.5 0.5 0.2 0.4 0.3 0.3 1\n" * (i % 3))
    assert_same_table(read(root, num_workers=2), read(root, num_workers=0))


def test_cached_table_follows_images_labels_and_names(tmp_path):
    root = make_set(tmp_path / "set", "0 0.5 0.5 0.2 0.4\n")

    def counts():
        policy = {"missing_annotation": "empty"}
        table = read_annotations("yolo", root, "train", cache_dir=tmp_path / "cache", policy=policy)
        return table.num_images, table.num_objects, table.class_names[0]

    assert counts() == counts() == (1, 1, "cat")
    write_image(root / "images/train/b.jpg")
    assert counts() == (2, 1, "cat")
    (root / "labels/train/b.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    assert counts() == (2, 2, "cat")
    (root / "data.yaml").write_text("names: [owl, dog]\n")
    assert counts() == (2, 2, "owl")


def test_contradicting_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"schema=2 names points, task='detect' has none"):
        read(tmp_path, task="detect", schema=2)
    with pytest.raises(AnnotationError, match=r"task='pose' needs kpt_shape in the data file, or `schema`"):
        read(make_set(tmp_path, ""), task="pose")


def test_names_are_declared_once_for_all_images(tmp_path, monkeypatch):
    root = make_set(tmp_path, "0 0.5 0.5 0.2 0.4\n")
    calls = []
    for name in ("b", "c"):
        write_image(root / f"images/train/{name}.jpg")
        (root / f"labels/train/{name}.txt").touch()
    declare = Rows.declare
    monkeypatch.setattr(Rows, "declare", lambda *rows, **names: (calls.append(names), declare(*rows, **names)))
    assert (read(root).class_names, len(calls)) == (("cat", "dog"), 1)
