"""What page-locks the slots, as this layer sees it; `lit_loader.device` has the one that does."""

from __future__ import annotations

from typing import Protocol

__all__ = ["PageLock"]


class PageLock(Protocol):
    """Page-locks memory of this process, so that a device can copy from it by itself."""

    def lock(self, address: int, num_bytes: int) -> bool:
        """Page-lock memory; return False if that cannot be."""

    def unlock(self, address: int) -> None:
        """Undo that, before the memory is unmapped, moved or grown."""
