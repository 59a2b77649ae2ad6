"""Every format that can be read becomes unified XML that reads as the format does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from lit_loader.annotations.formats import read_annotations, readers
from tests.support.face_lists import OPTIONS, write_faces
from tests.support.structured_sets import labelme_shape

FIVE = [10, 8, 25.5, 9, 17, 14.25, 12, 20, 24, 21]


def image(root, path, size=(60, 50)):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (9, 99, 200)).save(root / path)
    return path


def voc(root):
    image(root, "JPEGImages/sub/a.png")
    (root / "Annotations" / "sub").mkdir(parents=True)
    (root / "Annotations" / "sub" / "a.xml").write_text(
        "<annotation><size><width>60</width><height>50</height></size><object><name>dog</name><difficult>1</difficult>"
        "<bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object></annotation>"
    )
    return ".", {}


def coco(root):
    image(root, "images/a.png")
    thing = {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 30, 40], "iscrowd": 0, "area": 1200}
    person = {"id": 3, "name": "person", "keypoints": ["left_eye", "right_eye"], "skeleton": []}
    thing |= {"keypoints": [5, 6, 2, 0, 0, 0], "num_keypoints": 1}
    images = [{"id": 7, "file_name": "images/a.png", "width": 60, "height": 50}]
    (root / "a.json").write_text(json.dumps({"images": images, "annotations": [thing], "categories": [person]}))
    return "a.json", {}


def keypoints_txt(root):
    write_faces(root, "list.txt", 4)
    return "list.txt", OPTIONS


def keypoints_csv(root):
    image(root, "a.png")
    (root / "list.csv").write_text(f",{','.join(map(str, range(10)))}\na.png,{','.join(map(str, FIVE))}\n")
    return "list.csv", {"schema": "face_5"}


def retinaface(root):
    image(root, "images/a.png")
    points = " ".join(f"{x} {y} 0.0" for x, y in zip(FIVE[::2], FIVE[1::2], strict=True))
    (root / "label.txt").write_text(f"# a.png\n5 5 30 35 {points} 0.9\n")
    return "label.txt", {"image_dir": "images"}


def widerface(root):
    image(root, "images/0--Parade/a.jpg")
    (root / "gt.txt").write_text("0--Parade/a.jpg\n1\n1 2 30 40 2 1 1 1 2 1\n")
    return "gt.txt", {"image_dir": "images"}


def celeba(root):
    image(root, "img_align_celeba/000001.jpg", (178, 218))
    (root / "list_landmarks_align_celeba.txt").write_text(f"000001.jpg {' '.join(map(str, FIVE))}\n")
    (root / "list_attr_celeba.txt").write_text("1\nBald Young\n000001.jpg -1 1\n")
    return ".", {}


def wflw(root):
    image(root, "images/a.png")
    numbers = " ".join(str(10 + i % 37) for i in range(196))
    (root / "list.txt").write_text(f"{numbers} 5 5 48 48 0 1 0 0 1 0 a.png\n")
    return "list.txt", {"image_dir": "images"}


def pts(root):
    image(root, "a.png")
    (root / "a.pts").write_text("version: 1\nn_points: 2\n{\n10.5 20\n30 40\n}\n")
    return "a.pts", {"schema": 2}


def imglab(root):
    image(root, "a.png")
    parts = "<part name='00' x='12' y='13'/><part name='01' x='22' y='23'/>"
    box = f"<box top='10' left='11' width='20' height='21'>{parts}</box>"
    (root / "a.xml").write_text(f"<dataset><images><image file='a.png'>{box}</image></images></dataset>")
    return "a.xml", {}


def labelme(root):
    image(root, "a.png")
    shapes = [
        labelme_shape("rectangle", "cat", [30, 40], [1, 2], group_id=1, flags={"wet": True}),
        labelme_shape("point", "left_eye", [5, 6.5], group_id=1),
        labelme_shape("point", "right_eye", [15, 6.5], group_id=1),
    ]
    document = {"shapes": shapes, "imagePath": "a.png", "imageWidth": 60, "imageHeight": 50}
    (root / "a.json").write_text(json.dumps(document))
    return "a.json", {}


def image_folder(root):
    for name in ("cat", "dog"):
        image(root, f"{name}/a.png")
    return ".", {}


def class_list(root):
    image(root, "images/a.png")
    image(root, "images/b.png")
    (root / "ann.txt").write_text("images/a.png 1\nimages/b.png 0\n")
    return "ann.txt", {}


def yolo(root):
    image(root, "images/train/a.png")
    (root / "labels/train").mkdir(parents=True)
    (root / "labels/train/a.txt").write_text("1 0.5 0.5 0.2 0.4 0.25 0.5 2 0.1 0.1 1\n")
    (root / "data.yaml").write_text("train: images/train\nnames: [cat, dog]\nkpt_shape: [2, 3]\nflip_idx: [1, 0]\n")
    return "train", {}


LISTS = (keypoints_txt, keypoints_csv, retinaface, widerface, celeba, wflw, pts)
WRITTEN = (voc, coco, *LISTS, imglab, labelme, image_folder, class_list, yolo)


def test_every_format_is_here():
    assert {function.__name__ for function in WRITTEN} == set(readers())


@pytest.mark.parametrize("write", WRITTEN, ids=[function.__name__ for function in WRITTEN])
def test_a_set_of_the_format_arrives_whole(command, tmp_path, write):
    root = tmp_path / "set"
    root.mkdir()
    name, options = write(root)
    given = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    given += ["--cache-dir", tmp_path / "cache"]
    given += ["--allow-loss"] if write is coco else []  # of its ids
    command("convert", write.__name__, root, f"train={name}", "--to", "voc", "--out", tmp_path / "new", *given)
    quiet = {"use_cache": False, "progress": False}
    old = read_annotations(write.__name__, root, name, **quiet, **options)
    new = read_annotations("voc", tmp_path / "new", "train", **quiet)
    assert old.num_objects >= 1
    assert not new.report.counts
    for column in ("offsets", "boxes", "labels", "widths", "heights", "difficult", "crowd"):
        assert np.array_equal(getattr(new, column), getattr(old, column)), column
    assert new.class_names == old.class_names
    assert new.keypoint_schema == old.keypoint_schema
    if old.keypoints is not None:
        assert np.array_equal(new.keypoints, old.keypoints)
        assert np.array_equal(new.visibility, old.visibility)
    assert {name: (a.names, a.ids.tolist()) for name, a in new.attributes.items()} == {
        name: (a.names, a.ids.tolist()) for name, a in old.attributes.items()
    }
    for i in range(old.num_images):
        assert new.image_path(i).read_bytes() == old.image_path(i).read_bytes()


@pytest.mark.parametrize("out", ["set/new", "link/new", "set/train/new"])
def test_a_new_folder_among_those_of_the_classes_is_refused(command, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for name in ("train/cat/a.png", "train/dog/b.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "set" / name)
    (tmp_path / "link").symlink_to("set/train")
    words = ["convert", "image_folder", "set", "train", "--to", "voc", "--cache-dir", "cache", "--out"]
    if out == "set/new":
        command(*words, out)
        return
    command(*words, out, code=2)
    assert "where every folder is a class" in command.err
    assert sorted(path.name for path in (tmp_path / "set/train").iterdir()) == ["cat", "dog"]
