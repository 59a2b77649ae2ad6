"""The example apps run as their docstrings say, on the embedded set and on a real one."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from lit_loader.app.commands import main
from tests.support.small_app import SMALL, in_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Run an example in the test's folder, and return its output."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [str(ROOT / "examples" / name), *words])
        result = in_folder(tmp_path, lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
        assert result.code is None, result.err
        return result.out

    return run


def test_examples_train_and_test_a_checkpoint(example, tmp_path):
    printed = example("train.py", *SMALL, "sampler=class_balanced", "logger=none", f"hydra.run.dir={tmp_path}/run")
    for part in ("disc", "AP@50", "arrived", "ClassBalancedSampler", "waited", "finished in"):
        assert part in printed
    tested = example("eval.py", *SMALL, f"ckpt_path={tmp_path}/run/checkpoints/best.ckpt", "logger=none")
    scores = re.findall(r"^│ mAP.*$", printed, re.MULTILINE)
    assert re.findall(r"^│ mAP.*$", tested, re.MULTILINE) == scores != []


LIMITS = ["trainer=cpu", "trainer.max_steps=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
LIMITS += ["model.model.channels=16", "model.model.head_channels=32", "trainer.enable_progress_bar=false"]
LIMITS += ["~callbacks.rich_progress", "workers=inline", "logger=none"]
UNTESTED = pytest.mark.filterwarnings(
    "ignore:.*could not find the monitored key",
    "ignore:The number of training batches",
    "ignore:Total length of `list`",
)


@UNTESTED
def test_detector_trains_on_a_real_voc_set(example, shared_data):
    root = shared_data / "bccd" / "BCCD"
    printed = example("train.py", "experiment=bccd", f"dataset.root={root}", *LIMITS, "model.model.min_size=96")
    assert "Platelets" in printed


@UNTESTED
@pytest.mark.soak
@pytest.mark.parametrize(
    ("root", "words", "overrides"),
    [
        (
            "udacity_faces",
            "keypoints_csv train=training_frames_keypoints.csv test=test_frames_keypoints.csv --hold-out val=0.15 "
            "--option class_name=face --option train:image_dir=training --option test:image_dir=test",
            [],
        ),
        (
            "dlib_faces",
            "imglab train=training_with_face_landmarks.xml test=testing_with_face_landmarks.xml",
            ["dataset.val=null"],
        ),
    ],
)
def test_landmarks_train_on_converted_real_faces(example, shared_data, tmp_path, monkeypatch, root, words, overrides):
    monkeypatch.chdir(tmp_path)
    format_name, *names = shlex.split(words)
    options = ["--to", "voc", "--out", "faces-xml", "--option", "schema=face_68"]
    assert main(["convert", format_name, str(shared_data / root), *names, *options]) == 0
    overrides = ["experiment=faces", "dataset.root=faces-xml", "datamodule.train_transforms.size=32", *overrides]
    assert "NME" in example("train.py", *overrides, *LIMITS)
