"""Damaged files of every structured format: an error that names the file, or a table; never anything else."""

from __future__ import annotations

import pytest

from tests.formats.fuzzing import fuzz
from tests.formats.structured_sets import STRUCTURED_SETS

FEW_REFUSALS = "image_folder, lenient"  # needs more rounds to show some


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 320 if name == FEW_REFUSALS else 160) for name in STRUCTURED_SETS),
        *(pytest.param(name, 640, marks=pytest.mark.soak) for name in STRUCTURED_SETS),
    ],
)
def test_damaged_files_give_a_table_or_an_error_and_nothing_else(name, rounds):
    result = fuzz(*STRUCTURED_SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    assert result.tables > 20
    assert sum(result.refusals.values()) > 5
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    assert "UnsafePathError" in result.refusals
