"""Damaged files of every structured format: an error that names the file, or a table; never anything else."""

from __future__ import annotations

import pytest

from tests.support.fuzzing import fuzz
from tests.support.structured_sets import STRUCTURED_SETS


@pytest.mark.parametrize("rounds", [48, pytest.param(640, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", STRUCTURED_SETS)
def test_damaged_files_give_a_table_or_an_error_and_nothing_else(name, rounds):
    result = fuzz(*STRUCTURED_SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    assert result.tables > rounds // 8
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    if name.startswith("image_folder"):  # no file names a path, and lenience drops whatever is no image
        assert set(result.refusals) == (set() if "lenient" in name else {"AnnotationError"})
    else:
        # A damaged file of many is dropped.
        assert sum(result.refusals.values()) > rounds // 32 or name == "labelme, lenient"
        assert rounds < 640 or "UnsafePathError" in result.refusals
