"""No test here leaves its mark on the process's generators."""

from __future__ import annotations

import pytest

from lit_loader.seeding import preserved_generators


@pytest.fixture(autouse=True)
def _as_it_was():
    with preserved_generators():
        yield
