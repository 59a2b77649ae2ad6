"""The command that ``convert`` prints to go on with: what stands in it is what was meant."""

from __future__ import annotations

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lit_loader.cli.convert import _hydra_text
from tests.face_lists import write_faces

NAMES = [
    "cells (1), x=2",
    "ü",
    "~me",
    "it's",
    "null",
    "TRUE",
    "2007",
    ".5",
    "1e5",
    "a\\",
    "a\\'b",
    "${x}",
    "#",
]


def overrides(words):
    """Return what Hydra makes of ``KEY=VALUE`` words."""
    parsed = OverridesParser.create().parse_overrides(words)
    assert not any(override.is_sweep_override() for override in parsed)
    config = OmegaConf.create({override.key_or_group: override.value() for override in parsed})
    return {key: config[key] for key in config}


@pytest.mark.parametrize("text", ["new", "/data/a-b_c.d/e", "../up", "a/2007"])
def test_a_plain_path_is_not_quoted(text):
    assert _hydra_text(text) == text
    assert overrides([f"k={text}"]) == {"k": text}


@given(st.sampled_from(NAMES) | st.text("ab1\\' ,=[]{}()$.-", max_size=8))
def test_hydra_takes_a_text_for_itself(text):
    assert overrides([f"k={_hydra_text(text)}"]) == {"k": text}


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
    (line,) = (line for line in told.splitlines() if "examples/train.py" in line)
    python, script, *words = shlex.split(line)
    assert (python, script) == ("python", "examples/train.py")
    assert overrides(words) == {
        "experiment": "landmarks",
        "dataset": "voc",
        "dataset.root": name,
        "dataset.image_dir": "my images",
        "dataset.train": "2012",
        "dataset.val": None,
        "dataset.test": "2012",
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
    assert "option normalized='maybe' of format 'keypoints_txt' must be true or false" in command.err
