"""Damaged files of every structured format: an error that names the file, or a table; never anything else."""

from __future__ import annotations

import pytest

from tests.formats.fuzzing import fuzz
from tests.formats.structured_sets import STRUCTURED_SETS


@pytest.mark.parametrize("rounds", [160, pytest.param(640, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", STRUCTURED_SETS)
def test_damaged_files_give_a_table_or_an_error_and_nothing_else(name, rounds):
    result = fuzz(*STRUCTURED_SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    assert result.tables > 20
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    if name.startswith("image_folder"):  # no file names a path, and lenience drops whatever is no image
        assert set(result.refusals) == (set() if "lenient" in name else {"AnnotationError"})
    else:
        # A damaged file of many is dropped.
        assert sum(result.refusals.values()) > 5 or name == "labelme, lenient"
        is_seldom = name.startswith("voc") and rounds == 160  # of its files, a split alone names paths
        assert is_seldom or "UnsafePathError" in result.refusals
