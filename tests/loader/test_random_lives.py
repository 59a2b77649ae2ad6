"""Loops broken off, epochs named, several iterators, failing samples, workers closed, at random: the same bits."""

from __future__ import annotations

import pytest

from tests.support.scheduling_chaos import live


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_random_use_of_a_loader_gives_the_batches_of_no_workers(method, seed):
    assert live(seed, method, steps=60, lives=3) > 30  # some lives have data sets of one sample
