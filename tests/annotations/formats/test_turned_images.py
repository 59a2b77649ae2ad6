"""Images that EXIF turns while the annotations state the size of the pixels as stored."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from lit_loader.annotations.formats import read_annotations
from lit_loader.app.commands import main
from lit_loader.errors import AnnotationError

TURNED = "EXIF turns '{}' from 40x30 to 30x40, and the annotations say 40x30"


def save(path, *, size=(40, 30), orientation=6):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(path, exif=exif)


@pytest.fixture
def photos(voc):
    """A VOC set of a turned and an upright photograph."""
    for image_id, orientation in (("a", 6), ("b", 1)):
        voc.add(image_id, ("dog", 20, 5, 40, 15), size=(40, 30))
        save(voc.root / f"JPEGImages/{image_id}.jpg", orientation=orientation)
    voc.split("train", "a\nb\n")
    return voc.root


@pytest.mark.parametrize("words", [["index"], ["convert", "--to", "yolo"], ["convert", "--to", "keypoints_txt"]])
def test_index_and_convert_refuse_a_turned_image(photos, tmp_path, capsys, words):
    command, *options = words
    if "keypoints_txt" in options:
        options += ["--writer-option", "columns=path class box"]
    out = ["--out", str(tmp_path / "out")] if command == "convert" else []
    assert main([command, "voc", str(photos), "train", *options, *out, "--cache-dir", str(tmp_path / "c")]) == 1
    assert TURNED.format("JPEGImages/a.jpg") in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_coco_images_are_checked_too_and_counted(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        save(tmp_path / name)
    images = [{"id": i, "file_name": f"{name}.jpg", "width": 40, "height": 30} for i, name in enumerate("ab")]
    document = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "dog"}]}
    (tmp_path / "train.json").write_text(json.dumps(document))
    with pytest.raises(AnnotationError, match=r"2 such images.*exif_orientation=False"):
        read_annotations("coco", tmp_path, "train.json", use_cache=False)


@pytest.mark.parametrize(("size", "orientation"), [((30, 40), 6), ((40, 30), 3), ((40, 40), 6), ((30, 40), 1)])
def test_only_sizes_swapped_by_exif_are_refused(voc, size, orientation):
    """The stated size fits the shown image, nothing exchanges the sides, or they are equal."""
    voc.add("a", ("dog", 20, 5, 25, 15), size=(40, 40) if size == (40, 40) else (40, 30))
    save(voc.root / "JPEGImages/a.jpg", size=size, orientation=orientation)
    assert voc.read().report.counts == {}


def test_cached_table_is_stale_when_turned_image_changes(photos, tmp_path):
    def num_turned(action):
        options = {"policy": {"turned_image": action}, "cache_dir": tmp_path / "c"}
        return read_annotations("voc", photos, "train", **options).report.count("turned_image", action)

    assert [num_turned(action) for action in ("keep", "drop") * 2] == [1, 1, 1, 1]
    Image.new("RGB", (40, 30)).save(photos / "JPEGImages/a.jpg")
    assert [num_turned(action) for action in ("keep", "drop")] == [0, 0]
