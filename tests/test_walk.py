"""A batch passes through few files and classes, as `benchmarks.walk` counts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.walk import Walk

THIRD_BATCH = {"files": 19, "classes": 18}
WITH_SETUP = {"files": 38, "classes": 33}
"""Upper limits; lower them when the code needs fewer."""


@pytest.fixture(scope="module")
def walks():
    """The counts for the third batch and for a loader with its set-up, from a new interpreter without caches."""
    code = "import json; from benchmarks.walk import walk; print(json.dumps(walk()))"
    root = Path(__file__).parents[1]
    output = subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True, timeout=120)
    return [Walk([(file, name) for file, name in functions]) for (functions,) in json.loads(output)]


@pytest.mark.parametrize(("number", "limits"), [(0, THIRD_BATCH), (1, WITH_SETUP)], ids=["third", "setup"])
def test_batch_passes_through_few_files_and_classes(walks, number, limits):
    walk = walks[number]
    assert len(walk.files) <= limits["files"], walk.files
    assert len(walk.classes) <= limits["classes"], walk.classes


def test_both_processes_are_counted(walks):
    third, everything = ({name for _, name in walk.functions} for walk in walks)
    assert {"LoaderIterator.__next__", "default_collate"} <= third  # of the main process, of a worker
    assert "DataLoader.__init__" in everything - third
    assert third < everything
