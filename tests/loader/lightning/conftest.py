"""Filters of Lightning's hints that do not concern these tests."""

from __future__ import annotations

import pytest

HINTS = (
    ".*does not have many workers",
    ".*has shuffling enabled",
    "Using `DistributedSampler` with the dataloaders",
    "You requested to overfit but enabled",
    "You are using a custom batch sampler",
    "predict returned None",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if "lightning" in item.path.parts[-2]:
            for hint in HINTS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{hint}"))
