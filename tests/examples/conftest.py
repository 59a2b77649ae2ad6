"""What all tests of examples run with: one interpreter that has imported everything."""

from __future__ import annotations

import pytest

from tests.support.forked_scripts import EXAMPLES_IMPORT, ForkedScripts


@pytest.fixture(scope="session")
def scripts():
    found = ForkedScripts(*EXAMPLES_IMPORT)
    yield found
    found.close()
