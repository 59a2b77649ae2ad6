"""Every collection of garbage is quick."""

from __future__ import annotations

from tests.frozen_heap import frozen_heap

__all__ = ["frozen_heap"]
