"""Rows that readers add, and the actions of the policy on them."""

from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np
import pytest

from lit_loader.annotations.formats import ReadPolicy, Rows
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.annotations.masks import run_lengths
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.any_table import assert_same_table
from tests.support.text_sets import write_image

SCHEMA = KeypointSchema(names=("l", "r", "tip"), flip_pairs=((0, 1),), normalization_pair=(0, 1))
POINTS = [[5, 6], [20, 8], [12, 30]]


@pytest.fixture
def root(tmp_path):
    for name in ("a.jpg", "b.jpg", "deep/c.png"):
        write_image(tmp_path / name)  # 60 x 50
    return tmp_path.resolve()


def make(root, *, schema=SCHEMA, **policy):
    rows = Rows(root, ReadPolicy(**policy))
    rows.file = "list.txt"
    if schema is not None:
        rows.declare(keypoints=schema)
    return rows


def build(rows, **options):
    return build_table(rows, Folder(rows.root), split="train", progress=False, **options)


def add(rows, path="a.jpg", *, line=1, class_name="face", box=(1, 2, 30, 40), **fields):
    rows.object(rows.image(path, line=line), class_name=class_name, box=box, line=line, **fields)


def test_rows_become_a_table_grouped_by_image(root):
    rows = make(root)
    add(rows, "b.jpg", class_name="z", points=POINTS, visibility=[2, 1, 0], attributes={"pose": "left"})
    add(rows, "a.jpg", class_name="y", truncated=True, crowd=True)
    add(rows, "b.jpg", class_name="x", box=None, points=POINTS, difficult=True, occluded=True)
    table = build(rows)
    assert list(table.image_paths) == list(table.image_ids) == ["b.jpg", "a.jpg"]
    assert (table.class_names, table.labels.tolist()) == (("x", "y", "z"), [2, 0, 1])
    assert table.offsets.tolist() == [0, 2, 3]
    assert (table.widths.tolist(), table.heights.tolist()) == ([60, 60], [50, 50])
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 20, 30], [1, 2, 30, 40]]
    assert table.visibility.tolist() == [[2, 1, 0], [2, 2, 2], [0, 0, 0]]
    assert table.keypoints[0].tolist() == [[5, 6], [20, 8], [0, 0]]
    flags = [getattr(table, name).tolist() for name in ("difficult", "occluded", "truncated", "crowd")]
    assert flags == [[False, True, False]] * 2 + [[False, False, True]] * 2
    assert (table.attributes["pose"].names, table.attributes["pose"].ids.tolist()) == (("left",), [0, -1, -1])
    assert (table.keypoint_schema, table.split, len(table.report)) == (SCHEMA, "train", 0)


def test_ids_areas_and_run_lengths_are_columns_of_the_table(root):
    rows = make(root)
    mask = np.zeros((50, 60), dtype=bool)
    mask[2:40, 1:30] = True
    add(rows)
    add(rows, object_id=7, area=1102.0, run_lengths=run_lengths(mask))
    add(rows)
    table = build(rows)
    assert table.object_ids.tolist() == [-1, 7, -1]
    assert np.isnan(table.areas).tolist() == [True, False, True]
    assert np.array_equal(table.masks.rasterize(1, 50, 60).astype(bool), mask)


def test_spellings_of_one_file_are_one_image(root):
    rows = make(root, schema=None)
    spellings = ("deep/c.png", "deep//c.png", "./deep/c.png", "deep\\c.png")
    assert {rows.image(path) for path in spellings} == {0}
    for path in ("deep/c.png", "deep/c", "a.jpg", "a"):
        add(rows, path)
    table = build(rows)
    assert (list(table.image_paths), table.offsets.tolist()) == (["deep/c.png", "a.jpg"], [0, 2, 4])
    assert table.report.counts == {("same_file", "unite"): 2}


def test_image_with_a_size_is_not_opened(root):
    (root / "a.jpg").write_bytes(b"no image")
    rows = make(root, schema=None)
    rows.image("a.jpg", image_id="seven", width=640, height=480)
    table = build(rows)
    assert (list(table.image_ids), table.widths.tolist(), table.heights.tolist()) == (["seven"], [640], [480])


@pytest.mark.parametrize("size", [(-1, 5), (0, 5), (10**30, 5), (60.5, 50)])
def test_invalid_size_is_reported_and_read_from_image(root, size):
    rows = make(root, schema=None)
    rows.image("a.jpg", width=size[0], height=size[1])
    table = build(rows)
    assert (table.widths.tolist(), table.report.counts) == ([60], {("bad_size", "unknown"): 1})


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["x.jpg", "y.jpg"], "2 of 2 images are missing in all; set `image_dir`"),
        (["x.jpg", "y.jpg", "a.jpg"], "2 of 3 images are missing in all; restore the missing files; "),
    ],
)
def test_image_dir_is_advised_only_if_all_images_are_missing(root, names, remedy):
    rows = make(root, schema=None)
    for name in names:
        rows.image(name)
    with pytest.raises(AnnotationError, match=remedy):
        build(rows)


def test_a_classified_image_has_the_box_of_the_whole_image(root):
    rows = make(root, schema=None, degenerate="raise")
    add(rows, box=None)
    assert build(rows).boxes.tolist() == [[0, 0, 60, 50]]


@pytest.mark.parametrize(
    ("policy", "fields", "kind"),
    [
        ("missing_image", {"path": "none.jpg"}, "there is no image 'none.jpg'(; restore the missing file|$)"),
        ("unreadable_image", {"path": "text.jpg"}, "the size of 'text.jpg' cannot be read"),
        ("unknown_class", {"class_name": "dog"}, "class 'dog' is not in"),
        ("invalid_keypoint", {"points": [[1, 2], [np.nan, 3], [4, 1e39]]}, r"2 points are not finite .*'r' \[nan"),
        ("keypoint_outside", {"points": [[60, 50], [60.5, 1], [1, 2]]}, "outside the image .image 60 x 50.: 'r'"),
        ("non_finite", {"box": (0, 0, np.inf, 5)}, r"box \[0.0, 0.0, inf, 5.0\] is not finite"),
        ("swapped", {"box": (30, 2, 1, 40)}, "has its corners swapped"),
        ("out_of_image", {"box": (0, 0, 60, 50.5)}, r"reaches beyond the image \(image 60 x 50\)"),
        ("degenerate", {"box": (5, 5, 5, 9)}, "has no area"),
        ("degenerate", {"box": None, "points": POINTS, "visibility": [0, 0, 0]}, "around the points has no area"),
        ("malformed", {"class_name": ""}, "the name of the class has 0 characters"),
        ("malformed", {"class_name": "a" * 257}, "the name of the class has 257 characters"),
        ("malformed", {"attributes": {"pose": ""}}, "the name of the attribute 'pose' has 0 characters"),
    ],
)
def test_a_problem_is_raised_with_file_and_line_or_reported(root, policy, fields, kind):
    (root / "text.jpg").write_text("no image")

    def read(**actions):
        rows = make(root, **actions)
        add(rows, "b.jpg", line=6)
        add(rows, **{"line": 7, **fields})
        return build(rows, class_names=["face"] if policy == "unknown_class" else None)

    with pytest.raises(AnnotationError, match=rf"list\.txt:7: .*{kind}.*policy={{'{policy}': "):
        read(**{policy: "raise"})
    for action in set(get_args(get_type_hints(ReadPolicy)[policy])) - {"raise"}:
        table = read(**{policy: action})
        assert table.report.counts[policy, action] == 1
        assert table.report.problems[0].line == 7
        assert table.num_objects == (1 if action == "drop" else 2)


@pytest.mark.parametrize(
    ("points", "box"),
    [
        ([[30, 40]], [27.5, 37.5, 32.5, 42.5]),  # a tenth of the image's 50
        ([[10, 20], [50, 20]], [10, 18, 50, 22]),
        ([[20, 10], [20, 40]], [18.5, 10, 21.5, 40]),
        ([[10, 20], [50, 21]], [10, 18.5, 50, 22.5]),
        ([[10, 20], [50, 24.5]], [10, 20, 50, 24.5]),
    ],
)
def test_boxes_around_points_are_never_narrow(root, points, box):
    names = [f"p{place}" for place in range(len(points))]
    rows = make(root, schema=KeypointSchema(names=names), degenerate="raise")
    add(rows, box=None, points=points)
    table = build(rows)
    assert table.boxes.tolist() == [box]
    is_widened = points[-1] != [50, 24.5]
    assert table.report.counts == ({("narrow_points", "widen"): 1} if is_widened else {})


def test_point_in_image_of_unknown_size_gets_one_pixel(root):
    rows = make(root, schema=KeypointSchema(names=["p"]), missing_image="keep")
    add(rows, "none.jpg", box=None, points=[[30, 40]])
    assert build(rows).boxes.tolist() == [[29.5, 39.5, 30.5, 40.5]]


OUTSIDE = [[5, 6], [70, 8], [12, 30]]


@pytest.mark.parametrize(
    ("box", "points", "actions", "expected_box", "visibility"),
    [
        ((30, 40, 1, 2), None, {}, [1, 2, 30, 40], [0, 0, 0]),
        ((-5, 2, 70, 40), None, {"out_of_image": "clip"}, [0, 2, 60, 40], [0, 0, 0]),
        ((-5, 2, 70, 40), None, {}, [-5, 2, 70, 40], [0, 0, 0]),
        ((5, 5, 5, 9), None, {"degenerate": "keep"}, [5, 5, 5, 9], [0, 0, 0]),
        (None, OUTSIDE, {}, [5, 6, 70, 30], [2, 2, 2]),
        (None, OUTSIDE, {"keypoint_outside": "absent"}, [5, 6, 12, 30], [2, 0, 2]),
        (None, OUTSIDE, {"out_of_image": "clip"}, [5, 6, 60, 30], [2, 2, 2]),
        (None, [[5, 6], [np.nan, 8], [12, 30]], {}, [5, 6, 12, 30], [2, 0, 2]),
    ],
)
def test_policy_actions_have_documented_effect(root, box, points, actions, expected_box, visibility):
    rows = make(root, **actions)
    add(rows, box=box, points=points)
    table = build(rows)
    assert (table.boxes.tolist(), table.visibility.tolist()) == ([expected_box], [visibility])
    assert (table.keypoints[table.visibility == 0] == 0).all()


def test_unknown_image_size_disables_bounds_checks(root):
    rows = make(root, missing_image="keep", out_of_image="raise", keypoint_outside="raise")
    add(rows, "none.jpg", box=(-9, -9, 1e6, 1e6), points=[[-1, -1], [1e6, 0], [0, 0]])
    table = build(rows)
    assert (table.widths.tolist(), table.num_objects) == ([0], 1)


def test_source_id_beyond_64_bits_is_counted_but_not_stored(root):
    rows = make(root, schema=None)
    rows.image("a.jpg", source_id=10**30)
    rows.image("b.jpg", source_id=7)
    table = build(rows)
    assert table.source_ids.tolist() == [-1, 7]
    assert table.report.counts == {("ids of more than 64 bits", "not read"): 1}


def test_objects_of_a_dropped_image_are_dropped(root):
    rows = make(root, missing_image="drop")
    for path in ("none.jpg", "a.jpg", "none.jpg"):
        add(rows, path)
    table = build(rows)
    assert (list(table.image_paths), table.num_objects) == (["a.jpg"], 1)
    assert table.report.counts == {("missing_image", "drop"): 1}


def test_fractions_are_multiplied_by_the_size_of_the_image(root):
    rows = make(root)
    rows.normalized = True
    add(rows, box=(0, 0.5, 0.5, 1), points=[[0, 0], [1, 1], [0.5, 0.1]])
    table = build(rows)
    assert table.boxes.tolist() == [[0, 25, 30, 50]]
    np.testing.assert_allclose(table.keypoints[0], [[0, 0], [60, 50], [30, 5]])
    rows = make(root, missing_image="keep")
    rows.normalized = True
    add(rows, "none.jpg")
    with pytest.raises(AnnotationError, match=r"are fractions of the image, and the size of 'none\.jpg' is unknown"):
        build(rows)


def test_y_up_is_flipped_after_scaling_fractions(root):
    rows = make(root)
    rows.normalized = rows.y_up = True
    add(rows, box=(0, 0.5, 0.5, 1), points=[[0, 0], [1, 1], [0.5, 0.2]], visibility=[2, 2, 0])
    add(rows, box=None, points=[[0, 0.25], [1, 0.75], [0.5, 0.5]])
    add(rows, box=None)
    add(rows, box=(0.5, 0.6, 0, 0.2))
    table = build(rows)
    assert table.boxes.tolist() == [[0, 0, 30, 25], [0, 12.5, 60, 37.5], [0, 0, 60, 50], [0, 20, 30, 40]]
    np.testing.assert_allclose(table.keypoints[0], [[0, 50], [60, 0], [0, 0]])
    assert table.report.counts == {("swapped", "fix"): 1}


def test_every_problem_is_counted_and_few_are_described(root):
    rows = make(root, schema=None)
    for line in range(1000):
        add(rows, line=line + 1, box=(0, 0, 99, 99))
    report = build(rows).report
    assert (report.count("out_of_image"), len(report.problems)) == (1000, 20)


@pytest.mark.parametrize("path", ["../a.jpg", "/a.jpg", "a\0.jpg", "", "deep/../../a.jpg"])
def test_unsafe_paths_are_refused_under_every_policy(root, path):
    with pytest.raises(UnsafePathError, match=r"list\.txt:4"):
        make(root, missing_image="drop").image(path, line=4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (lambda line: {"points": [[1, 2]], "point_names": (f"p{line}",)}, "keypoints: 12 names for 12 objects"),
        (lambda line: {"attributes": {f"a{line}": "b"}}, "attributes: 12 names for 12 objects"),
    ],
)
def test_a_table_far_larger_than_its_files_is_refused(root, monkeypatch, fields, words):
    def read():
        rows = make(root, schema=None)
        for line in range(12):
            add(rows, line=line + 1, **fields(line))
        return build(rows)

    assert read().num_objects == 12
    monkeypatch.setattr("lit_loader.annotations.formats.rows._FREE_CELLS", 1)
    monkeypatch.setattr("lit_loader.annotations.formats.rows._CELLS_PER_VALUE", 2)
    with pytest.raises(AnnotationError, match=words):
        read()


def test_joined_rows_equal_rows_of_one_process(root):
    def fill_first(rows):
        rows.declare(keypoints=SCHEMA, attributes={"pose": ["left", "right"]})
        add(rows, "b.jpg", class_name="z", points=POINTS, attributes={"pose": "right"})
        add(rows, "none.jpg")
        rows.not_read("colour", 2)

    def fill_second(rows):
        rows.file = "second.txt"
        rows.declare(class_names=["x"], keypoints=SCHEMA, attributes={"pose": ["left", "right"]})
        add(rows, "a.jpg", class_name="x", points=POINTS[:1], point_names=("r",))
        add(rows, "b.jpg", class_name="y", box=None, points=POINTS, attributes={"pose": "left"})
        rows.not_read("colour")

    single, first, second = (make(root, schema=None, missing_image="drop") for _ in range(3))
    fill_first(single)
    fill_second(single)
    fill_first(first)
    fill_second(second)
    first.join(second)
    table = build(first)
    assert_same_table(table, build(single))
    assert table.class_names == ("x", "face", "y", "z")
    assert table.attributes["pose"].ids.tolist() == [1, 0, -1]
    assert table.report.counts == single.report.counts == {("colour", "not read"): 3, ("missing_image", "drop"): 1}


def test_invalid_calls_of_rows_are_refused(root):
    with pytest.raises(ValueError, match="for 0 names"):
        add(make(root, schema=None), points=POINTS)
    with pytest.raises(ValueError, match=r"points \(2, 2\)"):
        add(make(root), points=POINTS[:2])
    with pytest.raises(ValueError, match="expected a box of 4 numbers"):
        add(make(root), box=(1, 2, 3))
