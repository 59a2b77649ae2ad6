"""Operations that every other package may use: files, optional packages, argument checks, escaping, host resources."""

from __future__ import annotations

__all__: list[str] = []
