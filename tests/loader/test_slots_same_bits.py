"""Guarantee: large random samples are the same bits whichever way they come: slots, pipe, start method."""

from __future__ import annotations

import os

import pytest
import torch

from tests.support.slot_sets import LargeDraws, loader_of, slots_of

NAMES = ("torch", "numpy", "python", "index")


def epochs(loader, count=2):
    return [batch for _ in range(count) for batch in loader]


@pytest.fixture(scope="module")
def inline():
    return epochs(loader_of(LargeDraws(13), num_workers=0, seed=5, shuffle=True))


def assert_same_bits(actual, inline):
    assert len(actual) == len(inline)
    for one, other in zip(actual, inline, strict=True):
        assert list(one) == list(NAMES)
        assert all(torch.equal(one[name], other[name]) for name in NAMES)


@pytest.mark.parametrize("pipe", [False, True], ids=["slots", "pipe"])
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_every_way_gives_the_inline_bits(method, num_workers, pipe, inline, monkeypatch):
    if pipe:
        monkeypatch.delattr(os, "memfd_create")
    with loader_of(
        LargeDraws(13), num_workers=num_workers, seed=5, shuffle=True, multiprocessing_context=method
    ) as loader:
        assert_same_bits(epochs(loader), inline)
        if pipe:
            assert loader._worker_manager.backend._slots is None
        else:
            assert slots_of(loader)._num_slots > 0


def test_spawned_workers_write_to_the_same_slots(inline):
    with loader_of(LargeDraws(13), num_workers=1, seed=5, shuffle=True, multiprocessing_context="spawn") as loader:
        assert_same_bits(epochs(loader), inline)
        assert slots_of(loader).kept_bytes == 0
        assert slots_of(loader)._num_slots > 0


def test_the_draws_differ_from_sample_to_sample(inline):
    for name in NAMES[:3]:
        firsts = [row.flatten()[0].item() for batch in inline for row in batch[name]]
        assert len(set(firsts)) == len(firsts) == 26
