"""``lit-loader eval`` and ``predict``: what a checkpoint of a run gives."""

from __future__ import annotations

import json
import re

import pytest
import torch

from tests.small_app import SMALL, run_app
from tests.voc_set import VocSet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, its folder and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    done = run_app(folder, "train", *SMALL, f"hydra.run.dir={folder}", "logger=none")
    assert done.code == 0, done.err
    return folder, done.out


def scores(out):
    return re.findall(r"^│ .+ │ [\d.]+ │$", out, re.MULTILINE)


def test_eval_repeats_the_test_of_the_run(app, run):
    folder, printed = run
    done = app("eval", "trust_run=true", f"ckpt_path={folder}/checkpoints/best.ckpt")
    assert scores(done.out) == scores(printed)
    assert len(scores(printed)) == 5
    assert not (done.folder / "checkpoints").exists()


def test_training_can_be_left_out(app, run):
    done = app("train", "train=false", "trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    assert scores(done.out) == scores(run[1])
    assert "waited" not in done.out


@pytest.mark.filterwarnings("ignore:Total length of `list`")
def test_data_with_other_classes_is_refused(app, run, tmp_path):
    voc = VocSet(tmp_path / "voc")
    voc.add("a", ("cat", 1, 2, 30, 40))
    voc.split("test", "a\n")
    words = [
        "dataset=voc",
        f"dataset.root={voc.root}",
        "dataset.train=null",
        "dataset.val=null",
        "model=fcos_small",
    ]
    model = [word for word in SMALL if word.startswith(("model", "trainer", "~"))]
    done = app(
        "eval",
        *words,
        *model,
        "trust_run=true",
        f"ckpt_path={run[0]}/checkpoints/best.ckpt",
        code=1,
        small=False,
    )
    assert "class_names of the checkpoint are ['disc', 'square', 'star'], and of the data ['cat']" in done.err


def test_predictions_are_written(app, run):
    done = app("predict", "trust_run=true", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    (file,) = (done.folder / "predictions").rglob("*.json")
    found = json.loads(file.read_text())
    assert isinstance(found, list)


def test_the_run_of_the_checkpoint_says_what_model_and_data_it_is_of(app, run):
    folder, printed = run
    done = app("eval", "trust_run=true", f"ckpt_path={folder}/checkpoints/best.ckpt", small=False)
    assert scores(done.out) == scores(printed)
    assert f"as in {folder}: experiment=shapes" in done.err


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_words_given_anew_replace_those_of_the_run(app, run):
    words = [
        "trainer.max_epochs=2",
        "trainer.limit_train_batches=1",
        "trust_run=true",
        f"ckpt_path={run[0]}/checkpoints/last.ckpt",
    ]
    done = app("train", *words, small=False)
    assert (done.folder / "checkpoints" / "last.ckpt").exists()
    assert "trainer.max_epochs=1" not in done.err


def test_a_run_that_is_killed_in_its_first_epoch_leaves_a_checkpoint(app):
    words = ["callbacks.last_checkpoint_in_epoch.every_n_train_steps=1", "trainer.max_steps=2"]
    done = app("train", *words, "callbacks.last_checkpoint=null", "callbacks.model_checkpoint=null")
    checkpoint = torch.load(done.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (0, 2)
