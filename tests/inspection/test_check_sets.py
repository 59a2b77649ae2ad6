"""Checks of sets as a whole, reports of readers, and settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lit_loader.annotations import Problem, ReadReport
from lit_loader.annotations.formats import ReadPolicy
from lit_loader.errors import SettingError
from lit_loader.inspection import CheckSettings, check_tables
from lit_loader.inspection.kinds import KINDS
from tests.support.checking import box_table, check_annotations, counts_of
from tests.support.coco_set import CocoSet

BOX = [10, 10, 40, 50]


def notes_of(findings):
    return {(kind, split): count for (kind, severity, split), count in findings.counts.items() if severity == "note"}


def test_class_missing_in_a_set_is_a_warning_and_an_unused_class_a_note(tmp_path):
    names = ("cat", "dog", "cow")
    first = box_table(tmp_path / "a", [[BOX], [BOX]], labels=[0, 1], class_names=names)
    second = box_table(tmp_path / "b", [[BOX], [BOX]], labels=[0, 0], class_names=names)
    findings = check_annotations(first, second)
    assert counts_of(findings) == {"missing_class": 1}
    assert findings.details["missing_class", "warning", "1"][0].message == "'dog' has no object in 1"
    assert notes_of(findings) == {("unused_class", "0"): 1}


def test_rare_classes_and_imbalance_are_notes(tmp_path):
    table = box_table(tmp_path, [[BOX]] * 30, labels=[0] * 28 + [1] * 2)
    findings = check_annotations(table)
    assert counts_of(findings) == {}
    assert notes_of(findings) == {("rare_class", "0"): 1, ("imbalance", "0"): 1}
    assert notes_of(check_annotations(table, min_images=2)) == {("imbalance", "0"): 1}
    # In a set of few images every class is rare.
    assert notes_of(check_annotations(table.select([0, 29]))) == {}


def test_empty_images_are_a_note_and_most_of_a_set_a_warning(tmp_path):
    table = box_table(tmp_path, [[BOX]] * 4)
    table = replace(table, image_paths=[*table.image_paths, "4.png"], offsets=[0, 1, 2, 3, 4, 4], image_ids=None,
                    widths=[100] * 5, heights=[80] * 5)  # fmt: skip
    assert notes_of(check_annotations(table)) == {("empty_images", "0"): 1}
    assert counts_of(check_annotations(table.select([0, 4, 4]))) == {"empty_images": 1}


def test_set_without_images_is_an_error(tmp_path):
    table = box_table(tmp_path, [[BOX]])
    assert counts_of(check_annotations(table, table.select([]))) == {"empty_set": 1}


def test_class_names_that_differ_only_in_case_or_spaces_are_one_warning(tmp_path):
    names = ("Cat", "cat ", "dog", "ca t", "CAR")
    table = box_table(tmp_path, [[BOX]] * 5, labels=range(5), class_names=names)
    findings = check_annotations(table)
    assert counts_of(findings) == {"similar_class_names": 1}
    message = findings.details["similar_class_names", "warning", "0"][0].message
    assert "'Cat' (1 object) and 'cat ' (1 object) and 'ca t' (1 object)" in message


@pytest.mark.parametrize(
    ("names", "is_misspelling"),
    [
        (("RBC", "RCB"), True),
        (("traffic light", "Trafic Light"), True),
        (("dog", "dogs"), True),
        (("stop_sign", "stop_sigh"), True),
        (("car1", "car2"), False),
        (("type10", "type1"), False),
        (("eye_l", "eye_r"), False),
        (("cat", "dot"), False),
        (("ox", "ax"), False),
    ],
)
def test_rare_class_with_almost_the_name_of_a_frequent_one_is_a_misspelling_only(tmp_path, names, is_misspelling):
    usual = box_table(tmp_path / "a", [[BOX]] * 70, labels=[0] * 70, class_names=names)
    other = box_table(tmp_path / "b", [[BOX]] * 70, labels=[0] * 69 + [1], class_names=names)
    findings = check_annotations(usual, other)
    if not is_misspelling:
        assert counts_of(findings) == {"missing_class": 1}
        return
    # It is neither missing nor rare also.
    assert list(findings.counts) == [("similar_class_names", "warning", "1")]
    (finding,) = findings
    assert finding.message == f"{names[1]!r} (1 object) may be a misspelling of {names[0]!r} (139 objects)"
    assert (finding.image, finding.object_row) == ("69.png", 69)
    # A user who ignores similar names says that these are two classes.
    assert counts_of(check_annotations(usual, other, ignored_kinds=["missing_image", "similar_class_names"])) == {
        "missing_class": 1
    }


def test_similar_names_of_classes_that_are_not_rare_are_two_classes(tmp_path):
    table = box_table(tmp_path, [[BOX]] * 102, labels=[0] * 100 + [1] * 2, class_names=("car", "cat"))
    assert counts_of(check_annotations(table)) == {}
    table = box_table(tmp_path, [[BOX]] * 3000, labels=[0] * 2999 + [1], class_names=("car", "dog"))
    (imbalance,) = check_annotations(table).details["imbalance", "note", "0"]
    assert imbalance.message == "'car' (2,999 objects) has 2,999 times the objects of 'dog' (1 object)"


@pytest.fixture
def reported(tmp_path):
    """A table whose reader reported problems."""
    report = ReadReport(max_details=2)
    for line in (3, 5, 8):
        report.add(Problem(kind="swapped", action="fix", file="a.txt", line=line, message=f"box {line}"))
    report.add(Problem(kind="malformed", action="drop", file="a.txt", line=9, message="expected 4 numbers"))
    report.add(Problem(kind="out_of_image", action="keep", file="a.txt", line=2, message="beyond"))
    report.add_count("licenses", "not read", 7)
    return replace(box_table(tmp_path, [[BOX, [60, 10, 109, 50]]]), report=report)


def test_problems_of_the_reader_are_findings_with_file_and_line(reported):
    findings = check_annotations(reported)
    # The box that the reader kept is found in the table, with its row.
    assert counts_of(findings) == {"swapped": 3, "malformed": 1, "out_of_image": 1}
    assert notes_of(findings) == {("not_read", "0"): 1}
    (malformed,) = findings.details["malformed", "error", "0"]
    assert str(malformed.place) == "a.txt:9"
    assert [str(finding.place) for finding in findings.details["swapped", "warning", "0"]] == ["a.txt:3", "a.txt:5"]
    assert findings.details["out_of_image", "warning", "0"][0].object_row == 1


def test_object_that_the_reader_dropped_has_entry_and_image(tmp_path):
    coco_set = CocoSet(tmp_path)
    coco_set.category()
    coco_set.image(1, "a.jpg")
    coco_set.image(2, "b.jpg")
    for number, box in enumerate([(1, 2, 3, 4), (5, 6, 0, 8), (5, 6, 7, 8)]):
        coco_set.add(box, image_id=2 - number % 2)
    # The cache stores them also.
    table = replace(
        coco_set.read(degenerate="drop"), report=ReadReport.from_dict(coco_set.read(degenerate="drop").report.to_dict())
    )
    (finding,) = check_annotations(table).details["degenerate", "warning", "0"]
    assert finding.place.entry == "annotations[1]"
    assert (finding.image, finding.image_row) == ("img/a.jpg", 0)


def test_accepted_problems_are_notes(reported):
    findings = check_annotations(reported, accepted_kinds=["malformed"])
    assert counts_of(findings) == {"swapped": 3, "out_of_image": 1}
    assert notes_of(findings)["malformed", "0"] == 1
    # Rules on the table accept the kind also.
    assert notes_of(check_annotations(reported, accepted_kinds=["out_of_image"]))["out_of_image", "0"] == 1


def test_unlabelled_set_misses_no_class(tmp_path):
    labelled = box_table(tmp_path, [[BOX], [BOX]], labels=[0, 1])
    unlabelled = box_table(tmp_path, [], class_names=labelled.class_names, image_paths=["c.png"])
    assert counts_of(check_annotations(labelled, unlabelled)) == {"empty_images": 1}


def test_ignored_kinds_are_not_reported(reported):
    findings = check_annotations(reported, ignored_kinds=["missing_image", "swapped", "not_read"])
    assert counts_of(findings) == {"malformed": 1, "out_of_image": 1}
    assert notes_of(findings) == {}


def test_problems_of_a_policy_are_kinds_and_those_that_stop_training_are_errors():
    policy = ReadPolicy()
    for problem in ReadPolicy.__dataclass_fields__:
        assert (KINDS[problem].severity == "error") == (getattr(policy, problem) == "raise"), problem


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ignored_kinds": ["tiny_boxes"]}, r"ignored_kinds='tiny_boxes' is not a kind of finding; choose tiny_box"),
        ({"duplicate_iou": 1.5}, "duplicate_iou=1.5 is not between 0 and 1"),
        ({"min_side": -1}, "min_side=-1"),
        ({"min_images": -1}, "min_images=-1"),
        ({"max_details": 0}, "max_details=0"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(SettingError, match=message):
        check_annotations(box_table(tmp_path, [[BOX]]), **settings)


def test_no_table_is_refused():
    with pytest.raises(ValueError, match="tables is empty"):
        check_tables({}, settings=CheckSettings())
