from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np
import pytest

from lit_loader.annotations.keypoints import KeypointSchema
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.formats import collected
from lit_loader.formats.builder import TableBuilder
from lit_loader.formats.policy import ReadPolicy
from tests.formats.text_sets import write_image

SCHEMA = KeypointSchema(names=("l", "r", "tip"), flip_pairs=((0, 1),), interocular=(0, 1))
POINTS = [[5, 6], [20, 8], [12, 30]]


@pytest.fixture
def root(tmp_path):
    for name in ("a.jpg", "b.jpg", "deep/c.png"):
        write_image(tmp_path / name)  # 60 x 50
    return tmp_path.resolve()


def make(root, *, schema=SCHEMA, class_names=None, normalized=False, **policy):
    return TableBuilder(
        root=root,
        policy=ReadPolicy(**policy),
        schema=schema,
        class_names=class_names,
        normalized=normalized,
        split="train",
    )


def add(builder, path="a.jpg", *, line=1, class_name="face", box=(1, 2, 30, 40), **fields):
    image = builder.image(path, file="list.txt", line=line)
    builder.object(image, class_name=class_name, box=box, file="list.txt", line=line, **fields)
    return image


def test_rows_become_a_table_grouped_by_image(root):
    builder = make(root)
    add(builder, "b.jpg", class_name="z", points=POINTS, visibility=[2, 1, 0], attributes={"pose": "left"})
    add(builder, "a.jpg", class_name="y", truncated=True, crowd=True)
    add(builder, "b.jpg", class_name="x", box=None, points=POINTS, difficult=True, occluded=True)
    table = builder.build()
    assert list(table.image_paths) == list(table.image_ids) == ["b.jpg", "a.jpg"]
    assert (table.class_names, table.labels.tolist()) == (("x", "y", "z"), [2, 0, 1])
    assert table.offsets.tolist() == [0, 2, 3]
    assert (table.widths.tolist(), table.heights.tolist()) == ([60, 60], [50, 50])
    assert table.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 20, 30], [1, 2, 30, 40]]
    assert table.visibility.tolist() == [[2, 1, 0], [2, 2, 2], [0, 0, 0]]
    assert table.keypoints[0].tolist() == [[5, 6], [20, 8], [0, 0]]
    assert (table.difficult.tolist(), table.truncated.tolist()) == (
        [False, True, False],
        [False, False, True],
    )
    assert (table.occluded.tolist(), table.crowd.tolist()) == ([False, True, False], [False, False, True])
    assert (table.attributes["pose"].names, table.attributes["pose"].ids.tolist()) == (("left",), [0, -1, -1])
    assert (table.keypoint_schema, table.split, len(table.report)) == (SCHEMA, "train", 0)


def test_the_same_file_is_one_image_however_it_is_spelled(root):
    builder = make(root)
    numbers = {
        builder.image(path, file="f") for path in ("deep/c.png", "deep//c.png", "./deep/c", "deep\\c.png")
    }
    assert numbers == {0}
    assert builder.image("a.jpg", file="f") == 1


def test_given_sizes_are_kept_and_images_are_then_not_opened(root):
    (root / "a.jpg").write_bytes(b"no image")
    builder = make(root, schema=None)
    builder.image("a.jpg", file="f", image_id="seven", width=640, height=480)
    table = builder.build()
    assert (list(table.image_ids), table.widths.tolist(), table.heights.tolist()) == (["seven"], [640], [480])


@pytest.mark.parametrize("size", [(-1, 5), (0, 5), (10**30, 5)])
def test_a_size_that_cannot_be_is_reported_and_read_from_the_image(root, size):
    builder = make(root, schema=None)
    builder.image("a.jpg", file="f", width=size[0], height=size[1])
    table = builder.build()
    assert (table.widths.tolist(), table.report.counts) == ([60], {("bad_size", "unknown"): 1})


def test_sizes_are_left_alone_on_request(root):
    builder = make(root, schema=None)
    add(builder, box=(-5, 0, 1000, 10))
    table = builder.build(sizes=False)
    assert (table.widths.tolist(), len(table.report)) == ([0], 0)


def test_a_classified_image_has_the_box_of_the_whole_image(root):
    for sizes, box in ((True, [0, 0, 60, 50]), (False, [0, 0, 0, 0])):
        builder = make(root, schema=None, degenerate="raise")
        add(builder, box=None)
        assert builder.build(sizes=sizes).boxes.tolist() == [box]


@pytest.mark.parametrize(
    ("policy", "fields", "kind"),
    [
        ("missing_image", {"path": "none.jpg"}, "there is no image 'none.jpg'(; `image_dir` says|$)"),
        ("unreadable_image", {"path": "text.jpg"}, "the size of 'text.jpg' cannot be read"),
        ("unknown_class", {"class_name": "dog"}, "class 'dog' is not among"),
        (
            "bad_point",
            {"points": [[1, 2], [np.nan, 3], [4, 1e39]]},
            r"2 points are not finite: 'r' \[nan, 3.0\]",
        ),
        (
            "point_outside",
            {"points": [[60, 50], [60.5, 1], [1, 2]]},
            "1 point is outside the image of 60 x 50: 'r'",
        ),
        ("non_finite", {"box": (0, 0, np.inf, 5)}, r"box \[0.0, 0.0, inf, 5.0\] is not finite"),
        ("swapped", {"box": (30, 2, 1, 40)}, "has its corners exchanged"),
        ("out_of_image", {"box": (0, 0, 60, 50.5)}, r"reaches beyond the image \(image 60 x 50\)"),
        ("degenerate", {"box": (5, 5, 5, 9)}, "has no area"),
        (
            "degenerate",
            {"box": None, "points": POINTS, "visibility": [2, 0, 0]},
            "around the points has no area",
        ),
        (
            "degenerate",
            {"box": None, "points": POINTS, "visibility": [0, 0, 0]},
            "around the points has no area",
        ),
        ("malformed", {"class_name": ""}, "the name of the class is empty"),
        ("malformed", {"class_name": "a" * 257}, "the name of the class has 257 characters"),
        ("malformed", {"attributes": {"pose": ""}}, "the name of the attribute 'pose' is empty"),
    ],
)
def test_a_problem_is_raised_with_file_and_line_or_reported(root, policy, fields, kind):
    (root / "text.jpg").write_text("no image")

    def read(**actions):
        builder = make(root, class_names=["face"] if policy == "unknown_class" else None, **actions)
        add(builder, "b.jpg", line=6)
        add(builder, **{"line": 7, **fields})
        return builder.build()

    with pytest.raises(AnnotationError, match=rf"list\.txt:7: .*{kind}.*ReadPolicy\({policy}="):
        read(**{policy: "raise"})
    for action in set(get_args(get_type_hints(ReadPolicy)[policy])) - {"raise"}:
        table = read(**{policy: action})
        assert table.report.counts[policy, action] == 1
        assert table.report.problems[0].line == 7
        assert table.num_objects == (1 if action == "drop" else 2)


def test_actions_do_what_they_say(root):
    def boxes(box, points=None, **actions):
        builder = make(root, **actions)
        add(builder, box=box, points=points)
        return builder.build()

    assert boxes((30, 40, 1, 2)).boxes.tolist() == [[1, 2, 30, 40]]
    assert boxes((-5, 2, 70, 40), out_of_image="clip").boxes.tolist() == [[0, 2, 60, 40]]
    assert boxes((-5, 2, 70, 40)).boxes.tolist() == [[-5, 2, 70, 40]]
    assert boxes((5, 5, 5, 9), degenerate="keep").boxes.tolist() == [[5, 5, 5, 9]]
    outside = [[5, 6], [70, 8], [12, 30]]
    table = boxes(None, outside)
    assert (table.boxes.tolist(), table.visibility.tolist()) == ([[5, 6, 70, 30]], [[2, 2, 2]])
    assert table.report.counts == {("point_outside", "keep"): 1}
    table = boxes(None, outside, point_outside="absent")
    assert (table.boxes.tolist(), table.visibility.tolist()) == ([[5, 6, 12, 30]], [[2, 0, 2]])
    assert table.keypoints[0, 1].tolist() == [0, 0]
    assert boxes(None, outside, out_of_image="clip").boxes.tolist() == [[5, 6, 60, 30]]
    assert boxes(None, [[5, 6], [np.nan, 8], [12, 30]]).visibility.tolist() == [[2, 0, 2]]


def test_nothing_is_outside_an_image_of_unknown_size(root):
    builder = make(root, missing_image="keep", out_of_image="raise", point_outside="raise")
    add(builder, "none.jpg", box=(-9, -9, 1e6, 1e6), points=[[-1, -1], [1e6, 0], [0, 0]])
    table = builder.build()
    assert (table.widths.tolist(), table.num_objects) == ([0], 1)


def test_a_dropped_image_takes_its_objects_with_it(root):
    builder = make(root, missing_image="drop")
    for path in ("none.jpg", "a.jpg", "none.jpg"):
        add(builder, path)
    table = builder.build()
    assert (list(table.image_paths), table.num_objects) == (["a.jpg"], 1)
    assert table.report.counts == {("missing_image", "drop"): 1}


def test_fractions_are_multiplied_by_the_size_of_the_image(root):
    builder = make(root, normalized=True)
    add(builder, box=(0, 0.5, 0.5, 1), points=[[0, 0], [1, 1], [0.5, 0.1]])
    table = builder.build()
    assert table.boxes.tolist() == [[0, 25, 30, 50]]
    np.testing.assert_allclose(table.keypoints[0], [[0, 0], [60, 50], [30, 5]])
    with pytest.raises(ValueError, match="need the size of every image"):
        make(root, normalized=True, missing_image="keep")
    with pytest.raises(ValueError, match="need sizes=True"):
        builder.build(sizes=False)


def test_numbers_of_any_length_are_judged(root):
    builder = make(root)
    add(builder, box=(0, 0, 10**400, -(10**400)), points=[[10**400, 0], [1, 1], [2, 2]])
    assert builder.build().report.counts == {("bad_point", "absent"): 1, ("non_finite", "drop"): 1}


def test_every_problem_is_counted_and_few_are_described(root):
    builder = make(root, schema=None)
    for line in range(1000):
        add(builder, line=line + 1, box=(0, 0, 99, 99))
    report = builder.build().report
    assert (report.count("out_of_image"), len(report.problems)) == (1000, 20)


@pytest.mark.parametrize(
    "path", ["../a.jpg", "/a.jpg", "a\0.jpg", "", "link/a.jpg", "out.jpg", "deep/../../a.jpg"]
)
def test_paths_out_of_the_root_are_refused_whatever_the_policy(root, path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write_image(outside / "a.jpg")
    (root / "link").symlink_to(outside)
    (root / "out.jpg").symlink_to(outside / "a.jpg")
    with pytest.raises(UnsafePathError, match=r"list\.txt:4"):
        make(root, missing_image="drop").image(path, file="list.txt", line=4)


@pytest.mark.parametrize(
    ("limit", "fields"),
    [
        ("MAX_ROWS", lambda line: {}),
        ("MAX_POINTS", lambda line: {"points": POINTS}),
        ("MAX_NAMES", lambda line: {"class_name": f"{line}"}),
        ("MAX_NAMES", lambda line: {"attributes": {"a": f"{line}"}}),
        ("MAX_ATTRIBUTES", lambda line: {"attributes": {f"{line}": "a"}}),
        ("_MAX_VALUES", lambda line: {"attributes": {"a": "b"}}),
    ],
)
def test_hostile_numbers_of_rows_and_names_are_refused(root, monkeypatch, limit, fields):
    monkeypatch.setattr(collected, limit, 10)
    builder = make(root, schema=SCHEMA if limit == "MAX_POINTS" else None)
    with pytest.raises(AnnotationError, match=r"list\.txt:\d+: there are more than 10 .*split the data set"):
        for line in range(12):
            add(builder, line=line + 1, **fields(line))


def test_wrong_calls_of_a_reader_are_refused(root):
    with pytest.raises(ValueError, match="need a schema"):
        add(make(root, schema=None), points=POINTS)
    with pytest.raises(ValueError, match=r"points \(2, 2\)"):
        add(make(root), points=POINTS[:2])
    with pytest.raises(ValueError, match="a box has 4 numbers"):
        add(make(root), box=(1, 2, 3))
