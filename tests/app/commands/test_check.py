"""``lit-loader check``: findings with file and line, exit codes, JSON, and the page."""

from __future__ import annotations

import json
import re

import pytest

from lit_loader.app.commands import check as command_module
from lit_loader.inspection import Page
from lit_loader.inspection.drawing import draw_image
from tests.support.checking import draw_noise

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def set_words(voc, tmp_path, monkeypatch):
    """Words of a command on a VOC set with two clean images; the page goes to ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    add(voc, "a", ("dog", 10, 10, 40, 50))
    add(voc, "b", ("dog", 20, 10, 50, 50))
    return ["check", "voc", voc.root, ".", "--cache-dir", tmp_path / "cache", "--no-progress"]


def add(voc, name, *objects, **options):
    voc.add(name, *objects, **options)
    draw_noise(voc.root / f"JPEGImages/{name}.jpg", hash_of(name))


def hash_of(name):
    return int.from_bytes(name.encode()[:4])


def places(report):
    return {
        finding["kind"]: f"{finding['place']['file']}:{finding['place']['line']}"
        for finding in report["findings"]
        if finding["place"] is not None
    }


def test_clean_set_ends_with_code_0(command, set_words, tmp_path):
    out = command(*set_words, "--strict")
    assert "2 images, 2 objects in .: 0 errors, 0 warnings, 0 notes" in out
    assert "page: check.html" in out
    assert "No findings." in (tmp_path / "check.html").read_text()


def test_defects_are_named_with_file_and_line(command, voc, set_words):
    good = ("dog", 10, 10, 40, 50)
    add(voc, "c", good, ("dog", 60, 10, 109, 50), good, ("cat", 10, 10, 40, 50), ("dog", 60, 10, 61, 50))
    add(
        voc,
        "d",
        good,
        ("dog", 150, 10, 190, 50),
        ("dog", 60, 10, 60, 50),
        ("dog", 60, 60, 50, 70),
        ("dog", 1, "x", 2, 3),
    )
    add(voc, "e", good, size=(100, 90))
    voc.add("f", good, image=None)
    add(voc, "g", good)
    (voc.root / "JPEGImages/g.jpg").write_bytes(b"damaged")
    report = json.loads(command(*set_words, "--json", code=1))
    assert places(report) == {
        "missing_image": "Annotations/f.xml:None",
        "unreadable_image": "Annotations/g.xml:None",
        "size_mismatch": "Annotations/e.xml:None",
        "malformed": "Annotations/d.xml:6",
        "degenerate": "Annotations/d.xml:4",
        "swapped": "Annotations/d.xml:5",
        "box_off_image": "Annotations/d.xml:3",
        "out_of_image": "Annotations/c.xml:3",
        "tiny_box": "Annotations/c.xml:6",
        "duplicate_box": "Annotations/c.xml:4",
        "conflicting_box": "Annotations/c.xml:5",
    }
    assert all(entry["count"] == 1 for entry in report["counts"])
    partners = [finding["partner_place"] for finding in report["findings"] if finding["kind"] == "duplicate_box"]
    assert partners == [{"file": "Annotations/c.xml", "line": 2, "entry": None}]
    out = " ".join(command(*set_words, code=1).split())
    assert "out_of_image warning . 1 Annotations/c.xml:3: 'dog' box [60, 10, 109, 50]" in out
    assert "remedy: correct or clip the box" in out


def test_json_has_the_documented_keys_and_writes_no_page(command, voc, set_words, tmp_path):
    add(voc, "c", ("dog", 60, 10, 109, 50))
    report = json.loads(command(*set_words, "--json"))
    assert not (tmp_path / "check.html").exists()
    keys = [
        "version",
        "format",
        "root",
        "sets",
        "errors",
        "warnings",
        "notes",
        "failed",
        "max_details",
        "counts",
        "findings",
    ]
    assert list(report) == keys
    assert report["sets"] == {".": {"images": 3, "objects": 3}}
    assert (report["errors"], report["warnings"], report["notes"]) == (0, 1, 0)
    assert report["counts"] == [{"kind": "out_of_image", "severity": "warning", "split": ".", "count": 1}]
    (finding,) = report["findings"]
    assert finding["image"] == "JPEGImages/c.jpg"
    assert finding["place"]["line"] == 2
    assert finding["score"] == 9


def test_strict_turns_warnings_into_failure_and_ignored_kinds_are_silent(command, voc, set_words):
    add(voc, "c", ("dog", 60, 10, 109, 50))
    assert "1 warning" in command(*set_words)
    command(*set_words, "--strict", code=1)
    assert json.loads(command(*set_words, "--json"))["failed"] is False
    assert json.loads(command(*set_words, "--json", "--strict", code=1))["failed"] is True
    assert "0 warnings" in command(*set_words, "--strict", "--ignore", "out_of_image")


def test_problem_that_the_policy_accepts_is_a_note(command, voc, set_words):
    voc.split("list", "a\nb\nmissing\n")
    draw_noise(voc.root / "JPEGImages/missing.jpg", 9)
    words = [*set_words[:3], "list", *set_words[4:]]
    assert "missing_annotation  error" in command(*words, code=1)
    assert "missing_annotation  note" in command(*words, "--policy", "missing_annotation=empty")


def test_missing_images_of_a_format_with_fractions_are_found(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        draw_noise(tmp_path / f"yolo/images/{name}.png", hash_of(name))
    for name in ("a", "b"):
        (tmp_path / "yolo/labels").mkdir(exist_ok=True)
        (tmp_path / f"yolo/labels/{name}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (tmp_path / "yolo/train.txt").write_text("images/a.png\nimages/c.png\nimages/b.png\nimages/d.png\n")
    words = ["yolo", "yolo", "train.txt", "--option", "class_names=[dog]", "--cache-dir", tmp_path / "cache"]
    report = json.loads(command("check", *words, "--json", "--no-progress", code=1))
    missing = [finding for finding in report["findings"] if finding["kind"] == "missing_image"]
    assert [finding["place"]["line"] for finding in missing] == [2, 4]
    assert report["errors"] == 2


def test_page_shows_the_object_and_its_place(command, voc, set_words, tmp_path):
    add(voc, "c", ("dog", 10, 10, 40, 50), ("dog", 60, 10, 109, 50))
    command(*set_words, "--page", "out/report.html")
    page = (tmp_path / "out/report.html").read_text()
    assert "warning: out_of_image" in page
    assert "Annotations/c.xml:3" in page
    assert page.count("data:image/jpeg;base64,") == 1
    command(*set_words, "--no-page")
    assert not (tmp_path / "check.html").exists()


def test_result_is_printed_even_if_the_page_cannot_be_written(command, set_words, monkeypatch):
    def fail(page, path):
        raise OSError("disk full")

    monkeypatch.setattr(Page, "save", fail)
    assert "2 images, 2 objects in .: 0 errors" in command(*set_words, code=1)
    assert "disk full" in command.err


def test_caption_names_the_image_once_and_both_boxes_are_drawn(command, voc, set_words, tmp_path, monkeypatch):
    add(voc, "c", ("dog", 10, 10, 40, 50), ("dog", 60, 10, 90, 50), ("dog", 10, 10, 40, 50))
    add(voc, "e", ("dog", 10, 10, 40, 50), size=(100, 90))
    highlights = []

    def draw(*arguments, highlighted, **options):
        highlights.append(list(highlighted))
        return draw_image(*arguments, highlighted=highlighted, **options)

    monkeypatch.setattr(command_module, "draw_image", draw)
    command(*set_words, code=1)
    # The last image has no highlighted object, and the pair is on the third one.
    assert sorted(highlights) == [[], [4, 2]]
    captions = re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", (tmp_path / "check.html").read_text(), re.DOTALL)
    assert [caption.count("e.jpg") + caption.count("c.jpg") for caption in captions] == [1, 1]


def test_names_with_markup_are_inert_on_terminal_and_page(command, voc, set_words, tmp_path):
    add(voc, "c", ("&lt;script&gt;alert(1)&lt;/script&gt;[red]", 60, 10, 109, 50))
    out = command(*set_words)
    assert "[red]" in out
    assert "\x1b" not in out
    page = (tmp_path / "check.html").read_text()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[red]" in page
    assert re.findall(r"<script|src=\"(?!data:)", page) == []


def test_ctrl_c_leaves_no_page(command, set_words, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "check_tables", interrupt)
    command(*set_words, "--page", "report.html", code=130)
    assert not list(tmp_path.glob("*.html"))
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ignore", "tiny"], "--ignore tiny is not a kind of finding; choose tiny_box"),
        (["--duplicate-iou", "2"], "--duplicate-iou 2.0 is not between 0 and 1"),
        (["--max-details", "0"], "--max-details 0"),
        (["--policy", "degenerate=maybe"], "must be one of"),
        (["--min-side", "x"], "invalid float value"),
        (["--page", "precious.json"], "--page 'precious.json' must end in .html"),
        (["--page", "folder.html"], "the page 'folder.html' cannot be written"),
        (["--page", "a.html", "--no-page"], "not allowed with argument"),
    ],
)
def test_wrong_commands_end_with_code_2(command, set_words, words, message, tmp_path, monkeypatch):
    (tmp_path / "folder.html").mkdir()
    if "--ignore" not in words and "--policy" not in words:
        # Readers know some of the kinds and policies; everything else is refused before the data is read.
        monkeypatch.setattr(command_module, "read_broken_sets", None)
    command(*set_words, *words, code=2)
    assert message in command.err
