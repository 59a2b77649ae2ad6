"""``lit-loader eval`` and ``predict`` with the checkpoint of a run."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.datasets import ShapesSource
from lit_loader.errors import BadSamplesWarning
from lit_loader.recipes import LandmarkTask, heatmaps_small
from tests.support.small_app import SMALL, run_app
from tests.support.text_sets import write_image
from tests.support.voc_set import VocSet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, with its folder and its output."""
    folder = tmp_path_factory.mktemp("run")
    result = run_app(folder, "train", *SMALL, f"hydra.run.dir={folder}", "logger=none")
    assert result.code == 0, result.err
    return folder, result.out


def scores(out):
    return re.findall(r"^│ .+ │ [\d.]+ │$", out, re.MULTILINE)


def test_eval_repeats_the_test_of_the_run(app, run):
    folder, printed = run
    result = app("eval", "trust_run=true", f"ckpt_path={folder}/checkpoints/best.ckpt")
    assert scores(result.out) == scores(printed)
    assert len(scores(printed)) == 5
    assert not (result.folder / "checkpoints").exists()


def test_training_can_be_left_out(app, run):
    result = app("train", "train=false", "trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    assert scores(result.out) == scores(run[1])
    assert "waited" not in result.out


@pytest.mark.filterwarnings("ignore:Total length of `list`")
def test_data_with_other_classes_is_refused(app, run, tmp_path):
    voc = VocSet(tmp_path / "voc")
    voc.add("a", ("cat", 1, 2, 30, 40))
    voc.split("test", "a\n")
    words = ["dataset=voc", f"dataset.root={voc.root}", "dataset.train=null", "dataset.val=null", "model=fcos_small"]
    model = [word for word in SMALL if word.startswith(("model", "trainer", "~"))]
    result = app(
        "eval", *words, *model, "trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt", code=1, small=False
    )
    assert "class_names of the checkpoint are ['disc', 'square', 'star'], and of the data ['cat']" in result.err


def test_predictions_are_written(app, run):
    result = app("predict", "trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    (file,) = (result.folder / "predictions").rglob("*.json")
    predictions = json.loads(file.read_text())
    assert isinstance(predictions, list)


def results_by_name(folder):
    results = json.loads((folder / "predictions" / "predictions.json").read_text())
    return [(Path(row["file_name"]).name, row["category_name"], row["score"], *row["bbox"]) for row in results]


def test_images_of_a_folder_get_the_predictions_of_the_data_set(app, run, tmp_path):
    # Size, normalisation and names come from the run; `source` replaces only the dataset.
    words = ["trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt", "datamodule.predict_batch_size=9"]
    expected = results_by_name(app("predict", *words, small=False).folder)
    source = ShapesSource(
        num_images={"train": 16, "val": 8, "test": 8}, image_size=48, class_shares=(0.5, 0.3, 0.2), progress=False
    )
    (table,) = source.tables("test")
    for number in range(len(table)):
        file = tmp_path / "images" / f"part{number // 4}" / table.image_path(number).name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(table.image_path(number), file)
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    words.append(f"source={tmp_path}/images")
    result = app("predict", *words, small=False, code=1)
    assert "broken.png: cannot be identified" in result.err
    assert "datamodule.on_bad_sample=skip skips images that cannot be read" in result.err
    with pytest.warns(BadSamplesWarning, match=r"broken\.png"):
        result = app("predict", *words, "datamodule.on_bad_sample=skip", small=False)
    assert results_by_name(result.folder) == expected
    assert f"1 image could not be read: {result.folder}/bad_samples.jsonl" in result.out
    assert len(list(result.folder.rglob("*.jpg"))) == 8


def test_large_images_are_predicted_in_tiles_by_a_model_of_whole_images(app, run, tmp_path):
    # Four scenes in a row: without an overlap, each is a tile.
    words = ["trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt", f"source={tmp_path}/images"]
    source = ShapesSource(
        num_images={"train": 16, "val": 8, "test": 8}, image_size=48, class_shares=(0.5, 0.3, 0.2), progress=False
    )
    (table,) = source.tables("test")
    (tmp_path / "images").mkdir()
    row = Image.new("RGB", (4 * 48, 48))
    for number in range(4):
        shutil.copy(table.image_path(number), tmp_path / "images" / f"{number}.png")
        row.paste(Image.open(table.image_path(number)), (number * 48, 0))
    tiling = "datamodule.tiling={size: 48, overlap: 0, stages: [predict]}"
    scenes = results_by_name(app("predict", *words, small=False).folder)
    # A scene is not larger than a tile, so tiling changes nothing.
    assert results_by_name(app("predict", *words, tiling, small=False).folder) == scenes
    for number in range(4):
        (tmp_path / "images" / f"{number}.png").unlink()
    row.save(tmp_path / "images" / "row.png")
    result = app("predict", *words, tiling, small=False)
    predictions = results_by_name(result.folder)
    assert "predictions of 4 tiles of 1 image" in result.out + result.err
    offsets = {f"{number}.png": 48 * number for number in range(4)}
    shifted = [("row.png", name, score, x + offsets[file], *box) for file, name, score, x, *box in scenes]
    ends = np.array([(x, x + width) for _, _, _, x, _, width, _ in shifted])
    # Objects that end at a border between scenes may be joined.
    may_be_joined = (np.abs(ends[:, :, None] - np.arange(48, 192, 48)) < 2.1).any(axis=(1, 2))
    expected = [row for row, skip in zip(shifted, may_be_joined, strict=True) if not skip]
    assert len(expected) > 100
    for row in expected:
        differences = [np.abs(np.subtract(row[2:], other[2:])).max() for other in predictions if other[:2] == row[:2]]
        assert min(differences) < 0.01
    assert len(predictions) < len(scenes)


@pytest.fixture
def without_run(run, tmp_path):
    """Overrides for a copy of the checkpoint outside of the folder of its run."""
    shutil.copy(run[0] / "checkpoints" / "best.ckpt", tmp_path / "copy.ckpt")
    words = [word for word in SMALL if not word.startswith(("experiment", "dataset"))]
    return [*words, "model=fcos_small", "model.model.strides=[8]", f"ckpt_path={tmp_path}/copy.ckpt"]


def test_source_needs_no_dataset_without_the_folder_of_a_run(app, without_run, tmp_path):
    write_image(tmp_path / "a.png")
    result = app("predict", *without_run, f"source={tmp_path}/a.png", small=False)
    assert (result.folder / "predictions" / "predictions-pictures" / "a.png.jpg").is_file()
    result = app("predict", *without_run, f"source={tmp_path}/nowhere", code=1, small=False)
    assert f"error: {tmp_path}/nowhere: this file or folder does not exist" in result.err
    assert "Traceback" not in result.err


def test_prediction_format_without_the_task_is_refused_before_images_are_read(app, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    checkpoint = {"hyper_parameters": {"class_names": ["cat", "dog"]}, "state_dict": {}}
    torch.save(checkpoint, tmp_path / "a.ckpt")
    words = ["datamodule=classification", "model=classifier_small", "workers=inline", "trainer=cpu"]
    words += [f"ckpt_path={tmp_path}/a.ckpt", f"source={tmp_path}/a.png", "predict.format=coco"]
    result = app("predict", *words, code=1, small=False)
    assert "predict.format=coco holds objects with boxes" in result.err
    assert result.err.rstrip().endswith("pass predict.format=csv")


def test_folder_of_earlier_predictions_is_refused_in_one_line(app, without_run, tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "out" / "predictions").mkdir(parents=True)
    words = [f"source={tmp_path}/a.png", "predict.format=voc", f"predict.folder={tmp_path}/out"]
    result = app("predict", *without_run, *words, code=1, small=False)
    assert f"{tmp_path}/out/predictions exists, and XML files of other images in it would stay" in result.err
    assert "Traceback" not in result.err


def test_landmarks_of_an_image_are_predicted_for_one_object_that_fills_it(app, tmp_path):
    write_image(tmp_path / "a.png")
    names = {"keypoint_names": ["left", "right"], "class_names": None}
    task = LandmarkTask(partial(heatmaps_small, channels=8, head_channels=8), **names)
    checkpoint = {"hyper_parameters": names, "state_dict": task.state_dict()}
    torch.save(checkpoint | {"pytorch-lightning_version": lightning.__version__}, tmp_path / "a.ckpt")
    words = ["datamodule=landmarks", "model=heatmaps_small", "workers=inline", "trainer=cpu"]
    words += ["model.model.channels=8", "model.model.head_channels=8", "callbacks=none", "~datamodule.sample_unit"]
    result = app("predict", *words, f"ckpt_path={tmp_path}/a.ckpt", f"source={tmp_path}/a.png", small=False)
    assert "datamodule.sample_unit=object: each image is taken as one object that fills it" in result.out
    (row,) = results_by_name(result.folder)
    with Image.open(tmp_path / "a.png") as image:
        assert (*row[:2], *row[-4:]) == ("a.png", "object", 0, 0, *image.size)


def test_overrides_of_the_run_choose_model_and_data(app, run):
    folder, printed = run
    result = app("eval", "trust_run=true", f"ckpt_path={folder}/checkpoints/best.ckpt", small=False)
    assert scores(result.out) == scores(printed)
    assert f"as in {folder}: experiment=shapes" in result.err


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_overrides_of_the_command_replace_those_of_the_run(app, run):
    words = ["trainer.max_epochs=2", "trainer.limit_train_batches=1", "trust_run=true"]
    result = app("train", *words, f"ckpt_path={run[0]}/checkpoints/last.ckpt", small=False)
    assert (result.folder / "checkpoints" / "last.ckpt").exists()
    assert "trainer.max_epochs=1" not in result.err


def test_other_batch_size_is_refused_with_the_override_that_continues(app, run):
    words = ["trust_run=true", f"ckpt_path={run[0]}/checkpoints/last.ckpt", "datamodule.batch_size=8"]
    line = app("train", *words, "trainer.max_epochs=2", code=1, small=False).err.splitlines()[-1]
    assert line.startswith("error: this state does not fit the loader: global_batch=4 in the state, 8 here; ")
    assert line.endswith(", or pass datamodule.resume=same_sample")


def test_run_killed_in_its_first_epoch_leaves_a_checkpoint(app):
    words = ["callbacks.last_checkpoint_in_epoch.every_n_train_steps=1", "trainer.max_steps=2"]
    result = app("train", *words, "callbacks.last_checkpoint=null", "callbacks.model_checkpoint=null")
    checkpoint = torch.load(result.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (0, 2)
