from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError
from tests.support.text_sets import make_retinaface, write_image

FACE = "1 2 30 40 " + " ".join(f"{x} {x + 1} {x % 2}.0" for x in range(5, 10))


@pytest.fixture
def read(tmp_path):
    make_retinaface(tmp_path)

    def read(text=None, **options):
        if text is not None:
            (tmp_path / "label.txt").write_text(text)
        return read_annotations("retinaface", tmp_path, "label.txt", use_cache=False, **options)

    return read


def test_faces_belong_to_the_image_above_them(read):
    table = read()
    assert list(table.image_paths) == ["0--Parade/a.jpg", "b.jpg"]
    assert table.offsets.tolist() == [0, 2, 3]
    assert table.boxes.tolist() == [[1, 2, 31, 42], [5, 5, 14, 14], [3, 4, 13, 14]]
    assert table.visibility.tolist() == [[1, 2, 1, 2, 1], [0] * 5, [0] * 5]
    assert table.keypoints[0, 1].tolist() == [6, 7]
    assert (table.keypoint_names[0], table.class_names) == ("left_eye", ("face",))
    assert table.report.counts[("score of a face", "not read")] == 2


def test_images_without_faces_are_kept(read, tmp_path):
    write_image(tmp_path / "deep/c.jpg")
    table = read("# c.jpg\n", image_dir="deep", split="val", class_name="head", schema=3, class_names=["head"])
    assert (list(table.image_paths), table.num_objects, table.split) == (["deep/c.jpg"], 0, "val")
    assert (table.class_names, len(table.keypoint_names)) == (("head",), 3)
    assert read("# b.jpg\n1 2 3 4 5 6 0", schema=1, class_name="head").class_names == ("head",)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (FACE, 1, "a face without a line"),
        ("#\n" + FACE, 1, "the path of the image is empty"),
        ("# b.jpg\n1 2 3", 2, "3 numbers; a face of 5 points has one of"),
        (f"# b.jpg\n\n{FACE[:-3]}2.0", 3, r"flags \[.*2.0\] of the points must be"),
        (f"# b.jpg\n{FACE[:-3]}nan", 2, "of the points must be"),
        (f"# b.jpg\n{FACE} x", 2, "expected number 20 of 20, got 'x'"),
    ],
)
def test_malformed_lists_are_refused_with_line(read, text, line, words):
    with pytest.raises(AnnotationError, match=rf"label\.txt:{line}: .*{words}"):
        read(text)


def test_faces_after_a_line_without_path_are_dropped(read):
    table = read(f"# b.jpg\n{FACE}\n#\n{FACE}\n", policy={"malformed": "drop"})
    assert (table.num_objects, table.report.counts) == (1, {("malformed", "drop"): 2})
