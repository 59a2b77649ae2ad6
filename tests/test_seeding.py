"""Keys: the same everywhere, different wherever anything differs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data._utils.worker import _generate_state

from lit_loader import sample_rng
from lit_loader.seeding import (
    EpochKeys,
    hash_u64,
    key64,
    preserved_generators,
    seed_generators,
    seed_worker,
    uniform,
)


def draws():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def test_keys_never_change():
    assert key64(1, 2, "a") == 776481592846157633
    assert EpochKeys(3, 4).sample(5).torch == 10285418618124862557
    assert hash_u64(7, np.arange(2)).tolist() == [7191089600892374487, 309689372594955804]


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_different_parts_give_different_keys(a, b):
    assert (key64(*a) == key64(*b)) == (a == b)


def test_parts_are_not_concatenated():
    assert len({key64("ab"), key64("a", "b"), key64("", "ab"), key64(97), key64("97"), key64(-97)}) == 6


def test_a_part_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"1\.5"):
        key64(1.5)


def test_the_kinds_of_key_of_an_epoch_do_not_meet():
    keys = EpochKeys(0, 0)
    found = {keys.sample(1), keys.batch(1), keys.stream(1, 0), keys.stream_start(1), keys.stream_batch(1, 0)}
    assert len(found) == 5
    assert EpochKeys(0, 1).sample(1) not in found
    assert EpochKeys(1, 0).sample(1) not in found


def test_uniform_fills_the_unit_interval_evenly():
    """Chi-square over 64 cells; a fair generator exceeds 130.7 once in 10^6 keys (df 63)."""
    values = uniform(key64("test"), np.arange(64_000))
    counts = np.histogram(values, bins=64, range=(0, 1))[0]
    assert values.min() >= 0
    assert values.max() < 1
    assert ((counts - 1000) ** 2 / 1000).sum() < 130.7


def test_seeding_decides_every_process_wide_generator():
    key = EpochKeys(1, 2).sample(3)
    with preserved_generators():
        seed_generators(key)
        first = draws()
        draws()
        seed_generators(key)
        assert draws() == first
        seed_generators(EpochKeys(1, 2).sample(4))
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_the_generators_are_given_back_as_they_were():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = draws()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    with pytest.raises(KeyError), preserved_generators():
        seed_generators(EpochKeys(0, 0).sample(0))
        draws()
        raise KeyError
    assert draws() == expected


def test_a_sample_has_generators_of_its_own():
    def own():
        rng = sample_rng()
        return torch.rand(1, generator=rng.torch).item(), rng.numpy.random(), rng.python.random()

    with preserved_generators():
        seed_generators(EpochKeys(0, 0).sample(0))
        first = own()
        assert len(set(first)) == 3
        assert own() != first  # asked again: the streams go on
        seed_generators(EpochKeys(0, 0).sample(0))
        assert own() == first
        seed_generators(EpochKeys(0, 0).sample(1))
        assert own() != first
    torch.manual_seed(3)
    outside = own()
    assert own() != outside  # outside of a loader: by torch's default generator
    torch.manual_seed(3)
    assert own() == outside


@pytest.mark.parametrize(("base", "worker"), [(0, 0), (1234567890123456, 3), (2**63 - 5, 1), (2**33, 2)])
def test_a_worker_is_seeded_as_torch_seeds_it(base, worker):
    with preserved_generators():
        assert seed_worker(base, worker) == base + worker
        found = draws()
        torch.manual_seed(base + worker)
        random.seed(base + worker)
        np.random.seed(_generate_state(base, worker))
        assert draws() == found
