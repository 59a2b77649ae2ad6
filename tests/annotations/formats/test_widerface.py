from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.any_table import attribute_values
from tests.support.text_sets import make_widerface, write_image

FACE = "1 2 30 40 0 0 0 0 0 0"
NONE = "0 0 0 0 0 0 0 0 0 0"


@pytest.fixture
def read(tmp_path):
    make_widerface(tmp_path)

    def read(text=None, **options):
        if text is not None:
            (tmp_path / "gt.txt").write_text(text)
        options = {"image_dir": "images", "use_cache": False} | options
        return read_annotations("widerface", tmp_path, "gt.txt", **options)

    return read


def test_faces_have_their_boxes_attributes_and_the_difficult_flag(read):
    table = read()
    assert list(table.image_paths) == ["images/0--Parade/a.jpg", "images/0--Parade/b.jpg", "images/c.png"]
    assert table.offsets.tolist() == [0, 2, 2, 3]
    assert table.boxes.tolist() == [[1, 2, 31, 42], [5, 6, 12, 14], [9, 9, 18, 18]]
    assert (table.class_names, table.difficult.tolist()) == (("face",), [False, True, False])
    assert attribute_values(table, "blur") == ["clear", "heavy", "normal"]
    assert attribute_values(table, "expression") == ["exaggerate", "typical", "typical"]
    assert attribute_values(table, "illumination") == ["normal", "extreme", "normal"]
    assert attribute_values(table, "occlusion") == ["heavy", "none", "partial"]
    assert attribute_values(table, "pose") == ["atypical", "typical", "typical"]
    assert table.attributes["occlusion"].names == ("none", "partial", "heavy")
    assert len(table.report) == 0


@pytest.mark.parametrize("zeros", [f"{NONE}\n", f" {NONE} \n", ""])
def test_count_of_zero_is_an_image_without_faces(read, zeros):
    table = read(f"c.png\n0\n{zeros}0--Parade/a.jpg\n1\n{FACE}\n")
    assert (table.num_images, table.offsets.tolist(), len(table.report)) == (2, [0, 0, 1], 0)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (f"c.png\n2\n{FACE}\n", 2, "1 faces follow the number 2"),
        (f"c.png\n1\n{FACE}\n{FACE}\n", 2, "2 faces follow the number 1"),
        (f"c.png\n0\n{FACE}\n", 2, "1 faces follow the number 0"),
        (f"c.png\n0\n{NONE}\n{NONE}\n", 2, "2 faces follow the number 0"),
        (f"c.png\n1\n{FACE}\n0--Parade/a.jpg\nx\n", 5, "path of an image and the number of its faces"),
        (f"c.png\n-1\n{FACE}\n", 2, "path of an image and the number of its faces"),
        (f"1\n{FACE}\n", 2, "path of an image and the number of its faces"),
        ("c.png\n0--Parade/a.jpg\n", 1, "format 'class_list' reads paths alone"),
        ("c.png\n1\n1 2 30 40 0 0 0\n", 3, "7 numbers; a face has 10: x y w h blur expression"),
        ("c.png\n1\n1 2 x 40 0 0 0 0 0 0\n", 3, "expected number 3 of 4, got 'x'"),
        ("c.png\n1\n1 2 3 4 3 0 0 0 0 0\n", 3, "blur is '3'; 0 to 2 expected"),
        ("c.png\n1\n1 2 3 4 0 0 0 2 0 0\n", 3, "invalid is '2'; 0 to 1 expected"),
    ],
)
def test_malformed_lists_are_refused_with_line(read, text, line, words):
    with pytest.raises(AnnotationError, match=rf"gt\.txt:{line}: .*{words}"):
        read(text)


def test_malformed_line_drops_its_whole_image(read):
    text = f"c.png\n2\n{FACE}\nx\n0--Parade/a.jpg\n1\n{FACE}\n"
    table = read(text, policy={"malformed": "drop"})
    assert list(table.image_paths) == ["images/0--Parade/a.jpg"]
    assert (table.num_objects, table.report.counts) == (1, {("malformed", "drop"): 1})


def test_paths_do_not_leave_the_root(read):
    for path in ("../a.jpg", "/a.jpg", "a/../../b.jpg"):
        with pytest.raises(UnsafePathError, match=r"gt\.txt:1"):
            read(f"{path}\n1\n{FACE}\n")


def test_options_set_class_split_and_folder(read, tmp_path):
    write_image(tmp_path / "other/d.jpg")
    table = read(f"d.jpg\n1\n{FACE}\n", image_dir="other", class_name="head", split="val")
    assert (table.class_names, table.split, list(table.image_paths)) == (("head",), "val", ["other/d.jpg"])
