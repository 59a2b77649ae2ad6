"""The reader on the shared real data sets; skipped where they are not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lit_loader.annotations.formats import ReadPolicy, read_annotations, write_annotations
from lit_loader.annotations.formats.voc import voc_image_paths
from lit_loader.errors import AnnotationError

read_voc = partial(read_annotations, "voc", use_cache=False, progress=False)

# images, RBC, WBC, Platelets, as the data's README counts them; two RBC boxes have no area
BCCD = {
    "train": (205, 2382, 214, 209, 1),
    "val": (87, 968, 87, 83, 1),
    "trainval": (292, 3350, 301, 292, 2),
    "test": (72, 805, 71, 69, 0),
    None: (364, 4155, 372, 361, 2),
}
NAMES = ("RBC", "WBC", "Platelets")


@pytest.mark.parametrize("split", list(BCCD))
def test_bccd_counts_equal_its_readme_with_and_without_boxes_that_have_no_area(shared_data, split):
    root = shared_data / "bccd/BCCD"
    images, *counts, degenerate = BCCD[split]
    every = read_voc(root, split or ".", class_names=NAMES, policy=ReadPolicy(degenerate="keep"))
    assert (every.num_images, every.class_counts().tolist()) == (images, counts)
    table = read_voc(root, split or ".", class_names=NAMES)
    counts[0] -= degenerate
    assert (table.num_images, table.class_counts().tolist()) == (images, counts)
    assert table.report.counts == ({("degenerate", "drop"): degenerate} if degenerate else {})


def test_a_voc_image_with_a_wrong_filename_is_found_by_its_id(shared_data):
    voc = shared_data / "voc_coco_mmdet/VOCdevkit"
    table = read_voc(voc / "VOC2012", "test")
    assert (list(table.image_ids), table.class_names) == (["000001"], ("train",))
    assert table.image_path(0).is_file()
    assert table.report.counts == {("wrong_filename", "report"): 1}
    right = read_voc(voc / "VOC2007", "test")
    assert (right.class_names, len(right.report)) == (("dog", "person"), 0)
    np.testing.assert_array_equal(right.boxes, [[48, 240, 195, 371], [8, 12, 352, 498]])


def test_an_image_without_annotation_is_an_error_or_empty(shared_data):
    root = shared_data / "formats_datumaro/voc_dataset/voc_dataset1"
    with pytest.raises(AnnotationError, match=r"test\.txt:1: the XML file of image '2007_000002' does not exist"):
        read_voc(root, "test")
    table = read_voc(root, "test", policy=ReadPolicy(missing_annotation="empty"))
    assert (table.num_images, table.num_objects) == (1, 0)
    train = read_voc(root, "aeroplane_train")
    assert train.class_names == ("cat", "person")
    np.testing.assert_array_equal(train.boxes, [[1, 2, 3, 4], [4, 5, 6, 7]])
    did = ("other", "phoning", "reading", "ridinghorse", "takingphoto", "walking")
    named = {f"<{action}> of <actions>" for action in did}
    named |= {"<part> of an <object>", "<segmented> of an <annotation>"}
    assert train.report.counts == dict.fromkeys(((name, "not read") for name in named), 1)


@pytest.mark.parametrize(
    ("format", "folder", "name", "options"),
    [
        ("imglab", "dlib_faces", "training_with_face_landmarks.xml", {"schema": "face_68"}),
        ("coco", "mmpose_samples/cofw", "test_cofw.json", {}),
        ("coco", "mmpose_samples/coco", "test_coco.json", {"masks": False}),
        ("coco", "coco_small", "annotations.json", {"image_dir": "images", "masks": False}),
        ("image_folder", "sign_digits_cls", "Dataset", {}),
    ],
)
def test_real_sets_of_other_formats_written_as_unified_voc_are_the_same_tables(
    shared_data, tmp_path, format, folder, name, options
):
    quiet = {"split": "all", "use_cache": False, "progress": False}
    table = read_annotations(format, shared_data / folder, name, **options, **quiet)
    losses = write_annotations("voc", table, tmp_path, "all", allow_loss=True, progress=False)
    assert all("ids of" in loss or "areas of" in loss for loss in losses)
    assert bool(losses) == (format == "coco")
    restored = read_voc(tmp_path, "all", policy=ReadPolicy(missing_image="keep"))
    for column in ("boxes", "labels", "offsets", "crowd", "widths", "heights"):
        np.testing.assert_array_equal(getattr(restored, column), getattr(table, column))
    assert restored.class_names == table.class_names
    assert restored.keypoint_schema == table.keypoint_schema
    if table.keypoints is not None:
        np.testing.assert_array_equal(restored.keypoints, table.keypoints)
        np.testing.assert_array_equal(restored.visibility, table.visibility)
    assert list(restored.image_paths) == voc_image_paths(table)
