"""Checks of real sets report their known defects, and nothing else above a note; skipped where the sets are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations
from lit_loader.inspection import CheckSettings, check_tables
from tests.support.checking import counts_of

READ_ON = {"missing_image": "keep", "unreadable_image": "keep", "unknown_class": "drop", "malformed": "drop"}
CORNERS = ["xmin", "ymin", "xmax", "ymax"]
FACES = {"schema": "face_68"}

# folder -> format, names of the sets with their options, counts of the findings above a note
SETS = {
    "bccd/BCCD": ("voc", {"train": {}, "val": {}, "test": {}}, {"degenerate": 2, "duplicate_box": 7}),
    "bccd": (
        "keypoints_csv",
        {"test.csv": {"class_column": "cell_type", "box_columns": CORNERS, "image_dir": "BCCD/JPEGImages"}},
        {"degenerate": 2, "duplicate_box": 7},
    ),
    "bccd_cells_cls": ("image_folder", {"train": {}, "val": {}, "test": {}}, {}),
    # One photograph has an EXIF orientation, and the sizes are read from the files.
    "sign_digits_cls": ("image_folder", {"Dataset": {}}, {}),
    # Three byte-identical images with two different labels, and one label twice.
    "cls_tree_mmpretrain": (
        "class_list",
        {"ann.txt": {"numbered": True, "class_file": "classes.txt"}},
        {"conflicting_duplicate": 2},
    ),
    "udacity_faces": (
        "keypoints_csv",
        {
            "training_frames_keypoints.csv": FACES | {"image_dir": "training"},
            "test_frames_keypoints.csv": FACES | {"image_dir": "test"},
        },
        {"keypoint_outside": 3},
    ),
    "dlib_faces": ("imglab", {"training_with_face_landmarks.xml": {}, "testing_with_face_landmarks.xml": {}}, {}),
    "widerface_mmdet/WIDERFace": (
        "voc",
        {".": {"image_dir": "WIDER_train/0--Parade", "annotation_dir": "WIDER_train/Annotations"}},
        {},
    ),
    "coco_small": ("coco", {"annotations.json": {"image_dir": "images"}}, {}),
    "mmpose_samples": ("coco", {"coco/test_coco.json": {"image_dir": "coco"}}, {}),
    "voc_coco_mmdet": (
        "coco",
        {"coco_sample.json": {}},
        {"missing_image": 4, "unknown_class": 1, "degenerate": 1, "tiny_box": 1, "duplicate_box": 1},
    ),
}


def read(shared_data, folder):
    format, names, _ = SETS[folder]
    options = {"use_cache": False, "progress": False, "policy": READ_ON}
    return {
        name: read_annotations(format, shared_data / folder, name, **options, **more) for name, more in names.items()
    }


@pytest.mark.parametrize("folder", SETS)
def test_real_set_has_its_known_defects_only(shared_data, folder):
    # Headers are enough for the sizes; decoding every image of every set would take too long here.
    findings = check_tables(read(shared_data, folder), settings=CheckSettings(decode=False), num_workers=0)
    assert counts_of(findings) == SETS[folder][2]


def test_doubled_cells_are_those_of_the_readme(shared_data):
    findings = check_tables(read(shared_data, "bccd/BCCD"), settings=CheckSettings(decode=False), num_workers=0)
    doubled = [finding for finding in findings if finding.kind == "duplicate_box"]
    numbers = sorted(finding.image.partition("_")[2].removesuffix(".jpg") for finding in doubled)
    assert numbers == ["00020", "00100", "00104", "00251", "00284", "00331", "00403"]
    degenerate = [str(finding.place) for finding in findings if finding.kind == "degenerate"]
    assert degenerate == ["Annotations/BloodImage_00343.xml:50", "Annotations/BloodImage_00338.xml:158"]


def test_real_faces_with_exchanged_points_are_found(shared_data):
    tables = read(shared_data, "udacity_faces")
    name, table = next(iter(tables.items()))
    mirror = np.arange(68)
    pairs = np.array(table.flip_pairs)
    mirror[pairs] = pairs[:, ::-1]
    rows = [5, 40]
    points = table.keypoints.copy()
    points[rows] = points[rows][:, mirror]
    tables[name] = replace(table, keypoints=points)
    findings = check_tables(tables, settings=CheckSettings(decode=False), num_workers=0)
    assert counts_of(findings) == {"keypoint_outside": 3, "swapped_points": 2}
    assert sorted(finding.object_row for finding in findings if finding.kind == "swapped_points") == rows


def test_broken_and_odd_images_are_judged_as_training_judges_them(shared_data, tmp_path):
    files = {
        "truncated_jpeg.jpg": False,
        "truncated_image.png": False,
        "broken.png": False,
        "decompression_bomb.gif": False,
        "truncated_exif_dpi.jpg": True,
        "hopper_orientation_6.jpg": True,
        "pil_sample_cmyk.jpg": True,
        "i_trns.png": True,
    }
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).symlink_to(shared_data / "nasty_images/pillow" / name)
    table = read_annotations("image_folder", tmp_path, "images", use_cache=False, progress=False, policy=READ_ON)
    findings = check_tables({"images": table}, num_workers=2, progress=False)
    unreadable = {finding.image.rpartition("/")[2] for finding in findings if finding.kind == "unreadable_image"}
    assert unreadable == {name for name, is_good in files.items() if not is_good}
