"""Fixture: every test restores the generators of the process and the present key."""

from __future__ import annotations

import pytest

from lit_loader.seeding import preserved_generators


@pytest.fixture(autouse=True)
def _preserve_generators():
    with preserved_generators():
        yield
