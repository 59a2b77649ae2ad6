"""``lit-loader index``: the figures of sets, as text and as JSON."""

from __future__ import annotations

import json
import shlex

import pytest
from PIL import Image

from lit_loader.foundation.escaping import printable
from tests.support.face_lists import READ, write_faces


def test_figures_of_the_sets_are_printed(command, faces):
    out = command("index", "keypoints_txt", "faces", "train.txt", "val.txt", "all.txt", *READ)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "train.txt 20 0 20 4 : 1 40 30 0" in lines
    assert "angry 4 in 4 images 2 in 2 images 6 in 6 images" in lines
    assert "objects with points 20 6 30" in lines
    assert "nose 20 / 0 / 0 6 / 0 / 0 30 / 0 / 0" in lines
    assert "20 images are in train.txt and in all.txt, such as 'images/person0_0.png'" in lines
    assert "train.txt: no problems found" in lines
    assert command.err == ""
    assert "\x1b" not in out  # plain in a pipe
    assert all(line == line.rstrip() for line in out.splitlines())
    assert len(list(faces.parent.glob("cache/**/*.arrow"))) == 3


def test_copies_of_images_in_two_sets_are_reported(command, faces):
    first, second, *_ = (line.split()[0] for line in (faces / "train.txt").read_text().splitlines())
    copy = (faces / "val.txt").read_text().split()[0]
    (faces / copy).write_bytes((faces / first).read_bytes())
    (faces / second).write_bytes((faces / first).read_bytes())  # in one set: no copy across sets
    words = ["index", "keypoints_txt", "faces", "train.txt", "val.txt", *READ]
    sentence = "1 images of val.txt are byte-identical copies of images of train.txt"
    assert f"{sentence}, such as {copy!r} of {first!r}; results on val.txt are too good" in command(*words)
    assert len(json.loads(command(*words, "--json"))["copies"]) == 1


def test_json_has_the_figures_of_the_sets(command, faces):
    report = json.loads(command("index", "keypoints_txt", "faces", "a=train.txt", "all.txt", "--json", *READ))
    assert report["sets"]["a"]["images"] == 20
    assert report["sets"]["a"]["classes"] == {
        "angry": {"objects": 4, "images": 4},
        "calm": {"objects": 16, "images": 16},
    }
    assert report["sets"]["a"]["imbalance"] == 4
    assert report["sets"]["a"]["image_size"] == {"width": [40, 40], "height": [30, 30], "unknown": 0}
    assert report["sets"]["a"]["keypoints"]["nose"] == {"visible": 20, "hidden": 0, "absent": 0}
    assert report["shared_images"] == [["a", "all.txt", 20]]


def test_attributes_flags_and_problems_are_printed(command, voc, tmp_path):
    pose = "<truncated>1</truncated><attributes><attribute><name>pose</name><value>{}</value></attribute></attributes>"
    voc.add("a", ("dog", 1, 2, 30, 40, pose.format("up")), ("dog", 5, 5, 5, 9), ("cat", 1, 1, 4, 4))
    voc.add("b", ("dog", 1, 2, 30, 40, pose.format("down")), size=(50, 200))
    voc.add("c")
    voc.split("train", "a\nb\nc\n")
    voc.split("val", "b\n")
    cache = ["--cache-dir", tmp_path / "cache", "--no-progress", "--num-workers", 0]
    out = command("index", "voc", voc.root, "train", "val", *cache)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "train 3 1 3 2 : 1 50 to 100 80 to 200 1" in lines
    assert "pose: down 1 1" in lines
    assert "pose: up 1 0" in lines
    assert "pose: (no value) 1 0" in lines
    assert "truncated 2 1" in lines
    assert "degenerate drop 1" in lines
    assert any("Annotations/a.xml" in line and "has no area" in line for line in lines)
    report = json.loads(command("index", "voc", voc.root, "train", "--json", *cache))["sets"]["train"]
    assert report["attributes"]["pose"] == {"values": {"down": 1, "up": 1}, "objects_without": 1}
    assert report["flags"] == {"truncated": 2}
    assert report["problems"]["counts"] == [["degenerate", "drop", 1]]
    assert report["empty_images"] == 1
    out = command("index", "voc", voc.root, "train", "--policy", "degenerate=keep", *cache)
    assert "degenerate keep 1" in " ".join(out.split())
    out = command("index", "voc", voc.root, "train", "--json", "--class-names", "dog,bird,cat", *cache)
    assert list(json.loads(out)["sets"]["train"]["classes"]) == ["dog", "bird", "cat"]


def test_many_points_are_summarised_in_three_lines(command, tmp_path):
    (tmp_path / "list.txt").write_text("a.png " + " ".join(f"{i} {i + 1}" for i in range(68)) + "\n")
    write_faces(tmp_path, "other.txt", 1, size=(90, 90))
    (tmp_path / "images" / "person0_0.png").rename(tmp_path / "a.png")
    options = ["--option", "columns=path points", "--option", "schema=face_68", "--cache-dir", tmp_path / "c"]
    out = command("index", "keypoints_txt", tmp_path, "list.txt", *options)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    start = lines.index("68 points: objects where a point is visible, hidden, absent; fewest to most")
    assert lines[start + 2 : start + 6] == ["objects with points 1", "visible 1", "hidden 0", "absent 0"]


def test_set_without_objects_is_printed(command, faces):
    (faces / "none.txt").write_text("# nothing\n")
    assert "none.txt" in command("index", "keypoints_txt", faces, "none.txt", "--option", "columns=path class")


def test_names_from_files_reach_a_terminal_as_text(command, faces):
    options = ["--option", "columns=path class", "--option", "separator=;"]
    (faces / "evil.txt").write_bytes(b"images/person0_0.png;\x1b[31mowned\x07\xff[red]x\n")
    out = command("index", "keypoints_txt", faces, "evil.txt", *options)
    assert r"\x1b[31mowned\x07\udcff[red]x" in out
    assert printable("a\tb\x00é\n") == "a\\tb\\x00é\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["points_lst", "faces", "a.txt"], 2, "did you mean 'keypoints_txt'?"),
        (["keypoints_txt", "faces", "train.txt"], 2, "needs the option 'columns'"),
        (["keypoints_txt", "faces", "train.txt", "--option", "colums=path"], 2, "did you mean 'columns'?"),
        (["keypoints_txt", "faces", "train.txt", "--option", "columns=paht"], 2, "paht"),
        (["keypoints_txt", "faces", "train.txt", "--option", "columns"], 2, "must be KEY=VALUE"),
        (["voc", "faces", "train", "--policy", "degenrate=keep"], 2, "did you mean 'degenerate'?"),
        (["voc", "faces", "train", "--policy", "degenerate=maybe"], 2, "must be one of"),
        (["voc", "faces", "train"], 1, "the folder 'Annotations' does not exist"),
        (["keypoints_txt", "faces", "nope.txt", "--option", "columns=path class"], 1, "nope.txt"),
        (["voc", "nope", "train"], 2, "ROOT 'nope' is not a folder"),
        (["voc", "circle", "train"], 2, "ROOT 'circle' is not a folder"),
        (["voc", "faces/train.txt", "train"], 2, "is not a folder"),
        (["keypoints_txt", "faces", "../x.txt", "--option", "columns=path class"], 1, "'..'"),
        (["keypoints_txt", "faces", "train.txt", "--option", "columns=path class"], 1, "train.txt:1"),
    ],
)
def test_mistake_ends_with_one_line_and_its_code(command, faces, words, code, message):
    (faces.parent / "circle").symlink_to("circle")
    command("index", *words, code=code)
    assert message in command.err
    assert command.err.startswith("lit-loader: error: ")
    assert command.err.count("\n") == 1
    assert command.out == ""


def test_error_names_the_option_that_solves_it(command, tmp_path):
    (tmp_path / "train.csv").write_text("path,label,fold\na.jpg,cat,1\n")
    command("index", "class_list", tmp_path, "train.csv", "--option", "separator=,", code=1)
    assert "label_columns must name the labels; pass --option header=true" in command.err


def test_csv_table_is_read_by_the_name_of_its_config(command, tmp_path, monkeypatch):
    Image.new("RGB", (60, 50)).save(tmp_path / "a.jpg")
    (tmp_path / "train.csv").write_text("path,label,xmin,ymin,xmax,ymax\na.jpg,dog,1,2,30,40\n")
    # A folder with the name of a format changes nothing.
    (tmp_path / "csv").mkdir()
    monkeypatch.chdir(tmp_path)
    out = command("index", "csv", tmp_path, "train.csv", "--cache-dir", tmp_path / "cache", "--no-progress")
    assert "dog 1 in 1 images" in " ".join(out.split())


def test_a_folder_alone_is_indexed_by_the_layout_that_is_found(command, voc, tmp_path):
    for split, names in (("train", ("a", "b")), ("val", ("c",))):
        for name in names:
            voc.add(name, ("cat", 1, 2, 30, 40))
        voc.split(split, "\n".join(names))
    found = command("index", voc.root, "--cache-dir", tmp_path / "cache")
    first, words, *figures = found.splitlines()
    assert first == f"{voc.root}: voc (VOC's XML files in Annotations, with the lists train, val of ImageSets/Main)"
    named = command(*shlex.split(words)[1:], "--cache-dir", tmp_path / "cache")
    assert named.splitlines() == figures


def test_sets_named_after_a_folder_are_those_of_its_layout(command, voc, tmp_path):
    voc.add("a", ("dog", 1, 1, 5, 5))
    for name in ("train", "val"):
        voc.split(name, "a\n")
    words = ["--option", "image_dir=JPEGImages", "--policy", "missing_image=drop", "--class-names", "dog,big cat"]
    out = command("index", voc.root, "val", *words, "--cache-dir", tmp_path / "cache")
    assert f"lit-loader index voc {voc.root} val=val {shlex.join(words)}\n" in out
    command("index", voc.root, "train", "voc", code=2)
    assert f"'voc' is none of the sets that {voc.root} has as voc: train, val" in command.err
    assert f"for another set: lit-loader index voc {voc.root} voc" in command.err


def test_a_folder_with_several_layouts_is_indexed_by_the_one_that_is_named(command, voc, tmp_path):
    voc.add("a", ("cat", 1, 2, 30, 40))
    voc.split("train", "a")
    (voc.root / "train.csv").write_text("filename,class,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,8,9\n")
    command("index", voc.root, code=1)
    assert "several layouts fit" in command.err
    assert "--layout NAME" in command.err
    out = command("index", voc.root, "--layout", "voc", "--cache-dir", tmp_path / "cache", "--json")
    assert json.loads(out)["format"] == "voc"


@pytest.mark.parametrize("words", [["voc"], ["voc", "set"], ["voc", "set", "train", "--layout", "voc"]])
def test_an_incomplete_index_is_refused_with_both_ways_to_name_a_set(command, words):
    command("index", *words, code=2)
    assert "FORMAT, ROOT and" in command.err
