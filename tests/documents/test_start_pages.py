"""The training scripts of the quick starts run, up to the training itself, and their tables are true."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from lightning.pytorch import Trainer

from lit_loader import ClassificationDataModule, DetectionDataModule, readers
from lit_loader.annotations.formats.keypoints_txt import KeypointsTxtReader
from lit_loader.recipes import ClassificationTask, DetectionTask
from tests.support.documented_sets import make_documented_sets
from tests.support.documents import PAGES, ROOT, blocks

# By page: the pretrained model, a small one instead, and the types that the script trains.
SCRIPTS = {
    "start/detection-set": ("fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_small", DetectionTask, DetectionDataModule),
    "start/class-folders": ("resnet18", "classifier_small", ClassificationTask, ClassificationDataModule),
}


@pytest.mark.parametrize("page", SCRIPTS)
def test_training_scripts_fit_a_task_to_the_data(page, tmp_path, monkeypatch):
    model, small, task_type, datamodule_type = SCRIPTS[page]
    (code,) = [code for code in blocks(PAGES[page], "python") if code.startswith("# my_")]
    assert model in code
    make_documented_sets(code, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fits = []
    monkeypatch.setattr(Trainer, "fit", lambda trainer, task, datamodule: fits.append((trainer, task, datamodule)))
    script = code.replace(model, small).replace('weights="DEFAULT"', "weights=None")
    exec(compile(script, page, "exec"), {"__name__": "__main__"})
    ((trainer, task, datamodule),) = fits
    assert trainer.max_steps == 100
    assert isinstance(task, task_type)
    assert isinstance(datamodule, datamodule_type)
    assert task.class_names == datamodule.class_names
    images, _ = datamodule.first_batch("train")
    assert len(images) > 1


def test_options_of_lists_are_options_of_the_reader():
    table = PAGES["start/txt-lists"].partition("| Option |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `(\w+)=", table, re.MULTILINE)
    assert len(names) > 4
    assert set(names) <= {field.name for field in fields(KeypointsTxtReader)}


def test_formats_of_lists_exist():
    text = " ".join(PAGES["start/txt-lists"].split())
    sentence = text.partition("have their own formats:")[2].partition("see [Formats]")[0]
    names = re.findall(r"`(\w+)`", sentence)
    assert len(names) == 6
    assert set(names) <= set(readers())


def test_extras_of_the_installation_exist():
    page = PAGES["start/install"].partition("| Extra |")[2].partition("\n\n")[0]
    names = re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)
    extras = set(re.findall(r"`(\w+)`", " ".join(names)))
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert extras == set(re.findall(r"^(\w+) = \[", project.partition("\n[tool")[0], re.MULTILINE))
