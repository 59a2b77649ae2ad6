"""The example is killed, resumed with other workers, and proves what its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_proves_that_nothing_was_lost(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "resume.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    killed, resumed, unbroken, *proof = done.stdout.splitlines()
    assert killed == "killed:   exit code -9 after 17 steps, last checkpoint at step 15"
    assert resumed.partition(" images ")[2] == unbroken.partition(" images ")[2] != ""
    assert resumed.startswith("resumed:  21 steps")
    assert unbroken.startswith("unbroken: 36 steps, number 16")
    assert proof == ["every batch is the same: True", "the final weights are the same: True"]
