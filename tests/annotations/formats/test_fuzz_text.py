from __future__ import annotations

import pytest

from tests.support.fuzzing import fuzz
from tests.support.text_sets import TEXT_SETS


@pytest.mark.parametrize("rounds", [48, pytest.param(640, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", TEXT_SETS)
def test_damaged_files_give_a_table_or_an_error_and_nothing_else(name, rounds):
    result = fuzz(*TEXT_SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    # of widerface, a line more or less is an error
    assert result.tables > rounds // (20 if name == "widerface" else 8)
    assert sum(result.refusals.values()) > rounds // 8
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    names_no_paths = name.startswith(("pts", "celeba"))  # names of images alone
    assert rounds < 640 or names_no_paths or "UnsafePathError" in result.refusals
