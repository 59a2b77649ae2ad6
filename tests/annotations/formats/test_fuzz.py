"""Damaged files of every format give a table, or an error that names the file, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.fuzzing import fuzz
from tests.support.structured_sets import STRUCTURED_SETS
from tests.support.text_sets import TEXT_SETS

SETS = STRUCTURED_SETS | TEXT_SETS


@pytest.mark.parametrize("rounds", [48, pytest.param(640, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SETS)
def test_damaged_files_give_a_table_or_an_annotation_error(name, rounds):
    result = fuzz(*SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    # Few, because in some formats one line more or less is an error.
    assert result.tables >= rounds // 24
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    if "lenient" not in name:
        assert result.refusals["AnnotationError"] > rounds // 32
    # Files of these formats name no paths.
    if rounds >= 640 and not name.startswith(("image_folder", "pts", "celeba")):
        assert "UnsafePathError" in result.refusals
