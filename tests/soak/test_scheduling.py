"""Many random lives of loaders, and of several at a time in threads of their own."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.background import running
from tests.support.scheduling_chaos import live

pytestmark = pytest.mark.soak


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize("seed", range(100, 106))
def test_long_random_lives(method, seed):
    assert live(seed, method, steps=400, lives=12) > 4000


# While one thread's loader checks for shared draws, another thread makes its reference without workers and does draw.
@pytest.mark.filterwarnings("ignore::lit_loader.errors.SharedGeneratorWarning")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_random_lives_side_by_side(method):
    num_compared: list[int] = []

    def lead(seed, _):
        num_compared.append(live(seed, method, steps=150, lives=6))

    with running(*(partial(lead, seed) for seed in range(200, 204))):
        pass
    assert len(num_compared) == 4
