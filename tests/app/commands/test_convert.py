"""``lit-loader convert`` writes a complete folder with the same annotations, or none."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations.formats.registry import read_annotations
from lit_loader.app.commands import output_folder
from lit_loader.app.commands.output_folder import RECORD
from tests.support.face_lists import OPTIONS, write_faces

TO_VOC = ["--to", "voc", "--out", "new"]


def files(folder):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def voc_of(folder, split, **options):
    return read_annotations("voc", folder, split, use_cache=False, progress=False, **options)


def list_of(folder, name, **options):
    quiet = {"use_cache": False, "progress": False}
    return read_annotations("keypoints_txt", folder, name, **quiet, **(options or OPTIONS))


def same_objects(a, b):
    assert a.class_names == b.class_names
    assert a.offsets.tolist() == b.offsets.tolist()
    assert a.widths.tolist() == b.widths.tolist()
    assert a.heights.tolist() == b.heights.tolist()
    assert np.array_equal(a.boxes, b.boxes)
    assert np.array_equal(a.labels, b.labels)
    assert np.array_equal(a.keypoints, b.keypoints)
    assert np.array_equal(a.visibility, b.visibility)
    assert a.keypoint_schema == b.keypoint_schema
    assert {name: (v.names, v.ids.tolist()) for name, v in a.attributes.items()} == {
        name: (v.names, v.ids.tolist()) for name, v in b.attributes.items()
    }


def test_lists_become_a_voc_folder_that_says_the_same(command, faces, read, tmp_path):
    out = command("convert", "keypoints_txt", "faces", "train.txt", "val=val.txt", *TO_VOC, *read)
    new = tmp_path / "new"
    for split, name in (("train", "train.txt"), ("val", "val.txt")):
        converted, original = voc_of(new, split), list_of(faces, name)
        same_objects(converted, original)
        assert not converted.report.counts
        assert [f"images/{image_id}.png" for image_id in converted.image_ids] == list(original.image_paths)
        for i in range(converted.num_images):
            assert converted.image_path(i).read_bytes() == original.image_path(i).read_bytes()
            assert converted.image_path(i).samefile(original.image_path(i))  # linked
    assert "images: 26 linked" in out
    command_line = "lit-loader train experiment=landmarks dataset=voc dataset.root=new dataset.test=val"
    assert f"  {command_line}\n" in out
    assert "no split is named test; --hold-out test=0.1 takes images from train" in out
    assert "nose" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "faces", "new"]
    assert oct(new.stat().st_mode)[-3:] == "755"


@pytest.mark.parametrize("how", ["copy", "none"])
def test_images_are_copied_or_left(command, faces, read, tmp_path, how):
    out = command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, "--images", how)
    images = list((tmp_path / "new").rglob("*.png"))
    assert len(images) == (20 if how == "copy" else 0)
    assert all(os.stat(path).st_nlink == 1 for path in images)
    assert ("images: 20 copied" if how == "copy" else "they belong at JPEGImages/person0_0.png") in out


def test_images_are_copied_where_they_cannot_be_linked(command, faces, read, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(output_folder.os, "link", refuse)
    assert "images: 20 copied" in command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read)


def test_sub_folders_stay_in_the_ids(command, faces, read, tmp_path):
    write_faces(faces, "exam.txt", 3, folder="exam/deep")
    command("convert", "keypoints_txt", "faces", "train.txt", "test=exam.txt", *TO_VOC, *read)
    assert voc_of(tmp_path / "new", "test").image_ids[0] == "exam/deep/person0_0"
    assert voc_of(tmp_path / "new", "train").image_ids[0] == "images/person0_0"
    same_objects(voc_of(tmp_path / "new", "test"), list_of(faces, "exam.txt"))


def test_the_folders_of_voc_may_have_other_names(command, faces, read, tmp_path):
    names = ["--writer-option", "image_dir=a/pictures", "--writer-option", "annotation_dir=xml"]
    out = command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, *names)
    table = voc_of(tmp_path / "new", "train", image_dir="a/pictures", annotation_dir="xml")
    assert table.image_paths[0] == "a/pictures/person0_0.png"
    same_objects(table, list_of(faces, "train.txt"))
    assert "dataset.image_dir=a/pictures dataset.annotation_dir=xml" in out
    words = ["convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, "--overwrite", "--writer-option"]
    command(*words, "image_dir=../out", code=1)
    assert "'..'" in command.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "faces", "new"]


def test_held_out_splits_are_stratified_and_by_group(command, faces, read, tmp_path):
    words = ["convert", "keypoints_txt", "faces", "all.txt", *TO_VOC, *read]
    held = ["--hold-out", "val=0.2", "--hold-out", "test=0.1"]
    command(*words, *held, "--group-pattern", r"person(\d+)_")
    tables = {split: voc_of(tmp_path / "new", split) for split in ("train", "val", "test")}
    assert sum(table.num_images for table in tables.values()) == 30
    assert all(table.class_counts().min() >= 1 for table in tables.values())
    people = [{image_id.split("_")[0] for image_id in table.image_ids} for table in tables.values()]
    assert sum(map(len, people)) == len(set().union(*people)) == 15
    command(*words, *held, "--seed", 3, "--overwrite")
    assert list(voc_of(tmp_path / "new", "val").image_ids) != list(tables["val"].image_ids)
    assert "--hold-out" not in command.out


def test_a_group_in_two_lists_is_refused(command, faces, read):
    words = ["convert", "keypoints_txt", "faces", "train.txt", "val=all.txt", *TO_VOC, *read]
    command(*words, "--group-pattern", r"person(\d+)_", code=1)
    assert "10 groups of" in command.err
    command(*words, "--group-pattern", "person", code=2)
    assert "has no group" in command.err


@pytest.mark.parametrize("to", ["voc", "yolo"])
def test_an_image_may_be_in_two_splits_with_the_same_objects_only(command, faces, read, tmp_path, to):
    words = ["convert", "keypoints_txt", "faces", "train.txt", "val=all.txt", *TO_VOC, *read]
    words[words.index("voc")] = to
    command(*words, "--allow-loss")
    new = functools.partial(read_annotations, to, tmp_path / "new", "val", use_cache=False, progress=False)
    assert new().num_images == 30
    text = (faces / "all.txt").read_text().replace("25.5", "26.5", 1)
    (faces / "all.txt").write_text(text)
    command(*words, "--allow-loss", "--overwrite", code=1)
    assert "'images/person0_0.png' has different objects in train and in val" in command.err
    assert new().num_images == 30  # the earlier one stands


def test_images_that_would_have_one_id_are_refused(command, faces, read, tmp_path):
    lines = (faces / "train.txt").read_text().splitlines()
    (faces / "images" / "person0_0.jpg").write_bytes((faces / "images" / "person0_0.png").read_bytes())
    (faces / "twins.txt").write_text("\n".join([lines[0], lines[0].replace(".png", ".jpg")]))
    command("convert", "keypoints_txt", "faces", "twins.txt", *TO_VOC, *read, code=1)
    assert "would have the same id; rename one of them" in command.err
    assert not (tmp_path / "new").exists()


def test_lists_come_back_from_a_voc_folder(command, faces, read, tmp_path):
    command("convert", "keypoints_txt", "faces", "train.txt", "val.txt", *TO_VOC, *read)
    back = ["convert", "voc", "new", "train", "val", "--to", "keypoints_txt", "--out", "lists"]
    out = command(*back, "--writer-option", "columns=path points class")
    same_objects(list_of(tmp_path / "lists", "val.txt"), list_of(faces, "val.txt"))
    told = out.strip().splitlines()[-2].strip()
    assert told == (
        "lit-loader train experiment=landmarks dataset=files dataset.format=keypoints_txt dataset.root=lists "
        "dataset.train=train.txt dataset.val=val.txt dataset.test=val.txt "
        "'++dataset.options.columns='\"'\"'path points class'\"'\"'' ++dataset.options.schema=face_5"
    )


def test_coco_and_back_gives_the_same_xml(command, faces, read, tmp_path):
    command("convert", "keypoints_txt", "faces", "train.txt", "val.txt", *TO_VOC, *read)
    out = command("convert", "voc", "new", "train", "val", "--to", "coco", "--out", "coco", "--images", "copy")
    lists = ["annotations/train.json", "annotations/val.json"]
    assert "dataset.format=coco dataset.root=coco dataset.train=annotations/train.json" in out
    words = ["convert", "coco", "coco", *lists, "--to", "voc", "--out", "again"]
    command(*words, "--writer-option", "annotation_dir=xml", "--allow-loss")  # of COCO's areas
    for path in (tmp_path / "new" / "Annotations").iterdir():
        text = path.read_text().replace("<folder>Annotations<", "<folder>xml<")
        assert (tmp_path / "again" / "xml" / path.name).read_text() == text
    for split in ("train", "val"):
        name = f"ImageSets/Main/{split}.txt"
        assert (tmp_path / "new" / name).read_text() == (tmp_path / "again" / name).read_text()


def test_losses_are_refused_or_listed(command, faces, read, tmp_path):
    command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read)
    back = ["convert", "voc", "new", "train", "--to", "keypoints_txt", "--out", "lists"]
    command(*back, "--writer-option", "columns=path points", code=1)
    assert "cannot hold classes" in command.err
    assert "--allow-loss" in command.err
    assert not (tmp_path / "lists").exists()
    assert "lost: classes" in command(*back, "--writer-option", "columns=path points", "--allow-loss")
    options = {"columns": "path points", "schema": "face_5"}
    assert list_of(tmp_path / "lists", "train.txt", **options).class_names == ("object",)


def test_a_folder_is_replaced_only_when_it_was_made_here(command, faces, read, tmp_path):
    words = ["convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read]
    command(*words)
    before = files(tmp_path / "new")
    command(*words, code=2)
    assert "already exists; give another folder, or --overwrite" in command.err
    assert files(tmp_path / "new") == before
    command(*words, "--overwrite")
    (tmp_path / "new" / RECORD).rename(tmp_path / "new" / "conversion.json")  # as of another program
    command(*words, "--overwrite", code=2)
    assert "was not written by lit-loader convert" in command.err
    (tmp_path / "file").touch()
    command(*words[:-4], "--out", "file", "--overwrite", *read, code=2)
    assert "is not a folder" in command.err
    (tmp_path / "empty").mkdir()
    command(*words, "--out", "empty", "--overwrite")
    assert json.loads((tmp_path / "empty" / RECORD).read_text())["read"] == {"train": "train.txt"}


@pytest.mark.parametrize("links", [True, False])
def test_overwrite_replaces_its_own_files_and_keeps_those_of_the_user(
    command, faces, read, tmp_path, monkeypatch, links
):
    command("convert", "keypoints_txt", "faces", "all.txt", *TO_VOC, *read)
    new = tmp_path / "new"
    original_files = set(files(new))
    (new / "notes.txt").write_text("mine")
    (new / "Annotations" / "runs").mkdir()
    (new / "Annotations" / "runs" / "a.log").write_text("also mine")
    (new / "elsewhere").symlink_to(faces)
    if not links:
        monkeypatch.setattr(output_folder.os, "link", lambda *_, **__: exec("raise OSError(18, 'cross-device')"))
    for _ in range(2):
        command("convert", "keypoints_txt", "faces", "val=val.txt", *TO_VOC, *read, "--overwrite")
        assert set(files(new)) - original_files == {"ImageSets/Main/val.txt", "notes.txt", "Annotations/runs/a.log"}
        assert voc_of(new, ".").num_images == 6  # no annotation file of the first conversion is left
        assert (new / "elsewhere").readlink() == faces
        assert (new / "notes.txt").read_text() == "mine"


def test_overwrite_needs_to_know_which_files_are_its_own(command, faces, read, tmp_path):
    words = ["convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, "--overwrite"]
    command(*words)
    record = tmp_path / "new" / RECORD
    record.write_text(json.dumps({"from": "keypoints_txt"}))
    original_files = files(tmp_path / "new")
    command(*words, code=2)
    assert "does not list the files that convert wrote" in command.err
    assert files(tmp_path / "new") == original_files
    record.write_text(json.dumps({"files": []}))
    (tmp_path / "new" / "ImageSets" / "Main" / "train.txt" / "mine").parent.unlink()
    (tmp_path / "new" / "ImageSets" / "Main" / "train.txt").mkdir()
    (tmp_path / "new" / "ImageSets" / "Main" / "train.txt" / "mine").touch()
    command(*words, code=2)
    assert "which needs the name of this folder for a file; move" in command.err
    assert (tmp_path / "new" / "ImageSets" / "Main" / "train.txt" / "mine").is_file()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
def test_a_folder_that_cannot_be_replaced_stays_as_it_was(command, faces, read, tmp_path, monkeypatch, error):
    words = ["convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read]
    command(*words)
    before, rename = files(tmp_path / "new"), Path.replace

    def broken(path, target):
        if path.name == "complete":
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", broken)
    command(*words, "--overwrite", code=130 if error is KeyboardInterrupt else 1)
    assert files(tmp_path / "new") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "faces", "new"]


@pytest.mark.parametrize("out", [".", "faces", "faces/images"])
def test_source_of_a_conversion_is_never_replaced(command, faces, read, tmp_path, out):
    for folder in (tmp_path, faces, faces / "images"):
        (folder / RECORD).touch()
    before = files(faces)
    command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, "--out", out, "--overwrite", *read, code=2)
    assert "which is being read" in command.err
    assert files(faces) == before


def test_a_conversion_that_fails_leaves_nothing(command, faces, read, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_folder.shutil, "copyfile", broken)
    command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, "--images", "copy", code=1)
    assert "No space left" in command.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "faces"]


def test_missing_images_are_counted(command, faces, read):
    (faces / "images" / "person0_0.png").unlink()
    words = ["convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read]
    command(*words, code=1)
    assert "train.txt:1" in command.err
    assert "images: 19 linked, 1 missing" in command(*words, "--policy", "missing_image=keep")


@pytest.mark.parametrize("images", ["hardlink", "copy"])
def test_an_image_behind_a_link_is_taken_itself(command, faces, read, tmp_path, images):
    elsewhere = tmp_path / "elsewhere.png"
    (faces / "images" / "person0_0.png").rename(elsewhere)
    (faces / "images" / "person0_0.png").symlink_to(elsewhere)
    command("convert", "keypoints_txt", "faces", "train.txt", *TO_VOC, *read, "--images", images)
    (placed,) = (tmp_path / "new").rglob("person0_0.png")
    assert not placed.is_symlink()
    assert placed.read_bytes() == elsewhere.read_bytes()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "vox"], "'vox' cannot be written; did you mean 'voc'?"),
        (["--to", "voc", "--writer-option", "anotation_dir=x"], "did you mean 'annotation_dir'?"),
        (["--to", "keypoints_txt"], "needs the option 'columns'"),
        (["--to", "voc", "--hold-out", "val=2"], "each share must be above 0"),
        (["--to", "voc", "--split", "a/b"], "split 'a/b' must be"),
    ],
)
def test_wrong_command_is_refused_before_anything_is_read(command, faces, read, words, told):
    command("convert", "keypoints_txt", "faces", "any.txt", "--out", "new", *read, *words, code=2)
    assert told in command.err
