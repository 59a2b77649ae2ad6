"""Fixture: slots with their reader and their writer in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.memory_link import Link


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    yield link
    link.close()
