"""The fuzzing harness finds every kind of fault, otherwise any reader would pass."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from tests.support import fuzzing
from tests.support.fuzzing import fuzz
from tests.support.text_sets import make_keypoints_txt

NO_TABLE = AnnotationTable(
    root="/", image_paths=["a"], class_names=[], offsets=[0, 0], boxes=np.zeros((0, 4)), labels=[]
)
SLOW: list[bool] = []


def read_badly(root: Path, *, fault: str) -> AnnotationTable:
    path = root / "list.txt"
    data = path.read_bytes() if path.is_file() else b""
    if data.startswith(b"# faces\na.jpg"):  # sound so far
        return NO_TABLE
    if fault == "error":
        raise KeyError("not an AnnotationError")
    if fault == "message":
        raise AnnotationError("long" * 2000)
    if fault == "crash":
        os._exit(11)
    if fault == "time" and not SLOW:
        SLOW.append(True)  # once is enough
        start = time.process_time()
        while time.process_time() < start + 0.6:
            pass
    if fault == "memory":
        np.ones(40_000_000)
    if fault == "outside":
        (root.parent / "outside/secret.txt").read_bytes()
    if fault == "list":
        list(os.scandir(root.parent / "outside"))
    return NO_TABLE


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "KeyError"),
        ("message", "a message of"),
        ("crash", "the process died"),
        ("memory", "MiB"),
        ("outside", "secret.txt"),
        ("list", "outside"),
    ],
)
def test_faults_of_a_reader_are_found(fault, words):
    result = fuzz(partial(read_badly, fault=fault), make_keypoints_txt, rounds=16)
    assert any(words in failure for failure in result.failures)


def test_a_slow_reader_is_found():
    result = fuzz(partial(read_badly, fault="time"), make_keypoints_txt, rounds=16, max_seconds=0.5)
    assert any("took" in failure for failure in result.failures)


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr(fuzzing, "_PATIENCE", 1.0)
    result = fuzz(read_pipe, make_keypoints_txt, rounds=16 * 30)
    assert any("a hang" in failure for failure in result.failures)


def read_pipe(root: Path) -> AnnotationTable:
    path = root / "list.txt"
    if path.exists() and not path.is_dir() and not path.is_symlink():
        path.read_bytes()  # waits where a pipe stands
    return NO_TABLE
