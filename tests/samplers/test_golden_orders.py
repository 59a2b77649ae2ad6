"""The bits of an order never change: a checkpoint of an old version must resume on the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.samplers import ClassBalancedSampler, RandomSampler, WeightedRandomSampler

SAMPLERS = {
    "random": RandomSampler(1000),
    "weighted": WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6, 0.0]),
    "without replacement": WeightedRandomSampler(np.arange(1, 101) ** 2, 8, replacement=False),
    "class balanced": ClassBalancedSampler([0] * 90 + [1] * 7 + [-1] * 3, temperature=0.5),
}
GOLDEN = {
    ("random", 0, 0): [620, 299, 226, 79, 661, 183, 898, 654],
    ("random", 42, 3): [442, 315, 484, 766, 113, 251, 256, 523],
    ("weighted", 0, 0): [4, 4, 4, 5, 4, 4, 1],
    ("weighted", 42, 3): [4, 4, 3, 4, 4, 4, 1],
    ("without replacement", 0, 0): [83, 26, 90, 88, 86, 44, 75, 85],
    ("without replacement", 42, 3): [70, 77, 86, 42, 85, 66, 99, 27],
    ("class balanced", 0, 0): [96, 45, 26, 92, 95, 6, 4, 70],
    ("class balanced", 42, 3): [94, 56, 16, 73, 6, 47, 74, 57],
}


@pytest.mark.parametrize(
    ("name", "seed", "epoch"), [(n, *key) for n in SAMPLERS for key in ((0, 0), (42, 3))]
)
def test_these_indices_are_pinned(name, seed, epoch):
    assert SAMPLERS[name].order(seed=seed, epoch=epoch)[:8].tolist() == GOLDEN[name, seed, epoch]
