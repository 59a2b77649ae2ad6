from __future__ import annotations

import shutil

import numpy as np
import pytest

from lit_loader.annotations.formats import celeba, read_annotations
from lit_loader.annotations.keypoints import KEYPOINT_SCHEMAS
from lit_loader.errors import AnnotationError, UnsafePathError
from tests.support.any_table import attribute_values
from tests.support.text_sets import SIZE, make_celeba, write_image

POINTS = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"


@pytest.fixture
def aligned(tmp_path):
    make_celeba(tmp_path)
    return tmp_path


@pytest.fixture
def original(tmp_path):
    make_celeba(tmp_path, SIZE)
    return tmp_path


def read(root, name=".", **options):
    return read_annotations("celeba", root, name, use_cache=False, **options)


def test_aligned_images_have_points_and_attributes(aligned):
    table = read(aligned)
    lines = (aligned / "list_landmarks_align_celeba.txt").read_text().splitlines()[2:]
    expected = np.array([line.split()[1:] for line in lines], dtype=np.float32).reshape(-1, 5, 2)
    np.testing.assert_array_equal(table.keypoints, expected)
    np.testing.assert_array_equal(table.boxes[:, :2], expected.min(axis=1))
    assert table.keypoint_schema == KEYPOINT_SCHEMAS["face_5"]
    assert attribute_values(table, "Bald") == ["no", "yes", "no", "yes"]
    assert attribute_values(table, "Smiling") == ["yes", "no", "no", "yes"]
    assert attribute_values(table, "identity") == ["7", "12", "7", "3"]
    assert (table.class_names, table.num_images, table.split) == (("face",), 4, None)
    assert table.report.counts == {
        ("list_bbox_celeba, of the original images", "not read"): 1,
        ("list_landmarks_celeba, of the original images", "not read"): 1,
        ("partition of an image", "not read"): 4,
    }


def test_original_images_have_boxes_as_corners(original):
    table = read(original, aligned=False, class_name="head")
    assert table.boxes[1].tolist() == [11, 13, 31, 43]
    assert (table.class_names, table.keypoints.shape) == (("head",), (4, 5, 2))
    assert table.report.count("list_landmarks_align_celeba, of the aligned images", "not read") == 1


@pytest.mark.parametrize(("split", "images"), [("train", [1, 2]), ("val", [3]), ("test", [4])])
def test_a_split_is_the_images_of_its_partition(aligned, split, images):
    table = read(aligned, split)
    assert list(table.image_paths) == [f"img_align_celeba/{i:06}.jpg" for i in images]
    assert (table.split, table.num_objects) == (split, len(images))
    assert ("partition of an image", "not read") not in table.report.counts


def test_lists_of_the_other_images_are_refused(tmp_path):
    make_celeba(tmp_path)
    with pytest.raises(AnnotationError, match=r"has 178 x 218 pixels.*original images; pass aligned=True, or"):
        read(tmp_path, aligned=False)
    make_celeba(tmp_path, SIZE)
    with pytest.raises(AnnotationError, match=r"has 60 x 50 pixels.*aligned \(178 x 218\).*pass aligned=False"):
        read(tmp_path)
    for name in ("list_bbox_celeba", "list_landmarks_celeba", "list_landmarks_align_celeba"):
        (tmp_path / f"{name}.txt").unlink()
    assert read(tmp_path).boxes.tolist() == [[0, 0, *SIZE]] * 4  # attributes fit any copy of the images


def test_few_missing_images_are_looked_up_twice(tmp_path, monkeypatch):
    make_celeba(tmp_path)
    lines = [f"{i:06}.jpg 1 2 3 4 5 6 7 8 9 10\n" for i in range(10, 60)]
    for file in tmp_path.glob("*.txt"):
        file.unlink()
    (tmp_path / "list_landmarks_align_celeba.txt").write_text("".join(lines))
    calls = []
    read_sizes = celeba.read_image_sizes
    monkeypatch.setattr(celeba, "read_image_sizes", lambda *a, **o: calls.append(a) or read_sizes(*a, **o))
    assert read(tmp_path, policy={"missing_image": "keep"}).num_images == 50
    assert len(calls) == 20


def test_kaggle_tables_give_same_result(aligned, tmp_path):
    expected = read(aligned)
    for file in tmp_path.glob("list_*.txt"):
        lines = [",".join(line.split()) for line in file.read_text().splitlines()]
        if lines[0] == "4":
            lines = lines[1:]
            lines[0] = f"image_id,{lines[0].removeprefix('image_id,')}"
        else:
            lines.insert(0, "image_id,partition")
        file.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        file.unlink()
    table = read(aligned)
    np.testing.assert_array_equal(table.keypoints, expected.keypoints)
    assert attribute_values(table, "Smiling") == attribute_values(expected, "Smiling")
    assert table.report.counts == expected.report.counts
    assert read(aligned, "val").num_images == 1


def test_lists_are_read_from_authors_folders(aligned, tmp_path):
    for folder in ("set/Anno", "set/Eval"):
        (tmp_path / folder).mkdir(parents=True)
    for file in tmp_path.glob("*.txt"):
        folder = "Eval" if "partition" in file.name else "Anno"
        shutil.move(file, tmp_path / "set" / folder / file.name)
    assert read(aligned, "train", annotation_dir="set").num_images == 2
    with pytest.raises(AnnotationError, match=r"annotation_dir='\.' and its folder Anno have none of"):
        read(aligned)


def test_values_missing_in_a_list_are_absent_and_counted(aligned, tmp_path):
    (tmp_path / "list_attr_celeba.txt").write_text("2\nBald Smiling\n000001.jpg -1 1\n000003.jpg 1 1\n")
    (tmp_path / "list_landmarks_align_celeba.txt").write_text("000004.jpg 1 2 3 4 5 6 7 8 9 10\n")
    table = read(aligned)
    assert attribute_values(table, "Bald") == ["no", None, "yes", None]
    assert table.visibility.sum(axis=1).tolist() == [0, 0, 0, 10]
    assert table.report.count("not_listed", "absent") == 4
    assert "'000002.jpg' is not in list_landmarks_align_celeba, list_attr_celeba" in str(table.report)
    (tmp_path / "list_eval_partition.txt").write_text("000001.jpg 0\n000005.jpg 0\n")
    write_image(tmp_path / "img_align_celeba/000005.jpg", (178, 218))
    table = read(aligned, "train")
    assert table.offsets.tolist() == [0, 1, 1]  # nothing is said of the second one
    assert table.report.count("not_listed", "absent") == 5


@pytest.mark.parametrize(
    ("file", "text", "line", "words"),
    [
        ("list_attr_celeba", "000001.jpg -1 1\n", 1, "2 values; columns are not named"),
        ("list_attr_celeba", "4\nBald Bald\n", 2, "'Bald Bald' does not begin with an image; columns are unique"),
        ("list_attr_celeba", "Bald B\x07\n", 1, "columns are unique printable names"),
        ("list_attr_celeba", "Bald Smiling\n000001.jpg -1 0\n", 2, "expected one of -1, 1, got '0'"),
        ("list_attr_celeba", "Bald Smiling\n000001.jpg -1\n", 2, "1 values; columns are Bald Smiling"),
        ("list_attr_celeba", "4\nBald\n000001.jpg 1\n", 1, "the list has 1 images, but its first line says 4"),
        ("list_attr_celeba", "Bald\n000002.jpg 1\n000001.jpg 1\n", 3, "must be sorted by name"),
        ("identity_CelebA", "000001.jpg 1\n000001.jpg 2\n", 2, "must be sorted .* each of them once"),
        ("list_eval_partition", "000001.jpg 3\n", 1, "expected one of 0, 1, 2, got '3'"),
        ("list_landmarks_align_celeba", "000001.jpg 1 2 3\n", 1, "3 values; columns are lefteye_x"),
        ("list_landmarks_align_celeba", f"{POINTS[:-1]}z\n", 1, "does not begin with an image; columns are lefteye_x"),
        ("list_landmarks_align_celeba", "000001.jpg 1 2 3 4 5 6 7 8 9 x\n", 1, "expected number 10 of 10, got 'x'"),
        ("identity_CelebA", "000001.jpg 1\nwhat\n", 2, "'what' does not begin with an image; columns are identity"),
    ],
)
def test_malformed_lists_are_refused_with_line(aligned, tmp_path, file, text, line, words):
    (tmp_path / f"{file}.txt").write_text(text)
    with pytest.raises(AnnotationError, match=rf"{file}\.txt:{line}: .*{words}"):
        read(aligned)
    assert read(aligned, policy={"malformed": "drop"}).report.count("malformed", "drop") >= 1


def test_unknown_split_and_duplicate_list_are_refused(aligned, tmp_path):
    with pytest.raises(AnnotationError, match="unknown split 'valid'; list_eval_partition lists train, val, test"):
        read(aligned, "valid")
    (tmp_path / "Anno").mkdir()
    shutil.copy(tmp_path / "list_attr_celeba.txt", tmp_path / "Anno")
    with pytest.raises(AnnotationError, match=r"'list_attr_celeba\.txt' and 'Anno/list_attr_celeba\.txt' are the same"):
        read(aligned)
    (tmp_path / "list_eval_partition.txt").unlink()
    shutil.rmtree(tmp_path / "Anno")
    with pytest.raises(AnnotationError, match="unknown split 'train'"):
        read(aligned, "train")


def test_paths_do_not_leave_the_root(aligned, tmp_path):
    (tmp_path / "identity_CelebA.txt").write_text("../secret.jpg 1\n")
    with pytest.raises(UnsafePathError, match=r"identity_CelebA\.txt:1"):
        read(aligned)
