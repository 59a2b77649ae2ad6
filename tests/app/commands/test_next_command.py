"""The command that ``convert`` prints to go on with: what stands in it is what was meant."""

from __future__ import annotations

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lit_loader.annotations.formats import read_annotations
from lit_loader.app.commands.next_command import hydra_value, splits_by_stage
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.datamodules import ClassificationDataModule, LandmarkDataModule
from tests.support.face_lists import OPTIONS, write_faces
from tests.support.text_sets import write_image

INLINE = ["workers=inline"]

NAMES = ["cells (1), x=2", "ü", "~me", "it's", "null", "TRUE", "2007", ".5", "1e5", "a\\", "a\\'b", "${x}", "#"]


def overrides(words):
    """Return what Hydra makes of ``KEY=VALUE`` words."""
    parsed = OverridesParser.create().parse_overrides(words)
    assert not any(override.is_sweep_override() for override in parsed)
    config = OmegaConf.create({override.key_or_group: override.value() for override in parsed})
    return {key: config[key] for key in config}


@pytest.mark.parametrize("text", ["new", "/data/a-b_c.d/e", "../up", "a/2007"])
def test_a_plain_path_is_not_quoted(text):
    assert hydra_value(text) == text
    assert overrides([f"k={text}"]) == {"k": text}


@given(st.sampled_from(NAMES) | st.text("ab1\\' ,=[]{}()$.-", max_size=8))
def test_hydra_takes_a_text_for_itself(text):
    assert overrides([f"k={hydra_value(text)}"]) == {"k": text}


@pytest.mark.parametrize("name", ["two words", "a,b", "2007", "é=1 (2)"])
def test_the_folder_and_the_splits_arrive(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_faces(tmp_path / "faces", "train.txt", 4)
    told = command(
        *("convert", "keypoints_txt", "faces", "2012=train.txt", "--to", "voc", "--out", name),
        *("--option", "columns=path points class", "--option", "schema=face_5"),
        *("--writer-option", "image_dir=my images"),
    )
    (line,) = (line for line in told.splitlines() if "lit-loader train" in line)
    program, command_name, *words = shlex.split(line)
    assert (program, command_name) == ("lit-loader", "train")
    assert overrides(words) == {
        "experiment": "landmarks",
        "dataset": "voc",
        "dataset.root": name,
        "dataset.image_dir": "my images",
        "dataset.train": "2012",
        "dataset.val": None,
        "dataset.test": None,
    }


def test_an_option_that_yaml_takes_for_no_text_is_text_where_text_is_asked(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_faces(tmp_path, "train.txt", 2, folder="2007")
    words = ["index", "keypoints_txt", ".", "train.txt", "--option", "columns=path points skip"]
    words += ["--option", "schema=face_5", "--class-names", "yes, no"]
    assert "no     2 in 2 images" in command(*words, "--option", "class_name=no")
    command(*words, "--option", "image_dir=2007", code=1)
    assert "there is no image '2007/2007/" in command.err
    command(*words, "--option", "normalized=maybe", code=2)
    assert "option normalized='maybe' of format 'keypoints_txt' must be bool" in command.err


def commands(out):
    return [shlex.split(line)[2:] for line in out.splitlines() if line.startswith("  lit-loader train ")]


def first_batch(words):
    """Build the data module that the words of a command describe, and return it with its first batch."""
    datamodule = build_datamodule(compose_config(overrides=[*words, "datamodule.batch_size=2", *INLINE]))
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule, next(iter(datamodule.train_dataloader()))


@pytest.mark.parametrize(
    ("names", "train", "val", "test"),
    [
        (["train", "val", "test"], "train", "val", "test"),
        (["val", "train"], "train", "val", "val"),
        (["train"], "train", None, None),
        (["a", "b"], "a", None, None),
        (["val", "a"], "a", "val", "val"),
        (["val", "test"], "val", None, "test"),
        (["test"], "test", None, None),
    ],
)
def test_no_stage_shares_the_split_that_is_trained_on(names, train, val, test):
    assert splits_by_stage(names) == {"train": train, "val": val, "test": test}


def test_the_command_never_tests_on_the_training_set(command, faces, read):
    out = command("index", "keypoints_txt", "faces", "train.txt", *read)
    (words,) = commands(out)
    assert "to hold out training images, add dataset.val_fraction=0.1 dataset.test_fraction=0.1" in out
    datamodule, _ = first_batch(words)
    assert datamodule.first_table(("train",)).num_images
    assert datamodule.first_table(("val", "test")) is None


@pytest.mark.parametrize("copy", ["two.txt", "b/one.txt"])
def test_names_that_the_command_does_not_read_are_told(command, faces, read, copy):
    (faces / "one.txt").write_text((faces / "train.txt").read_text())
    (faces / copy).parent.mkdir(exist_ok=True)
    (faces / copy).write_text((faces / "val.txt").read_text())
    out = command("index", "keypoints_txt", "faces", "one.txt", copy, *read)
    (words,) = commands(out)
    assert "dataset.train=one.txt" in words
    assert f"such as val={copy}" in out
    assert f"trains on one and does not read {copy.removesuffix('.txt') if '/' not in copy else copy};" in out


def test_the_command_for_points_without_mirror_pairs_does_not_flip(command, faces):
    words = ["index", "keypoints_txt", "faces", "train.txt", "--option", "columns=path points class"]
    (command_line,) = commands(command(*words, "--option", "schema=5"))
    assert "hflip" not in " ".join(command_line)
    datamodule, batch = first_batch(command_line)
    assert type(datamodule) is LandmarkDataModule
    assert len(batch.images) == 2


@pytest.mark.parametrize("to", ["voc", "coco", "yolo", "keypoints_txt"])
def test_the_command_after_a_conversion_trains_on_the_new_set(command, faces, read, to):
    words = ["convert", "keypoints_txt", "faces", "train.txt", "val.txt", *read, "--to", to, "--out", "new"]
    if to == "keypoints_txt":
        words += ["--writer-option", "columns=path points class"]
    (found,) = commands(command(*words, "--allow-loss"))
    assert (f"dataset={to}" in found) or {"dataset=files", f"dataset.format={to}"} <= {*found}
    datamodule, batch = first_batch(found)
    assert type(datamodule) is LandmarkDataModule
    assert len(batch.images) == 2


def test_classes_keep_their_ids_in_a_list_that_convert_writes(command, faces, read):
    columns = ["--writer-option", "columns=path points class"]
    ordered = ["--class-names", "calm,sad,angry"]
    words = ["convert", "keypoints_txt", "faces", "train.txt", *read]
    out = command(*words, *ordered, "--to", "keypoints_txt", "--out", "lists", *columns)
    (train_words,) = commands(out)
    assert "dataset.class_names=[calm,sad,angry]" in train_words
    assert "to read them again, pass --class-names calm,sad,angry" in out
    datamodule, _ = first_batch(train_words)
    assert datamodule.class_names == ("calm", "sad", "angry")
    classes = ["calm", "sad", "angry"]
    original = read_annotations("keypoints_txt", faces, "train.txt", class_names=classes, **OPTIONS)
    written = read_annotations("keypoints_txt", "lists", "train.txt", class_names=classes, **OPTIONS)
    assert written.labels.tolist() == original.labels.tolist()
    sorted_out = command(*words, "--to", "keypoints_txt", "--out", "sorted", *columns)
    assert "class-names" not in sorted_out
    assert "class_names" not in sorted_out


def test_the_command_after_an_index_has_its_options_of_each_split(command, faces, read):
    (faces / "images").rename(faces / "pictures")
    (faces / "val").mkdir()
    (faces / "pictures").rename(faces / "val/images")
    (faces / "images").symlink_to("val/images")
    words = ["index", "keypoints_txt", "faces", "train=train.txt", "val=val.txt", *read]
    words += ["--option", "val:image_dir=val", "--policy", "missing_image=drop", "--class-names", "angry,calm"]
    (found,) = commands(command(*words))
    assert "++dataset.stage_options.val.image_dir=val" in found
    datamodule, _ = first_batch(found)
    assert datamodule.class_names == ("angry", "calm")


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("index", ["image_folder", "set", "train"]),
        ("index", ["image_folder", "set/train", "."]),
        ("voc", ["image_folder", "set", "train"]),
    ],
)
def test_images_without_boxes_are_classified(command, tmp_path, monkeypatch, to, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, name in enumerate(("cat", "dog") * 3):
        write_image(tmp_path / f"set/train/{name}/{number}.png")
    out = command("index", *words) if to == "index" else command("convert", *words, "--to", to, "--out", "new")
    (found,) = commands(out)
    datamodule, batch = first_batch(found)
    assert type(datamodule) is ClassificationDataModule
    assert len(batch.images) == 2
    assert datamodule.summaries()[0].sampler == "RandomSampler"
