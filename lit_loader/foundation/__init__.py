"""Helpers for every other package: files, optional packages, signatures, escaping, interrupts, host resources."""

from __future__ import annotations

__all__: list[str] = []
