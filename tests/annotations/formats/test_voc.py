from __future__ import annotations

import time

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.errors import AnnotationError, UnsafePathError


def test_all_annotations_are_read_sorted_by_id(three_images):
    table = three_images.read()
    assert list(table.image_ids) == ["a", "b", "c"]
    assert list(table.image_paths) == ["JPEGImages/a.jpg", "JPEGImages/b.jpg", "JPEGImages/c.jpg"]
    assert table.image_path(1) == three_images.root.resolve() / "JPEGImages/b.jpg"
    assert table.offsets.tolist() == [0, 0, 2, 5]
    assert table.class_names == ("cat", "dog")
    assert table.labels.tolist() == [1, 0, 1, 1, 1]
    assert (table.widths.tolist(), table.heights.tolist()) == ([50, 100, 100], [60, 80, 80])
    assert table.boxes[3].tolist() == [1.5, 2.25, 20, 20]
    assert (table.split, len(table.report)) == (None, 0)


def test_a_split_gives_its_images_in_its_order_and_its_name(three_images):
    three_images.split("train", "\ufeffc\r\n\r\n  b  \r\n")
    table = three_images.read("train")
    assert (list(table.image_ids), table.split) == (["c", "b"], "train")


def test_second_column_of_a_class_file_is_ignored(three_images):
    three_images.add("frame 1")
    three_images.split("dog_train", "a -1\nb  1\nc\t0\nframe 1\n")
    assert list(three_images.read("dog_train").image_ids) == ["a", "b", "c", "frame 1"]


def test_one_based_subtracts_one_from_all_corners(three_images):
    table = three_images.read(one_based=True)
    np.testing.assert_array_equal(table.boxes, three_images.read().boxes - 1)
    assert table.report.counts == {("out_of_image", "keep"): 1}
    assert table.boxes[2].tolist() == [-1, -1, 9, 9]
    assert three_images.read(one_based=True, out_of_image="clip").boxes[2].tolist() == [0, 0, 9, 9]


def test_folders_may_be_named_and_nested(tmp_path, three_images):
    root = tmp_path / "other"
    (root / "deep").mkdir(parents=True)
    (three_images.root / "Annotations").rename(root / "deep/xml")
    (three_images.root / "JPEGImages").rename(root / "deep/0--Images")
    (root / "train.txt").write_text("b\n")
    dirs = {"image_dir": "deep/0--Images", "annotation_dir": "deep/xml", "split_dir": "."}
    table = read_annotations("voc", root, "train", **dirs, use_cache=False)
    assert list(table.image_paths) == ["deep/0--Images/b.jpg"]


def test_filename_chooses_among_several_images(voc):
    voc.add("a", image=".png")
    voc.add("b", image=".png", filename="<filename>b</filename>")
    for name in ("a.jpg", "b.jpg", "a.txt", ".a.png"):
        (voc.root / "JPEGImages" / name).touch()
    table = voc.read(wrong_filename="raise")
    assert list(table.image_paths) == ["JPEGImages/a.png", "JPEGImages/b.jpg"]
    assert table.report.counts == {("several_images", "choose"): 2}


def test_flags_are_read_from_digits_and_words(voc):
    extras = ["", "<difficult>1</difficult>", "<difficult>true</difficult>", "<difficult>Unspecified</difficult>"]
    extras += ["<truncated>1</truncated><occluded>1</occluded>", "<difficult/><occluded>0</occluded>"]
    voc.add("a", *(("x", 1, 1, 5, 5, extra) for extra in extras))
    table = voc.read()
    assert table.difficult.tolist() == [False, True, True, False, False, False]
    assert table.truncated.tolist() == table.occluded.tolist() == [False] * 4 + [True, False]
    assert table.report.counts == {("odd_flag", "false"): 1}
    assert next(iter(table.report)).object_index == 3


@pytest.mark.parametrize("corner", ["<xmin>5.5</xmin>", "<xmin>5</xmin><ymin>6</ymin><xmax>7</xmax><ymax>8</ymax>"])
def test_parts_and_their_boxes_are_not_objects(voc, corner):
    part = f"<part><name>head</name><bndbox>{corner}</bndbox></part>"
    voc.add("a", ("person", 1, 2, 3, 4, part))
    table = voc.read()
    assert (table.class_names, table.boxes.tolist()) == (("person",), [[1, 2, 3, 4]])
    assert table.report.counts == {("<part> of an <object>", "not read"): 1}


def test_pose_is_an_attribute_unless_it_is_unspecified(voc):
    poses = ["Left", "Unspecified", " Frontal ", "", "unspecified"]
    voc.add("a", *(("car", 1, 2, 3, 4, f"<pose>{pose}</pose>") for pose in poses), ("car", 1, 2, 3, 4))
    table = voc.read()
    assert table.attributes["pose"].names == ("Frontal", "Left")
    assert table.attributes["pose"].ids.tolist() == [1, -1, 0, -1, -1, -1]
    assert len(table.report) == 0
    assert dict(voc.read(attributes=False).attributes) == {}


def test_an_attribute_named_pose_is_read_before_the_pose(voc):
    attribute = "<attributes><attribute><name>pose</name><value>up</value></attribute></attributes>"
    voc.add("a", *(("car", 1, 2, 3, 4, f"<pose>{pose}</pose>{attribute}") for pose in ("Left", "up")))
    table = voc.read()
    assert table.attributes["pose"].names == ("up",)
    assert table.report.counts == {("<pose> of an <object>", "not read"): 1}


def test_elements_without_a_column_are_counted_by_name(voc):
    actions = "<actions><walking>1</walking><running>0</running><reading>1</reading></actions>"
    blocks = "<keypoints><point name='a' x='1' y='2'/><dot x='1'/></keypoints><attributes><word>no</word></attributes>"
    more = "<polygon><x1>1</x1></polygon><weather kind='rain'/><empty/><name>cat</name>"
    head = "<segmented>1</segmented><verified>yes</verified>"
    voc.add("a", *[("person", 1, 2, 3, 4, actions, blocks, more)] * 2, before=head)
    voc.add("b", before="<segmented>0</segmented><source><image>flickr</image></source><owner/><path>C:\\b</path>")
    once = ("<segmented> of an <annotation>", "<verified> of an <annotation>")
    twice = ("<walking> of <actions>", "<reading> of <actions>", "<dot> of <keypoints>", "<word> of <attributes>")
    twice += ("<polygon> of an <object>", "<weather> of an <object>", "<name> of an <object>")
    counts = dict.fromkeys(once, 1) | dict.fromkeys(twice, 2)
    assert voc.read().report.counts == {(name, "not read"): count for name, count in counts.items()}


def test_the_first_malformed_file_is_the_one_named_whatever_num_workers(voc):
    for i in range(450):
        voc.add(f"{i:03}")
    for i in (437, 211, 305):
        voc.raw(f"{i:03}", "<annotation>\n<oops")
    for num_workers in (0, 2):
        with pytest.raises(AnnotationError, match=r"211\.xml:2: not well-formed"):
            voc.read(num_workers=num_workers)


@pytest.mark.parametrize("line", ["../../secret", "/etc/passwd", "a/../../b", "..\\b", "../a 1"])
def test_a_split_cannot_name_files_outside_the_root(three_images, line):
    three_images.split("train", f"a\n{line}\n")
    with pytest.raises(UnsafePathError, match=r"train\.txt:2"):
        three_images.read("train")
    three_images.split("train", "a\na\0b\n")
    with pytest.raises(AnnotationError, match=r"train\.txt:2: the line contains a NUL"):
        three_images.read("train")


@pytest.mark.parametrize("split", ["../../Annotations/a", "/etc/passwd"])
def test_the_name_of_a_split_cannot_leave_the_root(three_images, split):
    with pytest.raises((UnsafePathError, AnnotationError)):
        three_images.read(split)


def test_a_filename_that_leaves_the_root_is_reported_and_not_followed(voc):
    voc.add("a", filename="<filename>../../../etc/passwd</filename>")
    table = voc.read()
    assert list(table.image_paths) == ["JPEGImages/a.jpg"]
    assert table.report.count("wrong_filename", "report") == 1


def test_thousands_long_names_end_in_an_error_or_a_report_quickly(voc):
    begin = time.perf_counter()
    voc.add("a", ("n" * 5_000, 1, 1, 2, 2), ("ok", 1, 1, 2, 2), filename=f"<filename>{'f' * 5_000}</filename>")
    with pytest.raises(AnnotationError, match=r"a\.xml:2: object 0: <name> has 5000 characters"):
        voc.read()
    table = voc.read(malformed="drop")
    assert table.class_names == ("ok",)
    assert len(str(table.report)) < 5_000
    voc.split("long", "x" * 100_000 + "\n" + "y/" * 10_000 + "z\n" + "a b " * 50_000 + "\n")
    assert voc.read("long", missing_annotation="drop").num_images == 0
    assert time.perf_counter() - begin < 5


def test_missing_folders_and_splits_say_what_there_is(three_images):
    three_images.split("val", "a\n")
    with pytest.raises(AnnotationError, match=r"train\.txt: the split file cannot be read; splits found there: val"):
        three_images.read("train")
    with pytest.raises(AnnotationError, match=r"the folder 'XML' does not exist.*annotation_dir"):
        three_images.read(annotation_dir="XML")


@pytest.mark.parametrize("class_names", [[], ["a", "a"], [""]])
def test_empty_and_repeated_class_names_are_refused(three_images, class_names):
    with pytest.raises(ValueError, match="must be at least one name, all different, none empty"):
        three_images.read(class_names=class_names)
