"""Any sampler with any batching on several ranks, from the command line alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_train import SMALL

ROOT = Path(__file__).parents[2]
RANKS = ["trainer.strategy=ddp", "trainer.devices=2", "trainer.max_epochs=1", "datamodule.batch_size=4"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sampler", "batching"),
    [("weighted", "aspect_ratio"), ("class_balanced", "size"), ("repeat_factor", "plain")],
)
def test_two_ranks_fit_and_test(tmp_path, sampler, batching):
    words = [f"sampler={sampler}", f"batching={batching}", *RANKS, f"hydra.run.dir={tmp_path}"]
    command = [sys.executable, ROOT / "examples" / "train.py", *SMALL, *words]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in done.stdout + done.stderr
    assert "mAP@50" in done.stdout
    assert done.stdout.count("finished in") == 1
