"""The bits of an order never change: a checkpoint of an old version must resume on the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.samplers import (
    BlockShuffleSampler,
    ClassAwareSampler,
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    RandomSampler,
    RepeatFactorSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    effective_number_image_weights,
    repeat_factors,
)

_LABELS = [0] * 90 + [1] * 7 + [-1] * 3

SAMPLERS = {
    "random": RandomSampler(1000),
    "weighted": WeightedRandomSampler([0.1, 0.9, 0.4, 0.7, 3.0, 0.6, 0.0]),
    "without replacement": WeightedRandomSampler(np.arange(1, 101) ** 2, 8, replacement=False),
    "class balanced": ClassBalancedSampler(_LABELS, exponent=0.5),
    "class aware": ClassAwareSampler(_LABELS, empty_as_class=True),
    "effective number": WeightedRandomSampler(effective_number_image_weights(_LABELS, beta=0.99)),
    "repeat factor": RepeatFactorSampler(repeat_factors(_LABELS, repeat_thresh=0.5)),
    "block shuffle": BlockShuffleSampler(shard_sizes=[40] * 25, open_shards=4, block_size=8),
    "block shuffle with repeats": BlockShuffleSampler(
        np.arange(100) % 9 - 1, open_shards=2, block_size=None, repeats=repeat_factors(_LABELS, repeat_thresh=0.5)
    ),
    "subset": SubsetRandomSampler(np.arange(1000, 0, -3)),
    "mixed source": MixedSourceSampler([2000, 30], [6, 2]),
    "mixed source, millions": MixedSourceSampler([3_000_000, 30], [6, 2]),
    "mixed shares": MixedSourceSampler([2000, 30], shares=[3, 1], num_samples=400),
    "mixed samplers": MixedSourceSampler([RandomSampler(50), ClassBalancedSampler(_LABELS)], [6, 2]),
    "regrouped": GroupedSampler(RandomSampler(24), np.arange(24) % 3),
    "drawn in groups": GroupedSampler(WeightedRandomSampler(np.arange(24), 24), np.arange(24) % 3),
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
    ("class aware", 0, 0): [49, 94, 98, 99, 90, 23, 44, 97],
    ("class aware", 42, 3): [19, 98, 90, 91, 97, 53, 96, 85],
    ("effective number", 0, 0): [91, 36, 67, 78, 59, 22, 14, 50],
    ("effective number", 42, 3): [90, 94, 93, 63, 82, 27, 14, 35],
    ("repeat factor", 0, 0): [21, 28, 63, 96, 94, 59, 47, 3],
    ("repeat factor", 42, 3): [90, 35, 66, 17, 24, 60, 21, 18],
    ("block shuffle", 0, 0): [437, 181, 348, 434, 82, 84, 505, 771],
    ("block shuffle", 42, 3): [450, 451, 914, 442, 452, 138, 702, 720],
    ("block shuffle with repeats", 0, 0): [59, 86, 95, 32, 5, 37, 91, 77],
    ("block shuffle with repeats", 42, 3): [48, 66, 75, 64, 28, 12, 93, 84],
    ("subset", 0, 0): [103, 322, 763, 451, 412, 460, 202, 724],
    ("subset", 42, 3): [55, 661, 247, 232, 37, 919, 319, 109],
    ("mixed source", 0, 0): [163, 850, 1892, 704, 1090, 1332, 2025, 2013],
    ("mixed source", 42, 3): [1130, 796, 1559, 1652, 1044, 11, 2014, 2023],
    ("mixed source, millions", 0, 0): [429391, 2858206, 2323620, 17226, 2427854, 2188056, 3000025, 3000013],
    ("mixed source, millions", 42, 3): [1509267, 2977744, 1222563, 2260092, 1242610, 889402, 3000028, 3000012],
    ("mixed shares", 0, 0): [2025, 2013, 163, 850, 1892, 704, 1090, 2021],
    ("mixed shares", 42, 3): [2003, 1996, 876, 1391, 1115, 1042, 2029, 1720],
    ("mixed samplers", 0, 0): [3, 48, 4, 13, 18, 46, 145, 52],
    ("mixed samplers", 42, 3): [37, 43, 15, 5, 20, 31, 143, 111],
    ("regrouped", 7, 2): [13, 10, 1, 19, 4, 8, 11, 2],
    ("drawn in groups", 7, 2): [4, 7, 19, 1, 16, 20, 17, 20],
}


@pytest.mark.parametrize(("name", "seed", "epoch"), GOLDEN)
def test_first_indices_of_an_order_are_pinned(name, seed, epoch):
    order = SAMPLERS[name].batch_order(seed=seed, epoch=epoch, global_batch=5)
    assert order[:8].tolist() == GOLDEN[name, seed, epoch]
