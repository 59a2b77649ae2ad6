from __future__ import annotations

import json

import pytest

from lit_loader.annotations.problems import Problem, ReadReport, shorten


def problem(kind="swapped", action="fix", line=3):
    return Problem(kind=kind, action=action, file="a.xml", message="is odd", line=line, object_index=1)


def test_all_problems_are_counted_and_first_details_stored():
    report = ReadReport(max_details=2)
    for line in range(1_000):
        report.add(problem(line=line))
    report.add(problem(kind="degenerate", action="drop"))
    assert len(report) == 1_001
    assert report.counts == {("swapped", "fix"): 1_000, ("degenerate", "drop"): 1}
    assert [p.line for p in report] == [0, 1, 3]
    assert (report.count("swapped"), report.count("swapped", "drop"), report.count("none")) == (1_000, 0, 0)


def test_fields_that_no_reader_reads_are_no_handled_problems():
    report = ReadReport()
    report.add_count("license of an image", "not read", 80)
    report.add(Problem(kind="swapped", action="fix", file="a.xml", message="m"))
    assert len(report) == 81
    assert report.num_handled == 1
    without_details = ReadReport()
    without_details.add_count("license of an image", "not read", 80)
    assert str(without_details).splitlines()[1:] == ["license of an image  not read     80"]


def test_text_is_a_table_with_file_and_line():
    report = ReadReport(max_details=1)
    assert str(report) == "no problems found"
    report.add(problem())
    report.add(problem())
    report.add(problem(kind="bad_size", action="unknown", line=None))
    assert str(report).splitlines() == [
        "problem   action   count",
        "swapped   fix          2",
        "bad_size  unknown      1",
        "  a.xml:3: is odd [fix]",
        "  a.xml: is odd [unknown]",
        "  and 1 more",
    ]


def test_report_round_trips_through_json():
    report = ReadReport(max_details=3)
    for line in range(5):
        report.add(problem(line=line))
    restored = ReadReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert restored == report
    assert restored.max_details == 3
    assert str(restored) == str(report)
    assert report != ReadReport()


def test_merge_adds_counts_and_keeps_the_bound():
    a = ReadReport(max_details=2)
    b = ReadReport(max_details=5)
    a.add(problem(line=1))
    for line in (2, 3, 4):
        b.add(problem(line=line))
    a.merge(b)
    assert a.count("swapped") == 4
    assert [p.line for p in a] == [1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": [["swapped", "fix", "many"]]}, ""),
        ({"counts": [[1, 2]]}, ""),
        ({"max_details": -1}, "max_details=-1 must be >= 0"),
        ({"problems": [{"kind": "x"}]}, ""),
        ({"problems": 3}, ""),
    ],
)
def test_foreign_json_is_refused(change, words):
    report = ReadReport()
    report.add(problem())
    values = report.to_dict() | change
    with pytest.raises(ValueError, match=f"not a read report: .*{words}"):
        ReadReport.from_dict(values)


def test_messages_are_cut_to_a_bounded_length():
    assert shorten("short") == "short"
    assert len(shorten("x" * 100_000)) < 600
