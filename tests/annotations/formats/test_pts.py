from __future__ import annotations

import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.text_sets import make_pts, write_image

TWO = "version: 1\nn_points: 2\n{\n1 2\n30 40.5\n}\n"


@pytest.fixture
def face(tmp_path):
    """A face of two points beside its image; its text may be another."""
    write_image(tmp_path / "faces/a.png")
    (tmp_path / "faces/a.pts").write_text(TWO)
    return tmp_path / "faces/a.pts"


def read(root, name="faces", *, schema=2, **options):
    return read_annotations("pts", root, name, schema=schema, use_cache=False, **options)


def test_a_file_is_a_face_of_the_image_beside_it(face, tmp_path):
    table = read(tmp_path, class_name="head", split="val")
    assert (list(table.image_paths), list(table.image_ids)) == (["faces/a.png"], ["faces/a"])
    assert table.keypoints.tolist() == [[[1, 2], [30, 40.5]]]
    assert table.boxes.tolist() == [[1, 2, 30, 40.5]]
    assert (table.class_names, table.split, table.widths.tolist()) == (("head",), "val", [60])
    assert read(tmp_path, one_based=True).keypoints.tolist() == [[[0, 1], [29, 39.5]]]


@pytest.mark.parametrize(
    "text",
    [
        TWO.replace("1\n", "1.0\n", 1),
        TWO.replace("\n", "\r\n"),
        TWO.replace(": ", ":"),
        TWO.replace("n_points: 2", "n_points:  2").replace("\n{", "\n\n{"),
        TWO.replace("1 2", "  1\t2.000 ").rstrip(),
        "\n" + TWO + "\n\n",
    ],
)
def test_every_known_spelling_is_read(face, tmp_path, text):
    face.write_text(text, newline="")
    assert read(tmp_path).keypoints.tolist() == [[[1, 2], [30, 40.5]]]


@pytest.mark.parametrize("name", ["*/annot/*.pts", "**/*.pts", "00[12]/?nnot/*", "001/annot/2.pts"])
def test_images_of_clips_are_in_another_folder(tmp_path, name):
    make_pts(tmp_path)
    table = read(tmp_path, name, schema=68, image_dir="../imgs")
    images = ["001/imgs/1.jpg", "001/imgs/2.jpg", "002/imgs/1.jpg"]
    assert list(table.image_paths) == (images[1:2] if name.startswith("001") else images)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "expected 'version: 1', got the end of the file"),
        (TWO.replace("version: 1", "version: 2"), 1, "got 'version: 2'"),
        (TWO.replace("n_points: 2", "n_points: two"), 2, "expected 'n_points: <number>'"),
        (TWO.replace("n_points: 2", "n_points: 999999999"), 2, "n_points: 999999999; the schema has 2"),
        (TWO.replace("{\n", ""), 3, "expected '{', got '1 2'"),
        (TWO.replace("1 2", "1"), 4, "expected point 1 of 2, as x and y, got '1'"),
        (TWO.replace("1 2", "1 2 3"), 4, "expected point 1 of 2"),
        (TWO.replace("1 2", "1 x"), 4, "expected number 2 of 2, got 'x'"),
        (TWO.replace("30 40.5\n", ""), 5, "expected point 2 of 2, as x and y, got '}'"),
        (TWO.replace("}", "5 6\n}"), 6, "expected '}', got '5 6'"),
        (TWO.replace("}", ""), 5, "expected '}', got the end of the file"),
        (TWO[:-8], 5, "expected point 2 of 2"),
        (TWO + "more", 7, "expected the end of the file, got 'more'"),
        (TWO.replace("1 2", "1 \0"), 4, "expected number 2 of 2"),
        (TWO + " " * 2**20, None, "larger than"),
    ],
)
def test_malformed_files_are_refused_with_line(face, tmp_path, text, line, words):
    face.write_text(text)
    place = "" if line is None else f":{line}"
    with pytest.raises(AnnotationError, match=rf"a\.pts{place}: .*{words}"):
        read(tmp_path)
    write_image(tmp_path / "faces/b.jpg")
    (tmp_path / "faces/b.pts").write_text(TWO)
    table = read(tmp_path, policy={"malformed": "drop"})
    assert (list(table.image_ids), table.report.counts) == (["faces/b"], {("malformed", "drop"): 1})
    assert table.report.problems[0].file == "faces/a.pts"


@pytest.mark.parametrize("image_dir", ["../..", "/imgs", "../../../imgs"])
def test_image_dir_outside_the_root_is_refused(face, tmp_path, image_dir):
    with pytest.raises(UnsafePathError, match="leads out of the data set's root"):
        read(tmp_path, image_dir=image_dir)


def test_names_outside_the_root_are_refused_and_links_followed(tmp_path):
    root = tmp_path / "root"
    make_pts(root)
    write_image(tmp_path / "elsewhere/a.png")
    (tmp_path / "elsewhere/a.pts").write_text(TWO)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("../elsewhere", str(tmp_path / "elsewhere"), "link/../../elsewhere"):
        with pytest.raises(UnsafePathError):
            read(root, name)
    for name in ("link", "link/*.pts", "link/a.pts", "**/a.pts"):
        assert list(read(root, name).image_paths) == ["link/a.png"]


def test_names_without_files_are_refused(face, tmp_path):
    for name in ("none", "*.pts", "faces/a.png", "faces/*.txt", "faces/a.pts/b", "*", "**"):
        with pytest.raises(AnnotationError, match=r"no file .* with the extension '.pts'"):
            read(tmp_path, name)
