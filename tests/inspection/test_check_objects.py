"""Checks of boxes: each defect is found once, and boxes that are meant so are not reported."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.inspection import check_tables
from tests.support.checking import SIZE, assert_known_kinds, box_table, check_annotations, counts_of

GOOD = [10, 10, 40, 50]
WHOLE = [0, 0, *SIZE]

KEEP_MISSING = {"missing_image": "keep", "unreadable_image": "keep"}


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ([60, 10, 104, 50], "out_of_image"),
        ([10, -2, 40, 50], "out_of_image"),
        ([101, 10, 120, 50], "box_off_image"),
        ([10, -30, 40, 0], "box_off_image"),
        ([60, 10, 61.5, 50], "tiny_box"),
        ([60, 10, 60, 50], "degenerate"),
        ([11, 11, 41, 50], "duplicate_box"),
        ([60, 10, 101, 50], None),  # one pixel outside: formats count from 0 or from 1
        ([60, 10, 100, 80], None),
        ([60, 10, 62, 50], None),
        ([15, 10, 45, 50], None),
        ([0, 0, 100, 80], None),  # in a small set, one box around the whole image is normal
    ],
)
def test_defect_of_a_box_is_found_once(tmp_path, box, kind):
    findings = check_annotations(box_table(tmp_path, [GOOD, box]))
    assert_known_kinds(findings)
    assert counts_of(findings) == ({kind: 1} if kind else {})
    for finding in findings:
        if finding.kind == kind:
            assert finding.object_row == 1
            assert finding.image == "0.png"


def test_crossing_oriented_objects_are_no_duplicates(tmp_path):
    rising = [[10, 48], [48, 10], [50, 12], [12, 50]]
    falling = [[12, 10], [50, 48], [48, 50], [10, 12]]
    boxes = [[10, 10, 50, 50]] * 3
    # A copy may begin at another corner, and go round the other way.
    for copy in (rising[1:] + rising[:1], rising[::-1]):
        findings = check_annotations(box_table(tmp_path, boxes, corners=[rising, falling, copy]))
        assert counts_of(findings) == {"duplicate_box": 1}
        assert [finding.object_row for finding in findings] == [2]
    crossing = box_table(tmp_path, boxes[:2], labels=[0, 1], corners=[rising, falling])
    assert counts_of(check_annotations(crossing)) == {}


@pytest.mark.parametrize(
    ("box", "severity"),
    [
        ([10, 10, 109, 50], "warning"),
        ([10, 10, 111, 50], "error"),  # more than a tenth of the width
        ([10, -7, 40, 50], "warning"),
        ([10, -7, 40, 5], "error"),  # more than half of the box
    ],
)
def test_box_that_reaches_far_beyond_the_image_is_an_error(tmp_path, box, severity):
    table = box_table(tmp_path, [box])
    assert list(check_annotations(table).counts) == [("out_of_image", severity, "0")]
    # Some sets annotate whole people and cars, also beyond the image.
    accepted = check_annotations(table, accepted_kinds=["out_of_image"])
    assert list(accepted.counts) == [("out_of_image", "note", "0")]


def test_boxes_of_an_image_without_a_size_are_not_compared_with_it(tmp_path):
    table = box_table(tmp_path, [[-5, 0, 900, 900]], size=(0, 0))
    assert counts_of(check_annotations(table)) == {}


def test_label_of_a_missing_image_has_no_box_to_correct(tmp_path):
    (tmp_path / "list.txt").write_text("a.jpg dog\n")
    findings = check_tables({"train": read_annotations("class_list", tmp_path, "list.txt", policy=KEEP_MISSING)})
    assert {kind for kind, severity, _ in findings.counts if severity != "note"} == {"missing_image"}


def test_worst_box_comes_first_and_the_others_are_counted(tmp_path):
    boxes = [[10 * i, 0, 100 + i, 20 + i] for i in range(2, 8)]
    findings = check_annotations(box_table(tmp_path, boxes), max_details=2)
    assert counts_of(findings) == {"out_of_image": 6}
    assert [finding.object_row for finding in findings if finding.kind == "out_of_image"] == [5, 4]


def test_limits_are_settings(tmp_path):
    table = box_table(tmp_path, [GOOD, [12, 10, 42, 50], [60, 10, 63, 50]])
    assert counts_of(check_annotations(table)) == {}
    findings = check_annotations(table, duplicate_iou=0.8, min_side=4)
    assert counts_of(findings) == {"duplicate_box": 1, "tiny_box": 1}


def test_object_that_doubles_two_others_is_one_finding(tmp_path):
    findings = check_annotations(box_table(tmp_path, [GOOD, GOOD, GOOD]))
    assert counts_of(findings) == {"duplicate_box": 2}
    assert sorted(finding.object_row for finding in findings if finding.kind == "duplicate_box") == [1, 2]


def test_crowds_and_other_images_double_nothing(tmp_path):
    table = box_table(tmp_path, [GOOD, GOOD], crowd=[False, True])
    assert counts_of(check_annotations(table)) == {}
    assert counts_of(check_annotations(box_table(tmp_path, [[GOOD], [GOOD]]))) == {}


def test_one_box_with_two_classes_is_a_warning(tmp_path):
    findings = check_annotations(box_table(tmp_path, [GOOD, GOOD], labels=[0, 1]))
    assert counts_of(findings) == {"conflicting_box": 1}
    (finding,) = (finding for finding in findings if finding.kind == "conflicting_box")
    assert "'dog' box [10, 10, 40, 50]" in finding.message
    assert "also the box of a 'cat'" in finding.message


def test_classes_that_often_share_boxes_do_so_by_design(tmp_path):
    labels = [0, 1] * 5
    table = box_table(tmp_path, [[GOOD, GOOD]] * 5, labels=labels, class_names=("person", "woman"))
    assert counts_of(check_annotations(table)) == {}


def test_image_with_several_labels_has_no_conflict(tmp_path):
    assert counts_of(check_annotations(box_table(tmp_path, [WHOLE, WHOLE], labels=[0, 1]))) == {}


def test_whole_image_box_is_noted_only_where_it_is_rare(tmp_path):
    boxes = [[[i, 0, i + 20, 30], [i, 40, i + 20, 70]] for i in range(15)]
    assert counts_of(check_annotations(box_table(tmp_path, [*boxes, [WHOLE]]))) == {"whole_image_box": 1}
    assert counts_of(check_annotations(box_table(tmp_path, [[WHOLE]] * 30))) == {}


def test_doubled_objects_are_those_of_a_comparison_of_all_pairs(tmp_path):
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 12, (120, 2))
    boxes = np.hstack([corners, corners + rng.integers(3, 12, (120, 2))]).tolist()
    table = box_table(tmp_path, [boxes[:50], boxes[50:], boxes[:3]])
    findings = check_annotations(table, duplicate_iou=0.6, max_details=1000)
    rows = {finding.object_row for finding in findings if finding.kind == "duplicate_box"}
    expected_rows = set()
    for image in range(3):
        objects = np.arange(table.num_objects)[table.objects(image)]
        for first, second in combinations(objects.tolist(), 2):
            low = np.maximum(table.boxes[first, :2], table.boxes[second, :2])
            high = np.minimum(table.boxes[first, 2:], table.boxes[second, 2:])
            common = np.prod(np.clip(high - low, 0, None))
            areas = [np.prod(table.boxes[row, 2:] - table.boxes[row, :2]) for row in (first, second)]
            if common / (sum(areas) - common) > 0.6:
                expected_rows.add(second)
    assert len(expected_rows) > 10
    assert rows == expected_rows


def test_equal_boxes_need_bounded_memory_and_a_cut_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_loader.inspection.check_objects._MAX_NEIGHBOURS", 5)
    table = box_table(tmp_path, [[GOOD] * 3000, [GOOD] * 6], labels=[i % 2 for i in range(3006)])
    tracemalloc.start()
    findings = check_annotations(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    assert findings.counts["duplicate_box", "warning", "0"] == 3002
    (note,) = findings.details["not_compared", "note", "0"]
    assert note.image == "0.png"


def test_small_box_with_two_classes_is_a_conflict_within_a_pixel(tmp_path):
    table = box_table(
        tmp_path, [[10, 10, 14, 14], [10, 10, 15, 15], [15, 10, 16, 11], [16, 11, 17, 12]], labels=[0, 1, 0, 1]
    )
    findings = check_annotations(table, min_side=0)
    assert counts_of(findings) == {"conflicting_box": 1}


def test_both_boxes_of_a_pair_are_rows_of_the_finding(tmp_path):
    findings = check_annotations(box_table(tmp_path, [GOOD, [60, 10, 90, 50], GOOD]))
    (finding,) = findings.details["duplicate_box", "warning", "0"]
    assert (finding.object_row, finding.partner_row) == (2, 0)
