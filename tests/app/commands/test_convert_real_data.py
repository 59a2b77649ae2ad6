"""``lit-loader convert`` on real lists: every image, object and point arrives in the XML."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats.registry import read_annotations

FOLDERS = (("train", "training"), ("test", "test"))
QUIET = {"use_cache": False, "progress": False}


@pytest.fixture
def convert(command, shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(format_name, root, words):
        return command("convert", format_name, shared_data / root, *shlex.split(words), "--to", "voc", "--out", "xml")

    return run


def num_points_outside(table):
    """Return the number of points outside of their image, by the name of the image."""
    sizes = np.stack([table.widths, table.heights], axis=1)[table.image_of_object()]
    is_outside = ((table.keypoints < 0) | (table.keypoints >= sizes[:, None])).any(axis=-1).sum(axis=1)
    names = [image_id.rpartition("/")[2] for image_id in table.image_ids]
    return {names[row]: int(count) for row, count in zip(table.image_of_object(), is_outside, strict=True) if count}


def test_udacity_faces_keep_their_points_and_images(convert, shared_data, tmp_path):
    names = [f"{split}={folder}_frames_keypoints.csv" for split, folder in FOLDERS]
    options = [f"--option={split}:image_dir={folder}" for split, folder in FOLDERS]
    out = convert("keypoints_csv", "udacity_faces", shlex.join([*names, *options, "--option=schema=face_68"]))
    assert "images: 95" in out  # five of test/ have no row
    for (split, folder), count in zip(FOLDERS, (79, 16), strict=True):
        converted = read_annotations("voc", tmp_path / "xml", split, **QUIET)
        options = {"image_dir": folder, "schema": "face_68", **QUIET}
        name = f"{folder}_frames_keypoints.csv"
        original = read_annotations("keypoints_csv", shared_data / "udacity_faces", name, **options)
        assert converted.num_images == converted.num_objects == count
        assert np.array_equal(converted.keypoints, original.keypoints)
        assert np.array_equal(converted.boxes, original.boxes)
        assert [f"{image_id}.jpg" for image_id in converted.image_ids] == list(original.image_paths)
        with Image.open(converted.image_path(0)) as image:
            assert image.format == "PNG"
            assert image.size == (converted.widths[0], converted.heights[0])
    train = read_annotations("voc", tmp_path / "xml", "train", **QUIET)
    assert num_points_outside(train) == {"Mariana_Ohata_22": 2, "Chris_Cooper_42": 2, "Eliza_Dushku_22": 2}


@pytest.mark.parametrize(
    ("format_name", "root", "words", "num_images", "keypoints_shape"),
    [
        ("imglab", "dlib_faces", "train=testing_with_face_landmarks.xml --option=schema=face_68", 5, (25, 68, 2)),
        ("wflw", ".", "derived_face_txt/list_98pt_rect_attr.txt --option=image_dir=mmpose_samples/wflw", 2, (4, 98, 2)),
        ("pts", ".", "derived_face_txt/300w_pts --option=image_dir=../../mmpose_samples/300w", 2, (2, 68, 2)),
    ],
)
def test_real_lists_convert_completely(convert, tmp_path, format_name, root, words, num_images, keypoints_shape):
    out = convert(format_name, root, words)
    table = read_annotations("voc", tmp_path / "xml", "train", **QUIET)
    assert table.num_images == num_images
    assert table.keypoints.shape == keypoints_shape
    assert ("experiment=unified" in out) is bool(table.attributes)
