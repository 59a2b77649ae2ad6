"""A fingerprint identifies all settings that orders depend on, without seed and epoch."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

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
from lit_loader.samplers.order import fingerprint_of
from tests.support.sampler_families import sampler_classes

_LABELS = [0] * 6 + [1] * 3 + [-1] * 2
_OTHER_LABELS = [0] * 5 + [1] * 4 + [-1] * 2
_WEIGHTS = [0.5, 1.0, 2.0, 1.0]

# For each class: the arguments it is made with, and changes of them that change its orders.
FAMILIES = {
    SequentialSampler: ({"data_source": 10}, [{"data_source": 11}]),
    RandomSampler: ({"data_source": 10}, [{"data_source": 11}]),
    WeightedRandomSampler: (
        {"weights": _WEIGHTS, "num_samples": 3},
        [{"weights": [0.5, 1.0, 2.0, 1.5]}, {"weights": [*_WEIGHTS, 0.0]}, {"num_samples": 4}, {"replacement": False}],
    ),
    ClassBalancedSampler: (
        {"labels": _LABELS},
        [{"labels": _OTHER_LABELS}, {"exponent": 0.1}, {"num_samples": 12}, {"empty_share": 0.5}],
    ),
    ClassAwareSampler: (
        {"labels": _LABELS},
        [{"labels": _OTHER_LABELS}, {"num_samples": 12}, {"empty_as_class": True}],
    ),
    RepeatFactorSampler: (
        {"repeat_factors": [1.0, 1.5, 2.5]},
        [{"repeat_factors": [1.5, 1.0, 2.5]}, {"repeat_factors": [1.0, 1.25, 2.75]}],
    ),
    BlockShuffleSampler: (
        {"shards": [0, 0, 0, 1, 1, 1, 2, 2, 2], "open_shards": 2, "block_size": 2},
        [
            *({"shards": [0, 0, 1, 1, 1, 1, 2, 2, 2]}, {"shards": [2, 0, 0, 1, 1, 1, 0, 2, 2]}, {"open_shards": 3}),
            *({"block_size": 1}, {"block_size": None}, {"repeats": [1.0] * 9}, {"repeats": [1.0] * 8 + [1.5]}),
        ],
    ),
    SubsetRandomSampler: (
        {"indices": [4, 2, 0], "num_indices": 6},
        [{"indices": [2, 4, 0]}, {"shuffle": False}, {"num_indices": 7}],
    ),
    MixedSourceSampler: (
        {"sources": [6, 3], "counts": [2, 1]},
        [
            *({"sources": [6, 4]}, {"counts": [1, 2]}, {"num_samples": 12}, {"counts": None}),
            *({"counts": None, "shares": shares, "num_samples": 12} for shares in ([1, 1], [2, 1])),
            *({"sources": [6, inner(3)]} for inner in (RandomSampler, SequentialSampler)),
            {"sources": [6, RandomSampler(3, seed=1)]},
        ],
    ),
    GroupedSampler: (
        {"sampler": RandomSampler(4), "group_ids": [0, 0, 1, 1]},
        [{"sampler": SequentialSampler(4)}, {"sampler": WeightedRandomSampler(_WEIGHTS)}, {"group_ids": [0, 1, 1, 1]}],
    ),
}
# Written by another process: the text in a checkpoint must fit what later versions and other machines compute.
GOLDEN = {
    "SequentialSampler": "17a3fc164267a3ba3938dc1f3fb394bd",
    "RandomSampler": "14c7f617055d5f23d9caa667fb80b55a",
    "WeightedRandomSampler": "c46288f810f05b3aa590ebd17b472790",
    "ClassBalancedSampler": "5de9c71e3bd6edf4ab7dfeb26a8b8bb5",
    "ClassAwareSampler": "f9f78cb2b53e4366207706e84826f79e",
    "RepeatFactorSampler": "7b9a940fb0efedcf3a3324b5fda90705",
    "BlockShuffleSampler": "5f3242450f5a69a838d122f810691fe7",
    "SubsetRandomSampler": "e10a78f6207e135d39b8bb307f8ffa4c",
    "MixedSourceSampler": "ea47b06e4717b776e1cad70ec59f29eb",
    "GroupedSampler": "e58b3e83d8e4c6482113b791eb5fbc3d",
}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def made(family, **changed):
    return family(**{**FAMILIES[family][0], **changed})


def test_families_cover_all_exported_samplers():
    assert sampler_classes() == set(FAMILIES)


@EVERY_FAMILY
def test_fingerprints_are_pinned(family):
    assert made(family).fingerprint() == GOLDEN[family.__name__]


@EVERY_FAMILY
def test_fingerprint_ignores_seed_and_epoch(family):
    first = made(family)
    second = made(family, seed=8)
    second.set_epoch(5)
    second.order(seed=1, epoch=0)[:]
    assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize(
    ("family", "changed"), [(family, change) for family, (_, changes) in FAMILIES.items() for change in changes]
)
def test_an_argument_that_changes_the_orders_changes_the_fingerprint(family, changed):
    assert made(family, **changed).fingerprint() != made(family).fingerprint()


@EVERY_FAMILY
def test_fingerprint_survives_pickle_and_deepcopy(family):
    fresh = made(family)
    used = made(family)
    expected = used.fingerprint()
    for sampler in (fresh, used):
        assert pickle.loads(pickle.dumps(sampler)).fingerprint() == expected
        assert copy.deepcopy(sampler).fingerprint() == expected


def test_fingerprint_is_cached_until_the_weights_change(monkeypatch):
    calls = []
    identity = WeightedRandomSampler._identity
    monkeypatch.setattr(WeightedRandomSampler, "_identity", lambda self: calls.append(1) or identity(self))
    sampler = WeightedRandomSampler(_WEIGHTS)
    grouped = GroupedSampler(WeightedRandomSampler(_WEIGHTS), [0, 0, 1, 1])
    first = sampler.fingerprint()
    grouped_first = grouped.fingerprint()
    assert sampler.fingerprint() == first
    assert grouped.fingerprint() == grouped_first
    assert len(calls) == 2
    for weighted in (sampler, grouped.sampler):
        weighted.set_weights([1.0, 2.0, 3.0, 4.0])
    assert sampler.fingerprint() == WeightedRandomSampler([1.0, 2.0, 3.0, 4.0]).fingerprint() != first
    assert grouped.fingerprint() != grouped_first
    for weighted in (sampler, grouped.sampler):
        weighted.set_weights(_WEIGHTS)
    assert (sampler.fingerprint(), grouped.fingerprint()) == (first, grouped_first)


@pytest.mark.parametrize("family", [RandomSampler, SequentialSampler])
def test_fingerprint_follows_a_growing_dataset(family):
    data = [0, 1, 2]
    sampler = family(data)
    first = sampler.fingerprint()
    data.append(3)
    assert sampler.fingerprint() == family(4).fingerprint() != first


def test_fingerprint_depends_on_values_of_weights_only():
    single = WeightedRandomSampler(np.array(_WEIGHTS, dtype=np.float32))
    assert single.fingerprint() == WeightedRandomSampler(_WEIGHTS).fingerprint()


class Every(OrderSampler):
    """A user's own: every k-th index."""

    def __init__(self, length, step=2):
        super().__init__()
        self.length = length
        self.step = step

    def order(self, *, seed, epoch):
        return np.arange(len(self))

    def __len__(self):
        return self.length // self.step

    @property
    def num_indices(self):
        return self.length

    def expected_visits(self, epoch=0):
        return np.ones(self.length)


class Told(Every):
    def _identity(self):
        return len(self), self.num_indices, self.step, {"a": "set"}


def test_user_sampler_is_identified_by_lengths_by_default():
    assert Every(10).fingerprint() == Every(10).fingerprint() != Every(12).fingerprint()
    assert Every(10, 3).fingerprint() != Every(10, 2).fingerprint()
    with pytest.raises(TypeError, match="got dict; return such values from `_identity`"):
        Told(10).fingerprint()


def test_fingerprints_distinguish_similar_parts():
    parts = [
        (1, 2),
        (2, 1),
        (12,),
        ("12",),
        (12.0,),
        (True, 2),
        (None,),
        (),
        ("",),
        ("a", "b"),
        ("ab",),
        (np.array([1, 2]),),
        (np.array([1.0, 2.0]),),
        (np.array([[1, 2]]),),
        (np.array([1, 2], np.int32),),
        (np.array([], np.int64),),
    ]
    assert len({fingerprint_of(*values) for values in parts}) == len(parts)
    swapped = np.array([1, 2], dtype=np.dtype(np.int64).newbyteorder(">"))
    strided = np.array([1, 0, 2, 0])[::2]
    assert fingerprint_of(np.float64(0.1), np.float64("nan")) == fingerprint_of(0.1, float("nan"))
    assert fingerprint_of(0.1) != fingerprint_of((0.1).hex())
    assert fingerprint_of(swapped) == fingerprint_of(strided) == fingerprint_of(np.array([1, 2]))
