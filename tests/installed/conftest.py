"""The wheel, installed in an environment of its own: ``nox -s wheel`` makes it and runs these tests.

The tests run in another environment, without torch, and start programs of that one in folders outside of the tree.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("LIT_LOADER_PYTHON", "")
"""The interpreter of the environment."""

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Run a program of the environment in a folder, and return its output and its errors."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "CUDA_VISIBLE_DEVICES": ""}

    def run(folder, name, *words, code=0):
        command = [str(Path(PYTHON).parent / name), *map(str, words)]
        result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        return result.stdout, result.stderr

    return run
