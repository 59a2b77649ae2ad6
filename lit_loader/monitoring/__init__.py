"""Monitoring of a run: the times of waiting, transfer and steps, and the stage that limits the rate."""

from __future__ import annotations

__all__: list[str] = []
