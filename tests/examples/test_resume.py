"""The example is killed and resumed with other workers, and compares all batches."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_resumed_run_has_the_same_batches_and_weights(scripts, tmp_path):
    result = scripts.run(ROOT / "examples" / "resume.py", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    killed, resumed, unbroken, *comparison = result.stdout.splitlines()
    assert killed == "killed:   exit code -9 after 8 steps, last checkpoint at step 7"
    assert resumed.partition(" images ")[2] == unbroken.partition(" images ")[2] != ""
    assert resumed.startswith("resumed:  3 steps")
    assert unbroken.startswith("unbroken: 10 steps, number 8")
    assert comparison == ["every batch is the same: True", "the final weights are the same: True"]
