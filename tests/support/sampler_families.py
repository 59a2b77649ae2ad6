"""Every kind of sampler, for the tests of guarantees that all of them share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lit_loader import samplers
from lit_loader.samplers import (
    BlockShuffleSampler,
    ClassAwareSampler,
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    OrderSampler,
    RandomSampler,
    RepeatFactorSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from lit_loader.schedules import EpochRange


def class_balanced(n, seed=None):
    return ClassBalancedSampler(np.arange(n) % 3 - 1, num_samples=n + 3, seed=seed)


def without_replacement(n, seed=None):
    return WeightedRandomSampler(np.arange(n), n - 1, replacement=False, seed=seed)


# Samplers of n indices, n >= 2, with a seed for __iter__.
WITHOUT_REPEATS: dict[str, Callable[[int, int | None], OrderSampler]] = {
    "sequential": lambda n, seed: SequentialSampler(n, seed=seed),
    "random": lambda n, seed: RandomSampler(n, seed=seed),
    "weighted without replacement": without_replacement,
    "subset": lambda n, seed: SubsetRandomSampler(np.arange(n)[::-2], num_indices=n, seed=seed),
    "subset in order": lambda n, seed: SubsetRandomSampler(np.arange(n)[::-2], shuffle=False, num_indices=n, seed=seed),
    "block shuffle": lambda n, seed: BlockShuffleSampler(np.arange(n) % 5 - 1, open_shards=2, block_size=7, seed=seed),
    "block shuffle of sizes": lambda n, seed: BlockShuffleSampler(
        shard_sizes=[n // 2, n - n // 2], open_shards=1, block_size=3, seed=seed
    ),
    "grouped": lambda n, seed: GroupedSampler(RandomSampler(n), np.arange(n) % 3, seed=seed),
    "grouped without replacement": lambda n, seed: GroupedSampler(without_replacement(n), np.arange(n) % 2, seed=seed),
}
FAMILIES = WITHOUT_REPEATS | {
    "weighted": lambda n, seed: WeightedRandomSampler(np.arange(1, n + 1), 2 * n, seed=seed),
    "class balanced": class_balanced,
    "class balanced by epoch": lambda n, seed: ClassBalancedSampler(
        np.arange(n) % 3 - 1, exponent={"points": {0: 0.0, 3: 1.0}}, num_samples=n + 3, seed=seed
    ),
    "weighted by epoch": lambda n, seed: WeightedRandomSampler(
        EpochRange([1, 3], np.arange(n, 0, -1), np.arange(1, n + 1)), 2 * n, seed=seed
    ),
    "class aware": lambda n, seed: ClassAwareSampler(
        np.arange(n) % 7 % 3 - 1, num_samples=n + 5, empty_as_class=True, seed=seed
    ),
    "repeat factor": lambda n, seed: RepeatFactorSampler(np.arange(n) % 7 / 3 + 0.6, seed=seed),
    "block shuffle with repeats": lambda n, seed: BlockShuffleSampler(
        np.arange(n) // 9, open_shards=2, block_size=None, repeats=np.arange(n) % 7 / 3 + 0.6, seed=seed
    ),
    "mixed source": lambda n, seed: MixedSourceSampler([n - 1, 1], [3, 2], seed=seed),
    "mixed shares": lambda n, seed: MixedSourceSampler([n - 1, 1], shares=[3, 2], num_samples=n + 3, seed=seed),
    "mixed shares by epoch": lambda n, seed: MixedSourceSampler(
        [n - 1, 1], shares=[3, {"points": {0: 2, 3: 0}}], num_samples=n + 3, seed=seed
    ),
    "mixed samplers": lambda n, seed: MixedSourceSampler([RandomSampler(n - 1), class_balanced(1)], [3, 2], seed=seed),
    "mixed epochs of samplers": lambda n, seed: MixedSourceSampler([class_balanced(n - 1), 1], seed=seed),
    "grouped weighted": lambda n, seed: GroupedSampler(
        WeightedRandomSampler(np.arange(1, n + 1), n + 3), np.arange(n) % 4, seed=seed
    ),
    "grouped weighted by epoch": lambda n, seed: GroupedSampler(
        WeightedRandomSampler(EpochRange([1, 3], np.arange(n, 0, -1), np.arange(1, n + 1))), np.arange(n) % 4, seed=seed
    ),
    "grouped class balanced": lambda n, seed: GroupedSampler(class_balanced(n), np.arange(n) % 4, seed=seed),
}
# The same order in every epoch and with every seed.
FIXED = ("sequential", "subset in order")
# A grouped sampler must know the size of a batch.
ITERABLE = [name for name in FAMILIES if not name.startswith("grouped")]


def sampler_classes():
    """Return the sampler classes that lit_loader exports."""
    exported = [getattr(samplers, name) for name in samplers.__all__]
    classes = {member for member in exported if isinstance(member, type) and issubclass(member, OrderSampler)}
    return classes - {OrderSampler}
