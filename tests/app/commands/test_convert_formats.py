"""Every format converts to unified XML that holds the same annotations and images."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from lit_loader.annotations.formats import read_annotations, readers
from tests.support import structured_sets, text_sets
from tests.support.any_table import assert_same_table
from tests.support.text_sets import write_image

QUIET = {"use_cache": False, "progress": False}
CSV_OPTIONS = {"path_column": "", "schema": 2, "class_column": "kind", "box_columns": ["x1", "y1", "x2", "y2"]}
SETS = {  # the function that writes a set, the name to read, and the options of the reader
    "voc": (structured_sets.make_voc, "all", {}),
    "coco": (structured_sets.make_coco, "a.json", {"image_dir": "img"}),
    "keypoints_txt": (
        text_sets.make_keypoints_txt,
        "list.txt",
        {"columns": "path points class attribute:pose", "schema": "face_5"},
    ),
    "keypoints_csv": (text_sets.make_keypoints_csv, "table.csv", {**CSV_OPTIONS, "image_dir": "images"}),
    "retinaface": (text_sets.make_retinaface, "label.txt", {}),
    "widerface": (text_sets.make_widerface, "gt.txt", {"image_dir": "images"}),
    "celeba": (text_sets.make_celeba, "train", {}),
    "wflw": (text_sets.make_wflw, "list.txt", {"image_dir": "images"}),
    "pts": (text_sets.make_pts, "*/annot/*.pts", {"image_dir": "../imgs"}),
    "imglab": (structured_sets.make_imglab, "a.xml", {}),
    "labelme": (structured_sets.make_labelme, "ann/a.json", {}),
    "image_folder": (structured_sets.make_folders, ".", {}),
    "class_list": (structured_sets.make_class_list, "list.txt", {"numbered": True, "class_file": "classes.txt"}),
    "yolo": (text_sets.make_yolo_pose, "train", {}),
    "dota": (text_sets.make_dota, ".", {}),
}


def as_yaml(value):
    return value if isinstance(value, str) else json.dumps(value)


def test_every_format_is_converted_by_a_test():
    assert SETS.keys() == readers().keys()


@pytest.mark.parametrize("format_name", SETS)
def test_conversion_to_voc_keeps_annotations_and_images(command, tmp_path, format_name):
    make_files, name, options = SETS[format_name]
    root = tmp_path / "set"
    root.mkdir()
    make_files(root)
    words = [f"--option={key}={as_yaml(value)}" for key, value in options.items()]
    words += ["--cache-dir", tmp_path / "cache", "--allow-loss"]
    command("convert", format_name, root, f"train={name}", "--to", "voc", "--out", tmp_path / "new", *words)
    original = read_annotations(format_name, root, name, **QUIET, **options)
    converted = read_annotations("voc", tmp_path / "new", "train", **QUIET)
    assert original.num_objects >= 1
    assert not converted.report.counts
    assert converted.attributes.keys() == original.attributes.keys()
    attributes = {name: converted.attributes[name] for name in original.attributes}  # VOC sorts them
    converted_rows = replace(converted, image_ids=original.image_ids, split=original.split, attributes=attributes)
    assert_same_table(converted_rows, original)
    for i in range(original.num_images):
        assert converted.image_path(i).read_bytes() == original.image_path(i).read_bytes()


def test_oriented_boxes_survive_a_chain_of_conversions(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    text_sets.make_dota(tmp_path / "set")
    words = ["--cache-dir", tmp_path / "cache", "--policy", "missing_annotation=empty"]
    # YOLO has no flags and no attributes.
    chain = [("dota", "set", "train=."), ("yolo", "a", "train"), ("voc", "b", "train"), ("dota", "c", "train")]
    for (format_name, folder, name), (to, out, _) in pairwise(chain):
        task = ["--option", "task=obb"] if format_name == "yolo" else []
        loss = ["--allow-loss"] if to == "yolo" else []
        roots = [tmp_path / folder, name, "--to", to, "--out", tmp_path / out]
        command("convert", format_name, *roots, *task, *loss, *words)
        assert "with an oriented box" in command.out
        assert (to == "yolo") == ("options.task=obb" in command.out)
    original = read_annotations("dota", tmp_path / "set", ".", **QUIET)
    last = read_annotations("dota", tmp_path / "c", "train", **QUIET)
    assert last.corners.tobytes() == original.corners.tobytes()
    assert last.boxes.tobytes() == original.boxes.tobytes()
    assert last.labels.tolist() == original.labels.tolist()
    command("convert", "dota", tmp_path / "c", "train", "--to", "coco", "--out", tmp_path / "d", *words, code=1)
    assert "cannot hold 3 oriented boxes" in command.err
    command("check", "dota", tmp_path / "c", "train", *words)
    command("index", "dota", tmp_path / "c", "train", *words)
    assert "3 of 3" in command.out


@pytest.mark.parametrize("out", ["set/new", "link/new", "set/train/new"])
def test_new_folder_in_a_folder_of_classes_is_refused(command, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for name in ("train/cat/a.png", "train/dog/b.png"):
        write_image(tmp_path / "set" / name)
    (tmp_path / "link").symlink_to("set/train")
    words = ["convert", "image_folder", "set", "train", "--to", "voc", "--cache-dir", "cache", "--out"]
    if out == "set/new":
        command(*words, out)
        return
    command(*words, out, code=2)
    assert "where every folder is a class" in command.err
    assert sorted(path.name for path in (tmp_path / "set/train").iterdir()) == ["cat", "dog"]
