from __future__ import annotations

import pytest

from tests.formats.fuzzing import fuzz
from tests.formats.text_sets import TEXT_SETS


@pytest.mark.parametrize("rounds", [160, pytest.param(640, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", TEXT_SETS)
def test_damaged_files_give_a_table_or_an_error_and_nothing_else(name, rounds):
    result = fuzz(*TEXT_SETS[name], rounds=rounds, seed=1)
    assert result.failures == []
    assert result.tables > (10 if name == "widerface" else 20)  # a line more or less is an error there
    assert sum(result.refusals.values()) > 20
    assert set(result.refusals) <= {"AnnotationError", "UnsafePathError"}
    assert "UnsafePathError" in result.refusals or name.startswith(("pts", "celeba"))  # names of images alone
