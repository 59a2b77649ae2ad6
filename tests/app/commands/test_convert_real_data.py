"""``lit-loader convert`` on real lists: everything that is in them arrives in the XML."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats.registry import read_annotations

QUIET = {"use_cache": False, "progress": False}


@pytest.fixture
def convert(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words):
        return command("convert", *words, "--to", "voc", "--out", "xml")

    return run


def test_udacity_faces(convert, shared_data, tmp_path):
    root = shared_data / "udacity_faces"
    lists = {"train": ("training", 79), "test": ("test", 16)}
    words = [f"{split}={folder}_frames_keypoints.csv" for split, (folder, _) in lists.items()]
    options = [f"--option={split}:image_dir={folder}" for split, (folder, _) in lists.items()]
    out = convert("keypoints_csv", root, *words, *options, "--option=schema=face_68", "--option=class_name=face")
    assert "images: 95" in out  # five of test/ have no row
    assert len(list((tmp_path / "xml").rglob("*.jpg"))) == 95
    for split, (folder, count) in lists.items():
        new = read_annotations("voc", tmp_path / "xml", split, **QUIET)
        old = read_annotations(
            "keypoints_csv",
            root,
            f"{folder}_frames_keypoints.csv",
            image_dir=folder,
            schema="face_68",
            class_name="face",
            **QUIET,
        )
        assert new.num_images == new.num_objects == count
        assert new.class_names == ("face",)
        assert np.array_equal(new.keypoints, old.keypoints)
        assert np.array_equal(new.boxes, old.boxes)
        assert new.keypoint_schema == old.keypoint_schema
        assert [f"{image_id}.jpg" for image_id in new.image_ids] == list(old.image_paths)
        with Image.open(new.image_path(0)) as image:
            assert image.format == "PNG"
            assert image.size == (new.widths[0], new.heights[0])
    outside = dict(points_outside(read_annotations("voc", tmp_path / "xml", "train", **QUIET)))
    assert outside == {"Mariana_Ohata_22": 2, "Chris_Cooper_42": 2, "Eliza_Dushku_22": 2}


def points_outside(table):
    for i in range(table.num_images):
        points = table.keypoints[table.objects(i)]
        size = np.array([table.widths[i], table.heights[i]])
        count = int(((points < 0) | (points >= size)).any(axis=-1).sum())
        if count:
            yield table.image_ids[i].rpartition("/")[2], count


def test_dlib_faces(convert, shared_data, tmp_path):
    root = shared_data / "dlib_faces"
    words = [f"{name}={name}ing_with_face_landmarks.xml" for name in ("train", "test")]
    convert("imglab", root, *words, "--option=schema=face_68")
    train, test = (read_annotations("voc", tmp_path / "xml", split, **QUIET) for split in ("train", "test"))
    assert [(t.num_images, t.num_objects) for t in (train, test)] == [(4, 18), (5, 25)]
    assert train.keypoint_schema == test.keypoint_schema
    assert len(train.flip_pairs) == 29
    old = read_annotations("imglab", root, "testing_with_face_landmarks.xml", schema="face_68", **QUIET)
    assert np.array_equal(test.keypoints, old.keypoints)
    assert np.array_equal(test.boxes, old.boxes)


def test_a_wflw_list_with_attributes(convert, shared_data, tmp_path):
    words = ["derived_face_txt/list_98pt_rect_attr.txt", "--option", "image_dir=mmpose_samples/wflw"]
    out = convert("wflw", shared_data, *words)
    assert "experiment=unified" in out
    table = read_annotations("voc", tmp_path / "xml", "train", **QUIET)
    assert (table.num_images, table.num_objects) == (2, 4)
    assert len(table.attributes) == 6
    assert table.keypoints.shape == (4, 98, 2)
    assert sorted(p.name for p in (tmp_path / "xml" / "JPEGImages").iterdir()) == sorted(
        f"{image_id}.jpg" for image_id in table.image_ids
    )


def test_pts_files(convert, shared_data, tmp_path):
    words = ["derived_face_txt/300w_pts", "--option", "image_dir=../../mmpose_samples/300w"]
    convert("pts", shared_data, *words)
    table = read_annotations("voc", tmp_path / "xml", "train", **QUIET)
    assert (table.num_images, table.num_objects, len(table.keypoint_names)) == (2, 2, 68)
