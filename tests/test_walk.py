"""A batch passes few files and classes; `benchmarks.walk` says how they are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.walk import Walk

THIRD_BATCH = {"files": 18, "classes": 16}
WITH_SETUP = {"files": 36, "classes": 28}
"""Upper limits; lower them with what the code needs."""


@pytest.fixture(scope="module")
def walks():
    """The two counts, taken in an interpreter of their own, where nothing else is profiled or cached."""
    code = "import json; from benchmarks.walk import walk; print(json.dumps(walk()))"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True, timeout=120
    )
    return [Walk([(file, name) for file, name in functions]) for (functions,) in json.loads(done.stdout)]


@pytest.mark.parametrize(("number", "most"), [(0, THIRD_BATCH), (1, WITH_SETUP)], ids=["third", "setup"])
def test_a_batch_passes_few_files_and_classes(walks, number, most):
    found = walks[number]
    assert len(found.files) <= most["files"], found.files
    assert len(found.classes) <= most["classes"], found.classes


def test_both_processes_are_counted(walks):
    third, everything = ({name for _, name in walk.functions} for walk in walks)
    assert {"LoaderIterator.__next__", "default_collate"} <= third  # of the main process, of a worker
    assert "DataLoader.__init__" in everything - third
    assert third < everything
