"""Guarantee: large random samples are the same bits whichever way they come: slots, pipe, start method."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

from tests.support.slot_sets import LargeDraws, has_slots, loader_of

NAMES = ("torch", "numpy", "python", "index")


def epochs(loader, count=2):
    return [batch for _ in range(count) for batch in loader]


@pytest.fixture(scope="module")
def inline():
    return epochs(loader_of(LargeDraws(13), num_workers=0, seed=5, shuffle=True))


def assert_same_bits(actual, inline):
    assert len(actual) == len(inline)
    for batch, other in zip(actual, inline, strict=True):
        assert list(batch) == list(NAMES)
        assert all(torch.equal(batch[name], other[name]) for name in NAMES)


@pytest.mark.parametrize(
    ("method", "num_workers", "pipe"),
    [
        *product(("fork", "forkserver"), (1, 2, 5), (False, True)),
        ("spawn", 1, False),
        pytest.param("spawn", 1, True, marks=pytest.mark.soak),  # starts slowly
    ],
)
def test_every_way_gives_the_inline_bits(method, num_workers, pipe, inline, monkeypatch):
    if pipe:
        monkeypatch.delattr(os, "memfd_create")
    with loader_of(
        LargeDraws(13), num_workers=num_workers, seed=5, shuffle=True, multiprocessing_context=method
    ) as loader:
        assert_same_bits(epochs(loader), inline)
        assert has_slots(loader) is not pipe
