"""Keys: the same everywhere, different wherever anything differs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.seeding import EpochKeys, RngPurpose, hash_u64, key64


def test_keys_never_change():
    assert key64(1, 2, "a") == 776481592846157633
    assert EpochKeys(3, 4).key(RngPurpose.SAMPLE, 5).torch == 10285418618124862557
    assert hash_u64(7, np.arange(2)).tolist() == [7191089600892374487, 309689372594955804]


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_different_parts_give_different_keys(a, b):
    assert (key64(*a) == key64(*b)) == (a == b)


def test_parts_are_not_concatenated():
    assert len({key64("ab"), key64("a", "b"), key64("", "ab"), key64(97), key64("97"), key64(-97)}) == 6


def test_keys_of_different_purposes_epochs_and_numbers_differ():
    keys = EpochKeys(0, 0)
    distinct_keys = {keys.key(purpose, a, b) for purpose in RngPurpose for a in range(3) for b in range(3)}
    distinct_keys |= {EpochKeys(0, 1).key(RngPurpose.SAMPLE, 1), EpochKeys(1, 0).key(RngPurpose.SAMPLE, 1)}
    distinct_keys |= {keys.key(RngPurpose.STREAM, 1 << 32, 0), keys.key(RngPurpose.STREAM, 0, 1 << 32)}
    assert len(distinct_keys) == 9 * len(RngPurpose) + 4
    for part in range(4):
        assert len({key[part] for key in distinct_keys}) == len(distinct_keys)


def test_hashes_of_positions_fill_the_unit_interval_evenly():
    """Chi-square over 64 cells; a fair generator exceeds 130.7 once in 10^6 keys (df 63)."""
    values = (hash_u64(key64("test"), np.arange(64_000)) >> np.uint64(11)) * 2.0**-53
    counts = np.histogram(values, bins=64, range=(0, 1))[0]
    assert values.min() >= 0
    assert values.max() < 1
    assert ((counts - 1000) ** 2 / 1000).sum() < 130.7
