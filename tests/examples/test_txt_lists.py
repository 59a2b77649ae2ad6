"""Text lists become one XML set that trains boxes, points, classes and attributes.

The steps are the same as for a user: a script that writes lists, ``lit-loader convert``, ``lit-loader train``.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import yaml

from lit_loader.annotations import KeypointSchema
from lit_loader.annotations.formats import read_annotations
from lit_loader.app.commands.main import main

SCRIPT = Path(__file__).parents[2] / "examples" / "txt_lists.py"
TRAIN = [
    "experiment=unified",
    "dataset=voc",
    "dataset.root=shapes-xml",
    "model.model._target_=torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn",
    "model.model.min_size=64",
    "model.model.max_size=96",
    "model.model.box_detections_per_img=10",
    "model.weights=null",
    "trainer=cpu",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "workers.num_workers=0",
    "hydra.run.dir=run",
    "callbacks=[default,pictures]",
]


@pytest.fixture
def lists(tmp_path, monkeypatch, capsys):
    """Write a folder of lists, and return the printed command that converts it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    counts = ["--train", "8", "--val", "4", "--test", "4"]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "shapes-txt", *counts])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    (command,) = re.findall(r"^next: lit-loader (.*)$", capsys.readouterr().out, re.MULTILINE)
    return shlex.split(command)


def test_xml_set_has_the_objects_of_the_lists(lists, tmp_path):
    assert main(lists) == 0
    options = dict(word.split("=", 1) for word in lists if word.startswith(("columns=", "schema=")))
    options["schema"] = KeypointSchema(**yaml.safe_load(options["schema"]))
    original = read_annotations("keypoints_txt", tmp_path / "shapes-txt", "train.txt", image_dir="images", **options)
    converted = read_annotations("voc", tmp_path / "shapes-xml", "train")
    assert (converted.num_images, converted.num_objects) == (8, original.num_objects)
    assert converted.keypoint_names == original.keypoint_names
    assert set(converted.class_names) == set(original.class_names)
    assert set(converted.attributes) == {"finish"}


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.soak
def test_xml_set_trains_all_tasks_on_a_torchvision_backbone(lists, tmp_path, capsys):
    assert main(lists) == 0
    capsys.readouterr()
    assert main(["train", *TRAIN]) == 0
    out = capsys.readouterr().out
    for part in ("mAP@50", "NME", "finish macro-F1", "finish: recall", "objects missed", "star", "hollow"):
        assert part in out
    assert list((tmp_path / "run").rglob("*.ckpt"))
    (report,) = (tmp_path / "run").rglob("class_report.png")
    assert report.stat().st_size > 5000
