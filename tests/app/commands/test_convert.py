"""``lit-loader convert`` writes a complete folder with the same annotations, or none."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lit_loader.annotations.formats.registry import read_annotations
from lit_loader.annotations.layouts import find_layouts
from lit_loader.app.commands import output_folder
from lit_loader.app.commands.output_folder import RECORD
from tests.support.any_table import assert_same_table
from tests.support.face_lists import OPTIONS, READ, write_faces

QUIET = {"use_cache": False, "progress": False}
read_voc = partial(read_annotations, "voc", **QUIET)
read_list = partial(read_annotations, "keypoints_txt", **QUIET)


@pytest.fixture
def convert(command, faces):
    """Convert lists of faces to VOC, into the folder ``new``; further words may override these."""
    return partial(command, "convert", "keypoints_txt", "faces", "--to", "voc", "--out", "new", *READ)


def file_times(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_same_objects(converted, original):
    ids = {"image_ids": original.image_ids, "split": original.split}
    assert_same_table(replace(converted, **ids), original)


def test_lists_become_a_voc_folder_with_the_same_objects(convert, faces, tmp_path):
    out = convert("train.txt", "val=val.txt")
    new = tmp_path / "new"
    for split, name in (("train", "train.txt"), ("val", "val.txt")):
        converted = read_voc(new, split)
        original = read_list(faces, name, **OPTIONS)
        assert_same_objects(converted, original)
        assert not converted.report.counts
        assert [f"images/{image_id}.png" for image_id in converted.image_ids] == list(original.image_paths)
        for i in range(converted.num_images):
            assert converted.image_path(i).samefile(original.image_path(i))  # linked
    assert "images: 26 linked" in out
    next_command = "lit-loader train experiment=landmarks dataset=voc dataset.root=new dataset.test=val"
    assert f"  {next_command}\n" in out
    assert "no split is named test; --hold-out test=0.1 takes images from train" in out
    assert "nose" in out
    assert file_names(tmp_path) == ["cache", "faces", "new"]
    assert oct(new.stat().st_mode)[-3:] == "755"


@pytest.mark.parametrize(
    ("how", "num_images", "summary"),
    [("copy", 20, "images: 20 copied"), ("none", 0, "they belong at JPEGImages/person0_0.png")],
)
def test_images_are_copied_or_left_out_on_request(convert, tmp_path, how, num_images, summary):
    assert summary in convert("train.txt", "--images", how)
    images = list((tmp_path / "new").rglob("*.png"))
    assert len(images) == num_images
    assert all(path.stat().st_nlink == 1 for path in images)


def refuse_links(*_, **__):
    raise OSError(18, "Invalid cross-device link")


def test_images_are_copied_if_they_cannot_be_linked(convert, monkeypatch):
    monkeypatch.setattr(output_folder.os, "link", refuse_links)
    assert "images: 20 copied" in convert("train.txt")


def test_subfolders_are_part_of_the_ids(convert, faces, tmp_path):
    write_faces(faces, "exam.txt", 3, folder="exam/deep")
    convert("train.txt", "test=exam.txt")
    assert read_voc(tmp_path / "new", "test").image_ids[0] == "exam/deep/person0_0"
    assert read_voc(tmp_path / "new", "train").image_ids[0] == "images/person0_0"
    (layout,) = find_layouts(tmp_path / "new")
    assert (layout.format, layout.options) == ("voc", {})
    assert layout.stages == {"train": "train", "test": "test"}
    # A folder of the XML files is not taken for a set, even if the listed files are missing.
    (tmp_path / "new" / "ImageSets" / "Main" / "train.txt").write_text("gone\n")
    (tmp_path / "new" / "ImageSets" / "Main" / "test.txt").write_text("../gone\n")
    assert find_layouts(tmp_path / "new") == []


def test_folders_of_voc_may_have_other_names(convert, command, faces, tmp_path):
    words = ["--writer-option", "image_dir=a/pictures", "--writer-option", "annotation_dir=xml"]
    out = convert("train.txt", *words)
    table = read_voc(tmp_path / "new", "train", image_dir="a/pictures", annotation_dir="xml")
    assert table.image_paths[0] == "a/pictures/person0_0.png"
    assert_same_objects(table, read_list(faces, "train.txt", **OPTIONS))
    assert "dataset.image_dir=a/pictures dataset.annotation_dir=xml" in out
    convert("train.txt", "--overwrite", "--writer-option", "image_dir=../out", code=1)
    assert "'..'" in command.err
    assert file_names(tmp_path) == ["cache", "faces", "new"]


def test_held_out_splits_are_stratified_and_by_group(convert, tmp_path):
    shares = ["--hold-out", "val=0.2", "--hold-out", "test=0.1"]
    convert("all.txt", *shares, "--group-pattern", r"person(\d+)_")
    tables = {split: read_voc(tmp_path / "new", split) for split in ("train", "val", "test")}
    assert sum(table.num_images for table in tables.values()) == 30
    assert all(table.class_counts().min() >= 1 for table in tables.values())
    people = [{image_id.split("_")[0] for image_id in table.image_ids} for table in tables.values()]
    assert sum(map(len, people)) == len(set().union(*people)) == 15
    out = convert("all.txt", *shares, "--seed", 3, "--overwrite")
    assert list(read_voc(tmp_path / "new", "val").image_ids) != list(tables["val"].image_ids)
    assert "--hold-out" not in out


def test_group_in_two_lists_is_refused(convert, command):
    convert("train.txt", "val=all.txt", "--group-pattern", r"person(\d+)_", code=1)
    assert "10 groups of" in command.err
    convert("train.txt", "val=all.txt", "--group-pattern", "person", code=2)
    assert "has no group" in command.err


@pytest.mark.parametrize("to", ["voc", "yolo"])
def test_image_in_two_splits_must_have_the_same_objects(convert, command, faces, tmp_path, to):
    words = ["train.txt", "val=all.txt", "--to", to, "--allow-loss"]
    convert(*words)
    text = (faces / "all.txt").read_text()
    (faces / "all.txt").write_text(text.replace("25.5", "26.5", 1))
    convert(*words, "--overwrite", code=1)
    assert "'images/person0_0.png' has different objects in train and in val" in command.err
    # The earlier folder is unchanged.
    assert read_annotations(to, tmp_path / "new", "val", **QUIET).num_images == 30


def test_images_with_the_same_id_are_refused(convert, command, faces, tmp_path):
    line = (faces / "train.txt").read_text().splitlines()[0]
    (faces / "images" / "person0_0.jpg").write_bytes((faces / "images" / "person0_0.png").read_bytes())
    (faces / "twins.txt").write_text("\n".join([line, line.replace(".png", ".jpg")]))
    convert("twins.txt", code=1)
    assert "would have the same id; rename one of them" in command.err
    assert not (tmp_path / "new").exists()


def test_losses_are_refused_or_listed(convert, command, tmp_path):
    convert("train.txt")
    back = ["convert", "voc", "new", "train", "--to", "keypoints_txt", "--out", "lists"]
    command(*back, "--writer-option", "columns=path points", code=1)
    assert "cannot hold classes" in command.err
    assert "--allow-loss" in command.err
    assert not (tmp_path / "lists").exists()
    assert "lost: classes" in command(*back, "--writer-option", "columns=path points", "--allow-loss")
    table = read_list(tmp_path / "lists", "train.txt", columns="path points", schema="face_5")
    assert table.class_names == ("object",)


def test_only_a_folder_of_an_earlier_conversion_is_replaced(convert, command, tmp_path):
    convert("train.txt")
    times = file_times(tmp_path / "new")
    convert("train.txt", code=2)
    assert "already exists; give another folder, or --overwrite" in command.err
    assert file_times(tmp_path / "new") == times
    convert("train.txt", "--overwrite")
    (tmp_path / "new" / RECORD).rename(tmp_path / "new" / "conversion.json")
    convert("train.txt", "--overwrite", code=2)
    assert "was not written by lit-loader convert" in command.err
    (tmp_path / "file").touch()
    convert("train.txt", "--out", "file", "--overwrite", code=2)
    assert "is not a folder" in command.err
    (tmp_path / "empty").mkdir()
    convert("train.txt", "--out", "empty", "--overwrite")
    assert json.loads((tmp_path / "empty" / RECORD).read_text())["read"] == {"train": "train.txt"}


@pytest.mark.parametrize("has_links", [True, False])
def test_overwrite_keeps_the_files_of_the_user(convert, faces, tmp_path, monkeypatch, has_links):
    convert("all.txt")
    new = tmp_path / "new"
    written_names = set(file_times(new))
    (new / "notes.txt").write_text("mine")
    (new / "Annotations" / "runs").mkdir()
    (new / "Annotations" / "runs" / "a.log").write_text("also mine")
    (new / "elsewhere").symlink_to(faces)
    if not has_links:
        monkeypatch.setattr(output_folder.os, "link", refuse_links)
    for _ in range(2):
        convert("val=val.txt", "--overwrite")
        new_names = set(file_times(new)) - written_names
        assert new_names == {"ImageSets/Main/val.txt", "notes.txt", "Annotations/runs/a.log"}
        assert read_voc(new, ".").num_images == 6  # no annotation file of the first conversion is left
        assert (new / "elsewhere").readlink() == faces
        assert (new / "notes.txt").read_text() == "mine"


def test_overwrite_needs_a_record_of_the_written_files(convert, command, tmp_path):
    convert("train.txt")
    record = tmp_path / "new" / RECORD
    record.write_text(json.dumps({"from": "keypoints_txt"}))
    times = file_times(tmp_path / "new")
    convert("train.txt", "--overwrite", code=2)
    assert "does not list the files that convert wrote" in command.err
    assert file_times(tmp_path / "new") == times
    record.write_text(json.dumps({"files": []}))
    split_list = tmp_path / "new" / "ImageSets" / "Main" / "train.txt"
    split_list.unlink()
    split_list.mkdir()
    (split_list / "mine").touch()
    convert("train.txt", "--overwrite", code=2)
    assert "which needs the name of this folder for a file; move" in command.err
    assert (split_list / "mine").is_file()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (OSError(5, "Input/output error"), 1)])
def test_folder_that_cannot_be_replaced_is_unchanged(convert, tmp_path, monkeypatch, error, code):
    convert("train.txt")
    times = file_times(tmp_path / "new")
    rename = Path.replace

    def fail_at_the_last_rename(path, target):
        if path.name == "complete":
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", fail_at_the_last_rename)
    convert("train.txt", "--overwrite", code=code)
    assert file_times(tmp_path / "new") == times
    assert file_names(tmp_path) == ["cache", "faces", "new"]


@pytest.mark.parametrize("out", [".", "faces", "faces/images"])
def test_source_of_a_conversion_is_never_replaced(convert, command, faces, tmp_path, out):
    for folder in (tmp_path, faces, faces / "images"):
        (folder / RECORD).touch()
    times = file_times(faces)
    convert("train.txt", "--out", out, "--overwrite", code=2)
    assert "which is being read" in command.err
    assert file_times(faces) == times


def test_failed_conversion_leaves_no_folder(convert, command, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_folder.shutil, "copyfile", fail)
    convert("train.txt", "--images", "copy", code=1)
    assert "No space left" in command.err
    assert file_names(tmp_path) == ["cache", "faces"]


def test_missing_images_are_counted(convert, command, faces):
    (faces / "images" / "person0_0.png").unlink()
    convert("train.txt", code=1)
    assert "train.txt:1" in command.err
    assert "images: 19 linked, 1 missing" in convert("train.txt", "--policy", "missing_image=keep")


@pytest.mark.parametrize("how", ["hardlink", "copy"])
def test_image_behind_a_link_is_placed_as_a_file(convert, faces, tmp_path, how):
    elsewhere = tmp_path / "elsewhere.png"
    (faces / "images" / "person0_0.png").rename(elsewhere)
    (faces / "images" / "person0_0.png").symlink_to(elsewhere)
    convert("train.txt", "--images", how)
    (image,) = (tmp_path / "new").rglob("person0_0.png")
    assert not image.is_symlink()
    assert image.read_bytes() == elsewhere.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "vox"], "'vox' cannot be written; did you mean 'voc'?"),
        (["--writer-option", "anotation_dir=x"], "did you mean 'annotation_dir'?"),
        (["--to", "keypoints_txt"], "needs the option 'columns'"),
        (["--hold-out", "val=2"], "each share must be above 0"),
        (["--split", "a/b"], "split 'a/b' must be"),
    ],
)
def test_wrong_command_is_refused_before_anything_is_read(convert, command, words, message):
    convert("any.txt", *words, code=2)
    assert message in command.err
