"""The example is killed, resumed with other workers, and proves what its docstring says."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_proves_that_nothing_was_lost(scripts, tmp_path):
    done = scripts.run(ROOT / "examples" / "resume.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    killed, resumed, unbroken, *proof = done.stdout.splitlines()
    assert killed == "killed:   exit code -9 after 8 steps, last checkpoint at step 7"
    assert resumed.partition(" images ")[2] == unbroken.partition(" images ")[2] != ""
    assert resumed.startswith("resumed:  3 steps")
    assert unbroken.startswith("unbroken: 10 steps, number 8")
    assert proof == ["every batch is the same: True", "the final weights are the same: True"]
