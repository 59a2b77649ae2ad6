"""The README's code runs and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
SMALLER = {
    "ShapesSource()": "ShapesSource(num_images={'train': 40, 'val': 20, 'test': 20}, class_shares=(0.6, 0.3, 0.1))",
    "max_epochs=4": "fast_dev_run=True, accelerator='cpu'",
    "batch_size=16": "batch_size=4",
}


@pytest.mark.parametrize("code", PYTHON, ids=["lightning", "one import"])
def test_the_python_examples_run(code, tmp_path):
    for long, short in SMALLER.items():
        code = code.replace(long, short)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_example_is_short():
    assert len(PYTHON[0].strip().splitlines()) <= 14


def test_the_yaml_is_yaml():
    for text in YAML:
        assert yaml.safe_load(text)["defaults"]


def test_make_has_every_target_that_is_named():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (demo|test|soak|lint|bench)\b", README)) <= targets
    assert {"demo", "test", "soak", "lint", "bench"} <= targets


def test_every_file_that_is_named_exists():
    for name in re.findall(r"`((?:tests|lit_loader|conf|examples)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name
