"""The example runs as its docstring says, with Hydra's overrides, and explains mistakes."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = [
    "dataset.num_images={train: 40, val: 20, test: 20}",
    "dataset.image_size=48",
    "dataset.class_shares=[0.6,0.3,0.1]",
    "show_progress=false",
    "model.channels=16",
    "model.head_channels=32",
    "model.warmup_steps=1",
    "workers.num_workers=1",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def train(scripts, cache, tmp_path):
    words = ROOT / "examples" / "train.py", f"hydra.run.dir={tmp_path}"
    return partial(scripts.run, *words, cwd=ROOT, env={"XDG_CACHE_HOME": str(cache)})


def test_it_fits_tests_reports_and_draws(train, tmp_path):
    done = train(*SMALL, "trainer.max_epochs=1", "datamodule.batch_size=8")
    assert done.returncode == 0, done.stderr
    for part in ("disc", "star", "AP@50", "arrived", "RandomSampler", "waited", "finished in"):
        assert part in done.stdout
    for picture in ("batch.png", "predictions.png"):
        assert (tmp_path / picture).stat().st_size > 5000
    assert list((tmp_path / "checkpoints").glob("best*.ckpt"))


@pytest.mark.parametrize("sampler", [pytest.param("weighted", marks=pytest.mark.soak), "class_balanced"])
def test_samplers_are_chosen_on_the_command_line(train, sampler):
    done = train(*SMALL, f"sampler={sampler}", "trainer.max_steps=2", "workers.num_workers=0")
    assert done.returncode == 0, done.stderr
    assert {"class_balanced": "ClassBalancedSampler", "weighted": "WeightedRandomSampler"}[
        sampler
    ] in done.stdout


def test_it_runs_on_a_real_voc_set(train, shared_data):
    root = shared_data / "bccd" / "BCCD"
    limits = ["trainer.max_steps=2", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
    small = ["model.channels=16", "model.head_channels=32", "model.min_size=96", "show_progress=false"]
    done = train("experiment=bccd", f"dataset.root={root}", *limits, *small)
    assert done.returncode == 0, done.stderr
    assert "Platelets" in done.stdout


@pytest.mark.parametrize(
    ("override", "told"),
    [
        pytest.param("sampler=nope", "class_balanced", marks=pytest.mark.soak),
        pytest.param(
            "workers.num_workers=two",
            "workers.num_workers='two' should be int or 'auto'",
            marks=pytest.mark.soak,
        ),
        ("datamodule.batchsize=8", "did you mean datamodule.batch_size?"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(train, override, told):
    done = train(override)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_the_groups():
    """In an interpreter of its own, as a user starts it."""
    command = [sys.executable, str(ROOT / "examples" / "train.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0
    for part in ("sampler", "class_balanced", "experiment", "bccd"):
        assert part in done.stdout
