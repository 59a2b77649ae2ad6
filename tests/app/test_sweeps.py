"""Sweeps: a grid and Optuna find the better value, and further ranks can join each job."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from tests.support import app_recorder as recorder
from tests.support.small_app import SMALL

QUICK = ["test=false", "logger=none", "optimized_metric=train/loss", "trainer.limit_val_batches=0"]
NO_VALIDATION = pytest.mark.filterwarnings("ignore:.*could not find the monitored key")


@NO_VALIDATION
@pytest.mark.soak
def test_grid_finds_the_better_of_two_learning_rates(app):
    recorder.seen.clear()
    words = ["+callbacks.recorder._target_=tests.support.app_recorder.Recorder", "trainer.max_epochs=2"]
    result = app("train", "-m", *QUICK, *words, "model.optimizer.lr=1e-7,0.01")
    rows = re.findall(r"model\.optimizer\.lr=(\S+) +│ (\S+)", result.out)
    losses = {float(rate): float(loss) for rate, loss in rows}
    assert losses[0.01] < losses[1e-7]
    # Lightning starts further ranks with these command lines.
    for number, seen in enumerate(recorder.seen):
        assert not {"-m", "--multirun"} & {*seen.words}
        assert seen.words[0].endswith("lit_loader/app/training.py")
        assert "hydra.mode=RUN" in seen.words
        assert f"model.optimizer.lr={(1e-07, 0.01)[number]}" in seen.words
    assert {path.name for path in result.folder.iterdir()} >= {"0", "1"}


@NO_VALIDATION
@pytest.mark.filterwarnings("ignore::DeprecationWarning:optuna", "ignore::FutureWarning:optuna")
@pytest.mark.soak
def test_seeded_search_runs_four_trials_and_returns_the_best(app):
    words = ["hparams_search=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.direction=minimize"]
    run = app("train", *words, *QUICK)
    best = yaml.safe_load((run.folder / "optimization_results.yaml").read_text())
    values = [float(value) for value in re.findall(r"model\.optimizer\.lr=\S+ +│ (\S+)", run.out)]
    assert len(values) == 4
    assert best["best_value"] == pytest.approx(min(values), rel=1e-3)
    assert 1e-4 <= best["best_params"]["model.optimizer.lr"] <= 0.1


EVERY_TASK = {"shapes_landmarks": "NME", "shapes_finish": "macro-F1", "shapes_unified": "finish macro-F1"}
RANKS = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.precision=32-true"]


@pytest.mark.soak
@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize(
    ("sampler", "batching"), [("weighted", "aspect_ratio"), ("class_balanced", "size"), ("repeat_factor", "plain")]
)
def test_two_ranks_fit_and_test_once_each_job(tmp_path, sampler, batching, sweep):
    small = [word for word in SMALL if word != "trainer=cpu"]
    words = [*small, *RANKS, "trainer.sync_batchnorm=false", f"sampler={sampler}", f"batching={batching}"]
    words += ["-m", "seed=1,2"] if sweep else []
    jobs = 2 if sweep else 1
    printed = on_two_ranks(tmp_path, words, jobs=jobs)
    assert printed.count("mAP@50") == jobs


@pytest.mark.soak
@pytest.mark.parametrize("experiment", EVERY_TASK)
def test_experiment_of_every_task_fits_and_tests_on_two_ranks(tmp_path, experiment):
    detection_keys = ("experiment=", "trainer=", "model.model.min_size", "model.model.max_size")
    words = [f"experiment={experiment}", *(word for word in SMALL if not word.startswith(detection_keys))]
    words += [*RANKS, "trainer.sync_batchnorm=false"]  # torch implements it only on GPUs
    words += ["datamodule.drop_last=true"]  # batch normalisation refuses a last batch of one crop
    words += ["model.model.min_size=48"] if experiment == "shapes_unified" else []
    assert EVERY_TASK[experiment] in on_two_ranks(tmp_path, words, jobs=1)


def on_two_ranks(folder, words, *, jobs):
    """Train on two processes as a user starts them, and return the output."""
    program = [sys.executable, "-c", "import sys; from lit_loader.app.commands import main; sys.exit(main())"]
    result = subprocess.run([*program, "train", *words], cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert (result.stdout + result.stderr).count("GLOBAL_RANK: 1, MEMBER: 2/2") == jobs
    assert result.stdout.count("finished in") == jobs
    assert len(list(folder.glob("logs/train/**/checkpoints"))) == jobs == len(list(folder.rglob("checkpoints")))
    return result.stdout
