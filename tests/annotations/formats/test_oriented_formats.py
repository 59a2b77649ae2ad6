"""Oriented boxes of DOTA, YOLO-OBB and XML: read, written and read again with the same bits; odd files are named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations import AnnotationTable, Masks
from lit_loader.annotations.formats import read_annotations, write_annotations
from lit_loader.annotations.layouts import choose_layout, find_layouts
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.inspection import check_tables

HEADER = "imagesource:GoogleEarth\ngsd:0.146343590398\n"
LINES = "10.5 2 14 6.25 8 12 4 8 ship 0\n1 1 5 1 5 9 1 9 large-vehicle 1\n20 20 28 22 27 29 19 27 ship 2\n"
WIDTH = 41
HEIGHT = 33
NAN = np.nan


def draw(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(root / path)


def dota_set(root: Path, lines: str = HEADER + LINES, *, split: str = "train") -> Path:
    draw(root, f"{split}/images/P0001.png", f"{split}/images/P0002.v2.png")
    folder = root / split / "labelTxt"
    folder.mkdir()
    (folder / "P0001.txt").write_text(lines)
    (folder / "P0002.v2.txt").write_text("")
    return root


def read(format: str, root: Path, name: str = "train", **options) -> AnnotationTable:
    return read_annotations(format, root, name, use_cache=False, progress=False, **options)


def corners_table(root: Path, quads: np.ndarray, **changes) -> AnnotationTable:
    """Return a table of one image whose objects have these corners, and boxes around them."""
    draw(root, "images/a.png")
    columns = {
        "root": root,
        "image_paths": ["images/a.png"],
        "image_ids": ["a"],
        "class_names": ("ship",),
        "widths": [WIDTH],
        "heights": [HEIGHT],
        "offsets": [0, len(quads)],
        "boxes": np.hstack([quads.min(axis=1), quads.max(axis=1)]),
        "corners": quads,
        "labels": [0] * len(quads),
    }
    return AnnotationTable(**(columns | changes))


def test_dota_lines_become_corners_boxes_flags_and_reported_headers(tmp_path):
    table = read("dota", dota_set(tmp_path))
    assert list(table.image_paths) == ["train/images/P0001.png", "train/images/P0002.v2.png"]
    assert table.class_names == ("large-vehicle", "ship")
    assert table.corners[0].tolist() == [[10.5, 2], [14, 6.25], [8, 12], [4, 8]]
    assert table.boxes.tolist() == [[4, 2, 14, 12], [1, 1, 5, 9], [19, 20, 28, 29]]
    assert table.difficult.tolist() == [False, True, True]
    assert table.attributes["difficulty"].ids.tolist() == [-1, -1, 0]
    assert table.attributes["difficulty"].names == ("2",)
    assert table.split == "train"
    assert (table.report.count("imagesource", "not read"), table.report.count("gsd", "not read")) == (1, 1)
    place = table.place_of_object(2)
    assert (place.file, place.line) == ("train/labelTxt/P0001.txt", 5)


@pytest.mark.parametrize("format", ["dota", "yolo", "voc"])
def test_corners_written_and_read_again_have_the_same_bits(tmp_path, format):
    # Random bits instead of round numbers, among them tiny and negative coordinates.
    rng = np.random.default_rng(1)
    corners = rng.normal(20, 15, (400, 4, 2)).astype(np.float32)
    corners[:50] *= np.float32(1e-6)
    table = corners_table(tmp_path, corners)
    options = {"image_dir": "images"} if format == "voc" else {}
    losses = write_annotations(format, table, tmp_path, "train", progress=False, **options)
    reread = read(format, tmp_path, **options, **({"task": "obb"} if format == "yolo" else {}))
    assert losses == []
    assert reread.corners.tobytes() == table.corners.tobytes()
    assert reread.boxes.tobytes() == table.boxes.tobytes()
    assert reread.masks is None
    assert reread.rotated_boxes is None


def test_rotated_boxes_of_xml_have_the_same_bits_when_read_again(tmp_path):
    rng = np.random.default_rng(2)
    rotated = rng.uniform([5, 5, 1, 1, -400], [35, 30, 20, 20, 400], (400, 5)).astype(np.float32)
    rotated[0, 4] = 0
    table = corners_table(tmp_path, np.zeros((400, 4, 2)), corners=None, rotated_boxes=rotated)
    assert write_annotations("voc", table, tmp_path, "train", image_dir="images", progress=False) == []
    reread = read("voc", tmp_path, image_dir="images", policy={"degenerate": "keep"})
    assert reread.rotated_boxes.tobytes() == table.rotated_boxes.tobytes()
    assert reread.corners is None


def test_rolabelimg_angles_turn_clockwise_and_the_box_encloses_the_corners(tmp_path):
    draw(tmp_path, "JPEGImages/a.png")
    numbers = {"cx": 20, "cy": 15, "w": 10, "h": 4, "angle": math.pi / 6}
    box = "".join(f"<{tag}>{value!r}</{tag}>" for tag, value in numbers.items())
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/a.xml").write_text(
        "<annotation verified='yes'><filename>a</filename><object><type>robndbox</type><name>ship</name>"
        f"<pose>Unspecified</pose><robndbox>{box}</robndbox></object></annotation>"
    )
    table = read("voc", tmp_path, ".")
    assert table.rotated_boxes[0].tolist() == pytest.approx([20, 15, 10, 4, -30])
    # roLabelImg: x = cx + cos * dx - sin * dy, y = cy + sin * dx + cos * dy, with y downwards.
    cos = math.cos(math.pi / 6)
    sin = math.sin(math.pi / 6)
    expected = [(20 + cos * x - sin * y, 15 + sin * x + cos * y) for x, y in ((-5, -2), (5, -2), (5, 2), (-5, 2))]
    np.testing.assert_allclose(table.oriented_corners()[0], expected, atol=1e-5)
    np.testing.assert_allclose(table.boxes[0], [*np.min(expected, axis=0), *np.max(expected, axis=0)], atol=1e-5)
    assert table.report.count("<type> of an <object>") == 0


def test_dota_written_and_read_again_is_the_same_table(tmp_path):
    table = read("dota", dota_set(tmp_path / "in"))
    moved = replace(table, image_paths=["images/a.png", "images/b/c.d.png"], image_ids=None)
    draw(tmp_path / "out", "images/a.png", "images/b/c.d.png")
    assert write_annotations("dota", moved, tmp_path / "out", "train", progress=False) == []
    reread = read("dota", tmp_path / "out")
    for name in ("corners", "boxes", "labels", "difficult", "offsets", "widths"):
        assert getattr(reread, name).tobytes() == getattr(table, name).tobytes(), name
    assert reread.attributes["difficulty"].ids.tolist() == table.attributes["difficulty"].ids.tolist()
    assert list(reread.image_paths) == list(moved.image_paths)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3 4 5 6 7 ship 0", "9 numbers|number 8 of 8|expected number"),
        ("1 2 3 4 5 6 7 8", "8 fields"),
        ("1 2 3 4 5 6 7 8 a b 0", "11 fields"),
        ("nan 2 3 4 5 6 7 8 ship 0", "not finite"),
        ("1e400 2 3 4 5 6 7 8 ship 0", "not finite"),
        ("1 2 3 4 5 6 7 1e38 ship 0", "beyond 1e"),
        ("1 2 3 4 5 6 7 8 ship 3", "difficult is '3'"),
        (f"1 2 3 4 5 6 7 8 {'x' * 300} 0", "name of the class has 300"),
        ("1 2 3 4 5 6 7 8 ship 0 gsd:1", "11 fields"),
    ],
)
def test_malformed_dota_lines_name_file_and_line(tmp_path, line, message):
    root = dota_set(tmp_path, f"{HEADER}{LINES}{line}\n")
    with pytest.raises(AnnotationError, match=message) as info:
        read("dota", root)
    assert (Path(info.value.path).name, info.value.line) == ("P0001.txt", 6)
    table = read("dota", root, policy={"malformed": "drop"})
    assert (table.num_objects, table.report.count("malformed", "drop")) == (3, 1)


def test_flat_oriented_boxes_are_degenerate(tmp_path):
    root = dota_set(tmp_path, "1 1 9 9 9 9 1 1 ship 0\n" + LINES)
    table = read("dota", root)
    assert (table.num_objects, table.report.count("degenerate", "drop")) == (3, 1)


@pytest.mark.parametrize("corners", ["20 20 28 20 20 26 28 26", "20 20 28 26 28 20 20 26"])
def test_rectangles_with_corners_in_crossed_order_are_read_and_found_by_the_check(tmp_path, corners):
    table = read("dota", dota_set(tmp_path, f"{corners} plane 0\n{LINES}"))
    assert table.report.num_handled == table.report.count("degenerate") == 0
    assert table.boxes[0].tolist() == [20, 20, 28, 26]
    findings = check_tables({"train": table})
    assert [finding.object_row for finding in findings if finding.kind == "odd_quadrangle"] == [0]


def test_dota_images_and_labels_without_a_partner_follow_the_policy(tmp_path):
    root = dota_set(tmp_path)
    draw(root, "train/images/new.png")
    with pytest.raises(AnnotationError, match=r"has no label file 'train/labelTxt/new\.txt'"):
        read("dota", root)
    assert read("dota", root, policy={"missing_annotation": "empty"}).num_images == 3
    (root / "train/images/new.png").unlink()
    (root / "train/images/P0001.png").unlink()
    with pytest.raises(AnnotationError, match="no image 'train/images/P0001'"):
        read("dota", root)


def test_dota_lists_may_not_leave_the_root(tmp_path):
    draw(tmp_path, "images/a.png")
    (tmp_path / "labelTxt").mkdir()
    (tmp_path / "labelTxt/a.txt").write_text(LINES)
    (tmp_path / "val.txt").write_text("a\n")
    assert list(read("dota", tmp_path, "val").image_paths) == ["images/a.png"]
    (tmp_path / "val.txt").write_text("a\n../../etc/passwd\n")
    with pytest.raises(UnsafePathError):
        read("dota", tmp_path, "val")
    with pytest.raises(AnnotationError, match="found no split 'test'"):
        read("dota", tmp_path, "test")


@pytest.mark.parametrize("name", ["two words", "tab\tname", "nul\0", "line\x85end", "x" * 300])
def test_class_names_that_dota_would_not_read_back_are_refused(tmp_path, name):
    table = corners_table(tmp_path, np.array([[[1, 1], [5, 2], [5, 9], [1, 8]]], np.float32), class_names=(name,))
    with pytest.raises(ValueError, match="would not be read back"):
        write_annotations("dota", table, tmp_path, "train", progress=False)
    assert not (tmp_path / "train.txt").exists()


def test_yolo_rows_of_four_points_are_oriented_boxes_only_by_option(tmp_path):
    draw(tmp_path, "images/train/a.png")
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "labels/train/a.txt").write_text("0 0.1 0.1 0.5 0.2 0.4 0.6 0.1 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [ship]\n")
    oriented = read("yolo", tmp_path, task="obb")
    assert oriented.masks is None
    np.testing.assert_allclose(oriented.corners[0, 1], [0.5 * WIDTH, 0.2 * HEIGHT], rtol=1e-6)
    segments = read("yolo", tmp_path, task="segment")
    assert segments.corners is None
    assert len(segments.report) == 0
    silent = read("yolo", tmp_path)
    assert silent.report.count("four_points", "polygon") == 1
    assert "task=obb" in str(silent.report)
    with pytest.raises(AnnotationError, match="read with task='obb'"):
        read("yolo", tmp_path, task="detect")
    (finding,) = (finding for finding in check_tables({"train": silent}) if finding.kind == "four_points")
    assert "--option task=obb" in finding.remedy
    (tmp_path / "labels/train/a.txt").write_text("0 0.1 0.1 0.5 0.2\n")
    with pytest.raises(AnnotationError, match="x and y of four corners"):
        read("yolo", tmp_path, task="obb")


def test_yolo_rows_of_four_points_are_reported_once_and_not_next_to_other_polygons(tmp_path):
    draw(tmp_path, "images/train/a.png", "images/train/b.png")
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [ship]\n")
    quad = "0 0.1 0.1 0.5 0.2 0.4 0.6 0.1 0.5\n"
    for name in "ab":
        (tmp_path / f"labels/train/{name}.txt").write_text(quad * 2)
    (problem,) = read("yolo", tmp_path).report.problems
    assert (problem.kind, problem.file, problem.line) == ("four_points", "labels/train/a.txt", 1)
    for other in ("0 0.1 0.1 0.5 0.2 0.4 0.6\n", "0 0.5 0.5 0.2 0.2\n"):
        (tmp_path / "labels/train/b.txt").write_text(quad + other)
        assert len(read("yolo", tmp_path).report) == 0


def voc_set(root: Path, box: str, oriented: str) -> Path:
    draw(root, "JPEGImages/a.png")
    (root / "Annotations").mkdir()
    text = f"<object><name>ship</name>{box}<robndbox>{oriented}</robndbox></object>"
    (root / "Annotations/a.xml").write_text(f"<annotation>{text}</annotation>")
    return root


ROTATED = "<cx>20</cx><cy>15</cy><w>10</w><h>4</h><angle>0</angle>"


@pytest.mark.parametrize(
    ("box", "expected", "count"), [((15.5, 13, 25, 16.5), (15.5, 13, 25, 16.5), 0), ((1, 1, 8, 9), (15, 13, 25, 17), 1)]
)
def test_boxes_of_xml_that_contradict_the_oriented_box_are_reported_and_replaced(tmp_path, box, expected, count):
    tags = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    element = "<bndbox>" + "".join(f"<{tag}>{value}</{tag}>" for tag, value in tags) + "</bndbox>"
    table = read("voc", voc_set(tmp_path, element, ROTATED), ".")
    assert table.boxes.tolist() == [list(expected)]
    assert table.report.count("box_mismatch", "replace") == len(table.report) == count


def test_repeated_numbers_of_an_oriented_box_are_malformed(tmp_path):
    root = voc_set(tmp_path, "", f"<cx>1</cx>{ROTATED}")
    with pytest.raises(AnnotationError, match="<robndbox> holds <cx> more than once"):
        read("voc", root, ".")


@pytest.mark.parametrize(
    ("format", "options", "loss"),
    [
        ("coco", {}, "1 oriented boxes, which become polygons"),
        ("yolo", {"task": "detect"}, "1 oriented boxes"),
        ("yolo", {"task": "segment"}, "1 oriented boxes"),
        ("keypoints_txt", {"columns": "path class box"}, "1 oriented boxes"),
    ],
)
def test_formats_without_oriented_boxes_refuse_them(tmp_path, format, options, loss):
    quad = np.array([[[1, 1], [5, 2], [5, 9], [1, 8]]], np.float32)
    name = "val" if format == "yolo" else "val.json"
    table = corners_table(tmp_path, quad)
    with pytest.raises(ValueError, match=loss):
        write_annotations(format, table, tmp_path, name, progress=False, **options)
    assert loss in write_annotations(format, table, tmp_path, name, allow_loss=True, progress=False, **options)
    if format == "coco":
        reread = read("coco", tmp_path, name)
        np.testing.assert_array_equal(reread.masks.polygons(0)[0], quad[0])
        assert reread.areas.tolist() == [28]  # of the polygon; the box around it has 32


def test_other_boxes_become_corners_only_with_allow_loss(tmp_path):
    rotated = np.array([[20, 15, 10, 4, 30], [NAN] * 5], np.float32)
    table = corners_table(tmp_path, np.zeros((2, 4, 2)), corners=None, rotated_boxes=rotated, boxes=[[0, 0, 9, 9]] * 2)
    for format in ("dota", "yolo"):
        with pytest.raises(ValueError, match="1 axis-aligned boxes, which become corners; 1 rotated boxes, which"):
            write_annotations(format, table, tmp_path, "train", progress=False)
        write_annotations(format, table, tmp_path, "train", allow_loss=True, progress=False)
        options = {"task": "obb"} if format == "yolo" else {}
        np.testing.assert_array_equal(read(format, tmp_path, **options).corners, table.oriented_corners())
    masks = Masks.from_rows([None, None])
    with pytest.raises(ValueError, match="oriented boxes"):
        write_annotations("yolo", corners_table(tmp_path, np.zeros((2, 4, 2)), masks=masks), tmp_path, "val")


def test_layouts_of_dota_are_found(tmp_path):
    dota_set(tmp_path)
    dota_set(tmp_path, split="val")
    layout = choose_layout(tmp_path)
    assert (layout.format, layout.stages) == ("dota", {"train": "train", "val": "val"})
    # A line without a header begins like a row of YOLO.
    flat = tmp_path / "flat"
    draw(flat, "images/a.png")
    (flat / "labelTxt-v1.5").mkdir()
    (flat / "labelTxt-v1.5/a.txt").write_text("1 1 5 1 5 9 1 9 ship 0\n")
    layout = choose_layout(flat)
    assert (layout.format, dict(layout.options)) == ("dota", {"label_dir": "labelTxt-v1.5"})
    assert read("dota", flat, layout.stages["train"], **layout.options).num_objects == 1


def test_yolo_sets_of_four_points_are_two_layouts(tmp_path):
    draw(tmp_path, "images/train/a.png")
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "labels/train/a.txt").write_text("0 0.1 0.1 0.5 0.2 0.4 0.6 0.1 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [ship]\n")
    layouts = find_layouts(tmp_path)
    assert [(layout.name, layout.options["task"]) for layout in layouts] == [
        ("yolo:data.yaml:obb", "obb"),
        ("yolo:data.yaml:segment", "segment"),
    ]
    with pytest.raises(AnnotationError, match="oriented boxes"):
        choose_layout(tmp_path)
    (tmp_path / "labels/train/a.txt").write_text("0 0.1 0.1 0.5 0.2 0.4 0.6 0.1 0.5 0.2 0.2\n")
    assert [layout.name for layout in find_layouts(tmp_path)] == ["yolo"]
