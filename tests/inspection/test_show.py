"""Galleries of annotated images and of findings: the choice of images, captions, and untrusted findings."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from lit_loader.annotations.places import Place, Places
from lit_loader.errors import AnnotationError, SettingError
from lit_loader.inspection import Finding, Findings, show_findings, show_table
from lit_loader.inspection.show import choose_images, matching_objects, object_cells, read_findings
from tests.support.drawn_set import CLASSES, draw_set


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return draw_set(tmp_path_factory.mktemp("drawn"), num_images=40)


def names(gallery):
    return [caption.partition(" ")[0] for _, caption in gallery.pictures]


@pytest.fixture
def drawings(monkeypatch):
    """Arguments of the drawn images."""
    calls = []

    def draw(table, row, **drawing):
        calls.append((row, drawing))
        return b"\xff\xd8"

    monkeypatch.setattr("lit_loader.inspection.show.draw_image", draw)
    return calls


def test_the_choice_repeats_for_a_seed_and_differs_for_another(table):
    rows = [choose_images(table, None, num_images=8, seed=seed).tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    assert len(set(rows[0])) == 8
    assert rows[0] == sorted(rows[0])


def test_a_larger_choice_contains_the_smaller_one(table):
    small, large = (set(choose_images(table, None, num_images=n, seed=3).tolist()) for n in (5, 20))
    assert small < large
    assert len(choose_images(table, None, num_images=99, seed=3)) == 40


def test_images_of_a_class_are_shown_with_its_objects_highlighted(table, drawings):
    gallery = show_table(table, classes=["rare"], num_images=5)
    num_images = np.count_nonzero(table.image_class_counts()[:, CLASSES.index("rare")])
    assert gallery.sections[0].texts == [f"5 of {num_images} images with rare"]
    assert len(drawings) == 5
    for row, drawing in drawings:
        objects = table.objects(row)
        rare = [o for o in range(objects.start, objects.stop) if table.labels[o] == CLASSES.index("rare")]
        assert drawing["highlighted"] == rare != []


def test_all_conditions_are_named_above_the_images(table, drawings):
    gallery = show_table(table, classes=["common", "rare"], attributes={"finish": "dotted"}, num_images=1)
    assert gallery.sections[0].texts[0].endswith(" images with common or rare, finish=dotted")


def test_several_classes_show_images_with_any_of_them(table):
    matches = matching_objects(table, classes=["rare", "pointless"], attributes={})
    np.testing.assert_array_equal(matches, table.labels > 0)


def test_an_object_has_class_and_attribute_at_once(table):
    matches = matching_objects(table, classes=["common"], attributes={"finish": "dotted"})
    expected = (table.labels == 0) & (table.attributes["finish"].ids == 1)
    np.testing.assert_array_equal(matches, expected)
    assert expected.any()


def test_rows_are_shown_in_their_order_with_path_size_and_objects_as_captions(table):
    gallery = show_table(table, rows=[3, 1], heading="train")
    captions = [caption for _, caption in gallery.pictures]
    assert captions == ["3.png (64x48, 3 objects)", "1.png (64x48, 1 object)"]
    assert (gallery.sections[0].heading, gallery.sections[0].texts) == ("train", ["2 of 40 images"])
    assert gallery.title == str(table.root)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"classes": ["comon"]},
            r"classes='comon' is unknown; the data has common, rare, pointless; did you mean 'common'\?",
        ),
        ({"classes": ["RARE"]}, "did you mean 'rare'"),
        ({"classes": ["zebra"]}, "common, rare, pointless$"),
        ({"attributes": {"colour": "red"}}, "attributes='colour' is unknown; the data has finish"),
        ({"attributes": {"finish": "red"}}, "attributes='finish=red' is unknown; the data has plain, dotted, hollow"),
        ({"num_images": 0}, "num_images=0 must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_with_the_choices(table, settings, message):
    with pytest.raises(SettingError, match=message):
        show_table(table, **settings)


def test_a_condition_that_no_object_fits_gives_an_empty_gallery(table):
    without_rare = table.select(np.flatnonzero(table.image_class_counts()[:, 1] == 0))
    assert len(show_table(without_rare, classes=["rare"])) == 0


def test_cells_of_objects_have_class_values_and_box(table):
    columns, rows = object_cells(table, 2)
    assert columns == ["number", "class", "finish", "left", "top", "right", "bottom", "place"]
    first = table.objects(2).start
    assert [row[0] for row in rows] == [0, 1]
    assert rows[0][1] == CLASSES[table.labels[first]]
    assert rows[0][3:7] == table.boxes[first].tolist()


# -- findings -------------------------------------------------------------------------------------------------------


def finding(**changes):
    values = {
        "kind": "tiny_box",
        "severity": "warning",
        "message": "a box of 1 px",
        "remedy": "draw it again",
        "split": "train",
        "image": "3.png",
    }
    return Finding(**values | changes)


def test_findings_show_their_object_and_place_by_kind(table, drawings):
    row = table.objects(3).start + 1
    places = Places.from_rows(Place(file="a.json", entry=f"annotations[{i}]") for i in range(table.num_objects))
    placed = replace(table, object_places=places)
    place = placed.place_of_object(row)
    # The row is one of another reading, with fewer objects.
    findings = [finding(object_row=row - 1, place=place), finding(kind="rare_class", image="0.png", message="empty")]
    gallery = show_findings({"train": placed}, findings)
    assert [section.heading for section in gallery.sections] == ["tiny box", "rare class"]
    assert gallery.sections[0].texts == ["warning: draw it again"]
    assert drawings[0][0] == 3
    assert [drawing["highlighted"] for _, drawing in drawings] == [[row], []]
    assert gallery.pictures[0][1] == f"train: 3.png: a box of 1 px ({place})"


def test_both_boxes_of_a_pair_are_highlighted(table, drawings, tmp_path):
    row = table.objects(3).start
    places = Places.from_rows(Place(file="a.json", entry=f"annotations[{i}]") for i in range(table.num_objects))
    placed = replace(table, object_places=places)
    pair = finding(object_row=row + 2, partner_row=row, place=placed.place_of_object(row + 2),
                   partner_place=placed.place_of_object(row))  # fmt: skip
    (tmp_path / "findings.json").write_text(json.dumps({"findings": [asdict(pair)]}))
    show_findings({"train": placed}, read_findings(tmp_path / "findings.json"))
    show_findings({"train": table}, [replace(pair, place=None, partner_place=None, image_row=3)])
    assert [drawing["highlighted"] for _, drawing in drawings] == [[row, row + 2], [row + 2, row]]


def test_an_object_row_without_a_place_highlights_only_in_the_checked_table(table, drawings):
    row = table.objects(3).start
    for image_row, object_row in ((3, row), (None, row), (2, row), (3, -1), (3, table.objects(3).stop), (3, 10**12)):
        show_findings({"train": table}, [finding(image_row=image_row, object_row=object_row)])
    assert [drawing["highlighted"] for _, drawing in drawings] == [[row], [], [], [], [], []]


def test_findings_of_other_sets_and_images_are_left_out(table, drawings):
    unfitting = [finding(split="val"), finding(image="../../etc/passwd"), finding(image=None)]
    assert len(show_findings({"train": table}, [*unfitting, finding()])) == 1
    with pytest.raises(SettingError, match=r"no finding about an image of the sets train; check the same data"):
        show_findings({"train": table}, unfitting)


def test_the_number_limits_the_pictures_of_each_kind(table, drawings):
    findings = [finding(image=f"{i}.png") for i in range(6)] + [finding(kind="b")]
    assert len(show_findings({"train": table}, findings, num_images=2)) == 3


def test_invented_kinds_count_as_one(table, drawings):
    findings = [finding(kind=f"kind {i}") for i in range(30)]
    gallery = show_findings({"train": table}, [finding(), *findings], num_images=4)
    assert [(section.heading, len(section.pictures)) for section in gallery.sections] == [
        ("tiny box", 1),
        ("other kinds", 4),
    ]


def test_long_texts_of_findings_are_shortened(tmp_path):
    path = tmp_path / "findings.json"
    path.write_text(json.dumps({"findings": [asdict(finding(message="m" * 9999, remedy="r" * 9999))]}))
    (read_finding,) = read_findings(path)
    assert len(read_finding.message) == len(read_finding.remedy) < 600


def test_findings_of_a_check_are_read_back(tmp_path):
    findings = Findings()
    for number in range(3):
        findings.add(finding(object_row=number, score=float(number), place=Place(file="a.txt", line=number + 1)))
    path = tmp_path / "findings.json"
    path.write_text(json.dumps({"version": 1, "sets": {"train": {}}, **findings.to_dict()}))
    read_back = read_findings(path)
    assert [(f.object_row, f.place) for f in read_back] == [(n, Place(file="a.txt", line=n + 1)) for n in (2, 1, 0)]
    assert {f.message for f in read_back} == {"a box of 1 px"}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 3},
        {"severity": "fatal"},
        {"message": None},
        {"image": ["a"]},
        {"object_row": True},
        {"object_row": 1.5},
        {"split": {"a": 1}},
    ],
)
def test_a_wrong_finding_is_refused_with_its_position(tmp_path, changes):
    path = tmp_path / "findings.json"
    path.write_text(json.dumps({"findings": [asdict(finding()), asdict(finding()) | changes]}))
    with pytest.raises(AnnotationError, match=r"findings.json: findings\[1\] is not a finding of a check"):
        read_findings(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"findings": 3}', '{"other": []}', '{"findings": ["a"]}', "[" * 9999]
)
def test_a_file_that_is_no_report_is_refused_by_name(tmp_path, text):
    path = tmp_path / "findings.json"
    path.write_text(text)
    with pytest.raises(AnnotationError, match=r"findings\.json"):
        read_findings(path)


def test_a_wrong_place_is_ignored(tmp_path):
    path = tmp_path / "findings.json"
    places = [3, {"file": 3}, {"file": "a", "line": "x", "entry": 5}]
    path.write_text(json.dumps({"findings": [asdict(finding()) | {"place": place} for place in places]}))
    assert [f.place for f in read_findings(path)] == [None, None, Place(file="a")]
