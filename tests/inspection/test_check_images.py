"""Checks of image files: missing, damaged, of another size, and copies of each other."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import Attribute, Masks, Problem, ReadReport
from lit_loader.images import ImageReading
from lit_loader.inspection import CheckSettings, check_tables
from tests.support.checking import SIZE, assert_known_kinds, box_table, counts_of, draw_noise
from tests.support.drawn_set import draw_set

BOX = [10, 10, 40, 50]


def check(*tables, reading=None, **settings):
    named_tables = {f"set{number}": table for number, table in enumerate(tables)}
    settings = CheckSettings(**settings)
    findings = check_tables(named_tables, settings=settings, reading=reading, num_workers=2, progress=False)
    assert_known_kinds(findings)
    return findings


@pytest.fixture
def table(tmp_path):
    """Four images with a box each."""
    for number in range(4):
        draw_noise(tmp_path / f"{number}.png", number)
    return box_table(tmp_path, [[BOX]] * 4)


@pytest.mark.parametrize("decode", [True, False])
def test_clean_set_has_no_finding_above_a_note(tmp_path, decode):
    tables = [
        draw_set(tmp_path / name, num_images=16, seed=seed, objects=2) for seed, name in enumerate(("train", "val"))
    ]
    findings = check(*tables, decode=decode)
    assert counts_of(findings) == {}
    assert {kind for kind, _, _ in findings.counts} <= {"imbalance", "rare_class"}


@pytest.mark.parametrize("decode", [True, False])
def test_missing_and_damaged_images_are_errors(table, decode):
    (table.root / "1.png").unlink()
    (table.root / "2.png").write_bytes(b"no image")
    findings = check(table, decode=decode)
    assert counts_of(findings) == {"missing_image": 1, "unreadable_image": 1}
    images = {finding.kind: finding.image for finding in findings}
    assert images["missing_image"] == "1.png"
    assert images["unreadable_image"] == "2.png"
    assert findings.count("error") == 2


def test_damage_behind_the_header_is_found_by_decoding_only(table):
    path = table.root / "3.png"
    path.write_bytes(path.read_bytes()[:-40])
    findings = check(table)
    assert counts_of(findings) == {"unreadable_image": 1}
    (finding,) = (finding for finding in findings if finding.kind == "unreadable_image")
    assert finding.message.startswith("'3.png': cannot be decoded")
    assert str(table.root) not in finding.message
    assert counts_of(check(table, decode=False)) == {}


@pytest.mark.parametrize("decode", [True, False])
def test_size_that_differs_from_the_annotated_one_is_an_error(table, decode):
    draw_noise(table.root / "2.png", 2, size=(100, 90))
    findings = check(table, decode=decode)
    assert counts_of(findings) == {"size_mismatch": 1}
    (finding,) = (finding for finding in findings if finding.kind == "size_mismatch")
    assert "has 100 x 90 pixels, but the annotations say 100 x 80" in finding.message


def test_wrong_size_is_the_only_finding_of_boxes_that_fit_one_of_the_sizes(table):
    outside = [60, 10, 120, 50]
    table = replace(table, widths=[60, 100, 100, 140], boxes=[[60, 10, 95, 50], outside, BOX, outside])
    assert counts_of(check(table)) == {"size_mismatch": 2, "out_of_image": 1}
    # A box beyond both sizes is another defect.
    assert counts_of(check(replace(table, widths=[60, 100, 100, 110]))) == {"size_mismatch": 2, "out_of_image": 2}


def test_unknown_size_is_measured(table):
    table = replace(table, widths=[0] * 4, heights=[0] * 4, boxes=[BOX, BOX, BOX, [60, 10, 130, 50]])
    assert counts_of(check(table)) == {"out_of_image": 1}


def turned_table(table, orientation):
    """Return the table with a second image whose EXIF has an orientation, stored with the sides exchanged."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    draw_noise(table.root / "1.jpg", 1, size=SIZE[::-1], exif=exif)
    return replace(table, image_paths=["0.png", "1.jpg", "2.png", "3.png"], image_ids=None)


@pytest.mark.parametrize("decode", [True, False])
def test_size_of_the_upright_image_counts(table, decode):
    assert counts_of(check(turned_table(table, 6), decode=decode)) == {}


@pytest.mark.parametrize("decode", [True, False])
def test_annotated_size_of_the_stored_pixels_is_a_turned_image(table, decode):
    table = replace(turned_table(table, 6), widths=[100, 80, 100, 100], heights=[80, 100, 80, 80])
    # The reader has also reported it.
    report = ReadReport()
    report.add(Problem(kind="turned_image", action="keep", file="a.json", message="EXIF turns 1.jpg"))
    assert counts_of(check(replace(table, report=report), decode=decode)) == {"turned_image": 1}
    assert counts_of(check(table, decode=decode, reading=ImageReading(exif_orientation=False))) == {}


def test_exchanged_sides_without_exif_are_a_wrong_size(table):
    table = replace(turned_table(table, 1), widths=[100, 100, 100, 100])
    assert counts_of(check(table)) == {"size_mismatch": 1}


def test_copies_within_a_set_are_reported_once(table):
    shutil.copy(table.root / "0.png", table.root / "2.png")
    shutil.copy(table.root / "0.png", table.root / "3.png")
    boxes = [BOX, BOX, BOX, [50, 10, 80, 60]]
    findings = check(replace(table, boxes=boxes))
    assert counts_of(findings) == {"duplicate_image": 1, "conflicting_duplicate": 1}
    images = {finding.kind: finding.image for finding in findings}
    assert images["duplicate_image"] == "2.png"
    assert images["conflicting_duplicate"] == "3.png"
    assert findings.count("error") == 1


def test_copies_with_equal_objects_in_another_order_do_not_conflict(tmp_path):
    for number in range(2):
        draw_noise(tmp_path / f"{number}.png", 0)
    boxes = [[BOX, [50, 10, 80, 60]], [[50, 10, 80, 60], BOX]]
    assert counts_of(check(box_table(tmp_path, boxes, labels=[0, 1, 1, 0]))) == {"duplicate_image": 1}


@pytest.mark.parametrize("count", [1, 3])
def test_copies_with_other_attributes_or_flags_conflict(tmp_path, count):
    for number in range(2):
        draw_noise(tmp_path / f"{number}.png", 0)
    table = box_table(tmp_path, [[BOX] * count] * 2, areas=[np.nan] * 2 * count)
    assert "conflicting_duplicate" not in counts_of(check(table))
    values = [0] * count + [1] * count
    smile = Attribute(names=("no", "yes"), ids=np.array(values, np.int32))
    assert counts_of(check(replace(table, attributes={"smile": smile})))["conflicting_duplicate"] == 1
    assert counts_of(check(replace(table, occluded=np.array(values, dtype=np.bool_))))["conflicting_duplicate"] == 1
    masks = Masks.from_rows([[10, 10, 40, 10, 40, 50 - value]] for value in values)
    assert counts_of(check(replace(table, masks=masks)))["conflicting_duplicate"] == 1


@pytest.mark.parametrize("decode", [True, False])
def test_images_with_16_bits_are_one_note(table, decode):
    for number in (1, 2):
        values = np.full((SIZE[1], SIZE[0]), 4000 + number, dtype=np.uint16)
        Image.fromarray(values).save(table.root / f"{number}.png")
    findings = check(table, decode=decode)
    (note,) = findings.details["sixteen_bit", "note", "set0"]
    assert note.message.startswith("2 of 4 inspected images are 16-bit grayscale")
    assert counts_of(findings) == {}
    assert ("sixteen_bit", "note", "set0") not in check(table, reading=ImageReading(sixteen_bit_max=4095)).counts


def test_path_that_is_too_long_is_a_missing_image(table):
    findings = check(replace(table, image_paths=["0.png", "1.png", "2.png", "x" * 300 + ".png"], image_ids=None))
    assert counts_of(findings) == {"missing_image": 1}


def test_duplicate_across_splits_is_an_error(table):
    shutil.copy(table.root / "0.png", table.root / "2.png")
    findings = check(table.select([0, 1]), table.select([2, 3]))
    assert counts_of(findings) == {"duplicate_across_splits": 1}
    assert findings.counts["duplicate_across_splits", "error", "set1"] == 1
    (finding,) = (finding for finding in findings if finding.kind == "duplicate_across_splits")
    assert finding.message == "'2.png' is a copy of '0.png' in set0"


def test_image_in_two_sets_is_an_error_and_no_copy(table):
    findings = check(table.select([0, 1, 2]), table.select([1, 3]))
    assert counts_of(findings) == {"shared_image": 1}
    assert findings.counts["shared_image", "error", "set1"] == 1
    # One error for each set after the first.
    assert counts_of(check(table, table.select([0]), table.select([0]))) == {"shared_image": 2}


def test_details_are_bounded_and_all_are_counted(tmp_path):
    table = box_table(tmp_path, [[BOX]] * 50)
    findings = check(table, max_details=3)
    assert findings.counts["missing_image", "error", "set0"] == 50
    assert len(findings.details["missing_image", "error", "set0"]) == 3


def test_results_do_not_depend_on_the_number_of_threads(tmp_path):
    table = draw_set(tmp_path, num_images=40, objects=1)
    for number in (3, 17, 39):
        (tmp_path / f"{number}.png").write_bytes(b"damaged")
    reports = [
        check_tables({"a": table}, num_workers=num_workers, progress=False).to_dict() for num_workers in (0, 1, 3)
    ]
    assert reports[0] == reports[1] == reports[2]
    assert [finding["image"] for finding in reports[0]["findings"] if finding["kind"] == "unreadable_image"] == [
        "3.png",
        "17.png",
        "39.png",
    ]
