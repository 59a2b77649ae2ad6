"""A fixture: what was imported is never looked through by the garbage collector, of which many tests ask a lot."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

__all__ = ["frozen_heap"]


@pytest.fixture(scope="session", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Hide a million objects that live as long as the session; a collection takes 0.3 s with them, 0.01 s without."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
