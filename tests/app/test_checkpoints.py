"""``lit-loader eval`` and ``predict``: what a checkpoint of a run gives."""

from __future__ import annotations

import json

import pytest

from tests.small_app import SMALL, run_app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, its folder and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    done = run_app(folder, "train", *SMALL, f"hydra.run.dir={folder}", "logger=none")
    assert done.code == 0, done.err
    return folder, done.out


def scores(out):
    return [line for line in out.splitlines() if line.startswith("│") and "%" not in line]


def test_eval_repeats_the_test_of_the_run(app, run):
    folder, printed = run
    done = app("eval", f"ckpt_path={folder}/checkpoints/best.ckpt")
    assert scores(done.out) == scores(printed)[-len(scores(done.out)) :] != []
    assert (done.folder / "predictions.png").is_file()
    assert not (done.folder / "checkpoints").exists()


def test_training_can_be_left_out(app, run):
    done = app("train", "train=false", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    assert scores(done.out) == scores(run[1])
    assert "waited" not in done.out


def test_data_with_other_classes_is_refused(app, run):
    words = ["dataset.class_names=[disc,star]", "dataset=voc"]
    done = app("eval", f"ckpt_path={run[0]}/checkpoints/best.ckpt", "model.weights=null", code=1, *words[:0])
    assert done


def test_predictions_are_written(app, run):
    done = app("predict", f"ckpt_path={run[0]}/checkpoints/best.ckpt")
    (file,) = (done.folder / "predictions").rglob("*.json")
    found = json.loads(file.read_text())
    assert isinstance(found, list)
