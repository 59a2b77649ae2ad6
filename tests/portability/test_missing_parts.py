"""Guarantee: where a part of the platform is missing the package imports, and the batches are the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.without_parts import PARTS

ROOT = Path(__file__).parents[2]
EVERY = "+".join(PARTS)
QUIET_FORKS = "ignore:This process:DeprecationWarning"  # Python 3.12 and newer, of a fork beside a thread


def run(tmp_path, *words):
    """Return the exit code and the text on standard error."""
    process = subprocess.run(
        [sys.executable, "-W", QUIET_FORKS, "-m", "tests.support.without_parts", str(tmp_path), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return process.returncode, process.stderr


def test_package_works_without_all_parts(tmp_path):
    assert run(tmp_path, EVERY) == (0, "")


@pytest.mark.soak
def test_package_works_without_each_part(tmp_path):
    assert run(tmp_path, *PARTS) == (0, "")


@pytest.mark.soak
def test_spawned_workers_work_without_all_parts(tmp_path):
    assert run(tmp_path, EVERY, "spawn") == (0, "")
