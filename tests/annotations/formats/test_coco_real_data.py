"""The COCO reader on the shared real data sets; skipped where they are not."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.annotations.formats import read_annotations, write_annotations
from lit_loader.errors import AnnotationError
from tests.support.any_table import assert_same_table

# file -> images, instances, points, hidden and visible points, as the data's README counts them
MMPOSE = {
    "wflw/test_wflw.json": (2, 4, 98, 4 * 98, 0),
    "300w/test_300w.json": (2, 2, 68, 2 * 68, 0),
    "cofw/test_cofw.json": (2, 2, 29, 15, 43),
    "300vw/anno_300vw.json": (3, 3, 68, 3 * 68, 0),
    "coco/test_coco.json": (4, 14, 17, 17, 164),
    "coco/test_coco_wholebody.json": (4, 14, 17, 17, 164),
}


def read(folder, name, **options):
    return read_annotations("coco", folder, name, use_cache=False, **options)


@pytest.mark.parametrize("name", MMPOSE)
def test_mmpose_samples_have_the_points_of_their_readme(shared_data, tmp_path, name):
    folder = shared_data / "mmpose_samples" / name.partition("/")[0]
    table = read(folder, name.partition("/")[2])
    images, instances, points, hidden, visible = MMPOSE[name]
    assert (table.num_images, table.num_objects, len(table.keypoint_names)) == (images, instances, points)
    counts = np.bincount(table.visibility.ravel(), minlength=3).tolist()
    assert counts == [instances * points - hidden - visible, hidden, visible]
    assert all(table.image_path(i).is_file() for i in range(images))
    assert (table.boxes[:, 2:] > table.boxes[:, :2]).all()
    write_annotations("coco", table, tmp_path, "a.json")
    assert_same_table(read(tmp_path, "a.json", policy={"missing_image": "keep"}), table)


def test_coco_small_counts_equal_its_readme(shared_data):
    table = read(shared_data / "coco_small", "annotations.json", image_dir="images")
    counts = dict(zip(table.class_names, table.class_counts().tolist(), strict=True))
    assert len(counts) == 80
    frequent = {name: count for name, count in counts.items() if count > 1}
    assert frequent == {"bottle": 14, "person": 10, "handbag": 5, "bear": 3}
    assert (int(table.crowd.sum()), int((np.diff(table.offsets) == 0).sum())) == (1, 1)
    people = read(shared_data / "coco_small", "keypoints_annotations.json", image_dir="images")
    assert int((people.visibility > 0).any(axis=1).sum()) == 4
    assert people.keypoint_schema.flip_pairs[0] == (1, 2)


def test_broken_samples_are_refused_with_line_or_reported(shared_data):
    folder = shared_data / "voc_coco_mmdet"
    with pytest.raises(AnnotationError, match=r"coco_sample_color\.json:118: object 5: category_id 3"):
        read(folder, "coco_sample_color.json")
    with pytest.raises(AnnotationError, match=r"coco_sample\.json:3: there is no image 'fake1\.jpg'"):
        read(folder, "coco_sample.json", policy={"unknown_class": "drop"})
    policy = {"missing_image": "keep", "unknown_class": "drop", "degenerate": "keep"}
    table = read(folder, "coco_sample.json", policy=policy)
    assert (table.num_images, table.num_objects, int(table.crowd.sum())) == (4, 7, 1)
    assert table.report.count("unknown_class", "drop") == table.report.count("degenerate", "keep") == 1
    assert 0 in np.diff(table.offsets)
    same = read(folder, "coco_sample_color.json", policy=policy)
    assert (same.num_images, same.num_objects, same.report.count("same_file", "unite")) == (1, 7, 3)
    twice = read(folder, "coco_wrong_format_sample.json", policy=policy)
    assert (twice.num_objects, twice.report.count("duplicate_id", "keep")) == (2, 1)


# folder -> (split, images, objects by class)
DATUMARO = {
    "coco_instances/annotations/instances": (("train", [0, 1, 0]), ("val", [1, 1, 0])),
    "coco_person_keypoints/annotations/person_keypoints": (("train", [0, 1]), ("val", [1, 1])),
    "coco_labels/annotations/labels": (("train", [0, 1]), ("val", [1, 1])),
    "coco_image_info/annotations/image_info": (("train", []), ("val", [])),
}


@pytest.mark.parametrize("name", DATUMARO)
def test_datumaro_coco_sets_are_read(shared_data, name):
    folder, _, stem = name.partition("/")
    root = shared_data / "formats_datumaro/coco_dataset" / folder
    for split, counts in DATUMARO[name]:
        table = read(root, f"{stem}_{split}.json", image_dir=f"images/{split}")
        assert (table.num_images, table.class_counts().tolist()) == (1, counts)
        if folder == "coco_labels":  # labels without boxes are of the whole image
            assert table.boxes.tolist() == [[0, 0, table.widths[0], table.heights[0]]] * table.num_objects
