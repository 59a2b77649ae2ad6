"""The training command that ``convert`` and ``index`` print: Hydra parses it, and it trains on the set."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lit_loader.annotations.formats import read_annotations
from lit_loader.app.commands.next_command import hydra_value, splits_by_stage
from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.datamodules import ClassificationDataModule, LandmarkDataModule
from tests.support.face_lists import OPTIONS, READ, write_faces
from tests.support.text_sets import write_image

NAMES = ["cells (1), x=2", "ü", "~me", "it's", "null", "TRUE", "2007", ".5", "1e5", "a\\", "a\\'b", "${x}", "#"]


def parse(words):
    """Return the values that Hydra parses from ``KEY=VALUE`` words, by key."""
    overrides = OverridesParser.create().parse_overrides(words)
    assert not any(override.is_sweep_override() for override in overrides)
    return dict(OmegaConf.create({override.key_or_group: override.value() for override in overrides}))


def printed_overrides(out):
    """Return the overrides of the training command in an output."""
    (line,) = (line for line in out.splitlines() if line.startswith("  lit-loader train "))
    return shlex.split(line)[2:]


def first_batch(overrides):
    """Build the data module of a training command, and return it with its first batch."""
    words = [*overrides, "datamodule.batch_size=2", "workers=inline"]
    datamodule = build_datamodule(compose_config(overrides=words))
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule, next(iter(datamodule.train_dataloader()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which contains the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("text", ["new", "/data/a-b_c.d/e", "../up", "a/2007"])
def test_plain_path_is_not_quoted(text):
    assert hydra_value(text) == text
    assert parse([f"k={text}"]) == {"k": text}


@given(st.sampled_from(NAMES) | st.text("ab1\\' ,=[]{}()$.-", max_size=8))
def test_hydra_parses_any_text_unchanged(text):
    assert parse([f"k={hydra_value(text)}"]) == {"k": text}


@pytest.mark.parametrize("name", ["two words", "a,b", "2007", "é=1 (2)"])
def test_folder_and_splits_are_parsed_unchanged(command, folder, name):
    write_faces(folder / "faces", "train.txt", 4)
    words = ["convert", "keypoints_txt", "faces", "2012=train.txt", *READ, "--to", "voc", "--out", name]
    out = command(*words, "--writer-option", "image_dir=my images")
    assert parse(printed_overrides(out)) == {
        "experiment": "landmarks",
        "dataset": "voc",
        "dataset.root": name,
        "dataset.image_dir": "my images",
        "dataset.train": "2012",
        "dataset.val": None,
        "dataset.test": None,
    }


def test_text_option_accepts_words_that_yaml_reads_otherwise(command, folder):
    write_faces(folder, "train.txt", 2, folder="2007")
    words = ["index", "keypoints_txt", ".", "train.txt", "--option", "columns=path points skip"]
    words += ["--option", "schema=face_5", "--class-names", "yes, no"]
    assert "no     2 in 2 images" in command(*words, "--option", "class_name=no")
    command(*words, "--option", "image_dir=2007", code=1)
    assert "there is no image '2007/2007/" in command.err
    command(*words, "--option", "normalized=maybe", code=2)
    assert "option normalized='maybe' of format 'keypoints_txt' must be bool" in command.err


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
def test_no_stage_shares_the_training_split(names, train, val, test):
    assert splits_by_stage(names) == {"train": train, "val": val, "test": test}


def test_set_with_one_split_has_no_validation_and_no_test(command, faces):
    out = command("index", "keypoints_txt", "faces", "train.txt", *READ)
    assert "to hold out training images, add dataset.val_fraction=0.1 dataset.test_fraction=0.1" in out
    datamodule, _ = first_batch(printed_overrides(out))
    assert datamodule.first_table(("train",)).num_images
    assert datamodule.first_table(("val", "test")) is None


@pytest.mark.parametrize(("copy", "name"), [("two.txt", "two"), ("b/one.txt", "b/one.txt")])
def test_splits_that_the_command_leaves_out_are_named(command, faces, copy, name):
    (faces / "b").mkdir()
    (faces / "one.txt").write_text((faces / "train.txt").read_text())
    (faces / copy).write_text((faces / "val.txt").read_text())
    out = command("index", "keypoints_txt", "faces", "one.txt", copy, *READ)
    assert "dataset.train=one.txt" in printed_overrides(out)
    assert f"such as val={copy}" in out
    assert f"trains on one and does not read {name};" in out


@pytest.mark.parametrize(("num_images", "samplers"), [(9, ["sampler=random"]), (10, [])])
def test_command_balances_classes_if_check_would_report_their_imbalance(command, folder, num_images, samplers):
    write_image(folder / "rare" / "0.jpg")
    for i in range(num_images):
        write_image(folder / "common" / f"{i}.jpg")
    overrides = printed_overrides(command("index", "image_folder", ".", "train=."))
    assert overrides[0] == "experiment=classification"
    assert [word for word in overrides if word.startswith("sampler=")] == samplers


def test_command_for_points_without_mirror_pairs_does_not_flip(command, faces):
    words = ["index", "keypoints_txt", "faces", "train.txt", "--option", "columns=path points class"]
    overrides = printed_overrides(command(*words, "--option", "schema=5"))
    assert "hflip" not in " ".join(overrides)
    datamodule, batch = first_batch(overrides)
    assert type(datamodule) is LandmarkDataModule
    assert len(batch.images) == 2


@pytest.mark.parametrize("to", ["voc", "coco", "yolo", "keypoints_txt"])
def test_command_after_a_conversion_trains_on_the_new_set(command, faces, to):
    words = ["convert", "keypoints_txt", "faces", "train.txt", "val.txt", *READ, "--to", to, "--out", "new"]
    if to == "keypoints_txt":
        words += ["--writer-option", "columns=path points class"]
    overrides = printed_overrides(command(*words, "--allow-loss"))
    assert (f"dataset={to}" in overrides) or {"dataset=files", f"dataset.format={to}"} <= {*overrides}
    datamodule, batch = first_batch(overrides)
    assert type(datamodule) is LandmarkDataModule
    assert len(batch.images) == 2


def test_classes_keep_their_ids_in_a_written_list(command, faces):
    class_names = ["calm", "sad", "angry"]
    words = ["convert", "keypoints_txt", "faces", "train.txt", *READ, "--to", "keypoints_txt"]
    words += ["--writer-option", "columns=path points class", "--out"]
    out = command(*words, "lists", "--class-names", "calm,sad,angry")
    assert "dataset.class_names=[calm,sad,angry]" in printed_overrides(out)
    assert "to read them again, pass --class-names calm,sad,angry" in out
    datamodule, _ = first_batch(printed_overrides(out))
    assert datamodule.class_names == tuple(class_names)
    original, written = (
        read_annotations("keypoints_txt", root, "train.txt", class_names=class_names, **OPTIONS)
        for root in (faces, "lists")
    )
    assert written.labels.tolist() == original.labels.tolist()
    # Sorted names need no option.
    out = command(*words, "sorted")
    assert "class-names" not in out
    assert "class_names" not in out


def test_command_after_an_index_has_the_options_of_each_split(command, faces):
    (faces / "val").mkdir()
    (faces / "images").rename(faces / "val/images")
    (faces / "images").symlink_to("val/images")
    words = ["index", "keypoints_txt", "faces", "train=train.txt", "val=val.txt", *READ]
    words += ["--option", "val:image_dir=val", "--policy", "missing_image=drop", "--class-names", "angry,calm"]
    overrides = printed_overrides(command(*words))
    assert "++dataset.stage_options.val.image_dir=val" in overrides
    datamodule, _ = first_batch(overrides)
    assert datamodule.class_names == ("angry", "calm")


@pytest.mark.parametrize("name", ["\x1b[31mred\x07", "two\nlines", "it's \x9b1m", "\udcff", "\u202eevil"])
def test_command_for_names_with_control_characters_is_printable_and_right(command, folder, name):
    for number, label in enumerate(("cat", "dog") * 3):
        write_image(folder / name / "train" / label / f"{number}.png")
    for words in ([name], ["image_folder", name, "train"]):
        out = command("index", *words)
        assert all(line.isprintable() for line in out.splitlines())
        line = out[out.index("next:\n") :].splitlines()[1]
        # A shell reads the line as a user pastes it.
        shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], stdout=subprocess.PIPE, check=True)
        pasted = shell.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
        assert pasted[:2] == ["lit-loader", "train"]
        assert parse(pasted[2:])["dataset.root"] == name
        datamodule, _ = first_batch(pasted[2:])
        assert datamodule.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    "words",
    [
        ["index", "image_folder", "set", "train"],
        ["index", "image_folder", "set/train", "."],
        ["convert", "image_folder", "set", "train", "--to", "voc", "--out", "new"],
    ],
)
def test_images_without_boxes_are_classified(command, folder, words):
    for number, name in enumerate(("cat", "dog") * 3):
        write_image(folder / f"set/train/{name}/{number}.png")
    datamodule, batch = first_batch(printed_overrides(command(*words)))
    assert type(datamodule) is ClassificationDataModule
    assert len(batch.images) == 2
    assert datamodule.summaries()[0].sampler == "RandomSampler"
