"""One interpreter with all imports, which runs every example in a fork."""

from __future__ import annotations

import pytest

from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.forked_scripts import EXAMPLES_IMPORT, ForkedScripts


@pytest.fixture(scope="session")
def scripts():
    forked_scripts = ForkedScripts(*EXAMPLES_IMPORT)
    yield forked_scripts
    forked_scripts.close()
