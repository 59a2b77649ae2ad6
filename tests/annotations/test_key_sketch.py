"""Sketches of sets: exact small differences, estimates of large ones, and bytes that may be anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.annotations.key_sketch import SKETCH_BYTES, KeySketch
from lit_loader.seeding import hash_u64


def sketch(keys, values=None):
    keys = np.asarray(keys, np.int64)
    values = np.zeros(len(keys), np.int64) if values is None else np.asarray(values, np.int64)
    return KeySketch.of(hash_u64(1, keys), values.astype(np.uint64))


@pytest.mark.parametrize("num_keys", [10, 1000, 100_000])
@pytest.mark.parametrize(("num_added", "num_removed"), [(0, 0), (1, 0), (0, 1), (12, 0), (5, 5)])
def test_small_differences_are_exact(num_keys, num_added, num_removed):
    old = np.arange(num_keys)
    new = np.arange(num_removed, num_keys + num_added)
    # The value of a key is its number.
    difference = sketch(new, new).difference(sketch(old, old))
    assert sorted(difference.added) == list(range(num_keys, num_keys + num_added))
    assert sorted(difference.removed) == list(range(num_removed))
    assert not difference.values_changed


@pytest.mark.parametrize(("num_changed", "share"), [(10, 0.98), (20, 0.95), (25, 0.85)])
def test_nearly_all_differences_of_tens_of_keys_are_exact(num_changed, share):
    old = sketch([])
    differences = [sketch(np.arange(start, start + num_changed)).difference(old) for start in range(0, 10_000, 50)]
    assert all(difference is None or len(difference.added) == num_changed for difference in differences)
    assert sum(difference is not None for difference in differences) >= share * len(differences)


def test_another_value_of_an_equal_key_is_a_change_of_values():
    difference = sketch([1, 2, 3], [5, 6, 7]).difference(sketch([1, 2, 4], [5, 9, 7]))
    assert (len(difference.added), len(difference.removed), difference.values_changed) == (1, 1, True)


@pytest.mark.parametrize("num_changed", [300, 5000, 50_000])
def test_large_differences_are_estimated(num_changed):
    old = sketch(np.arange(100_000))
    new = sketch(np.arange(num_changed, 100_000 + num_changed // 2))
    assert new.difference(old) is None
    assert new.estimated_difference(old) == pytest.approx(1.5 * num_changed, rel=0.5)


def test_bytes_give_the_same_sketch():
    data = sketch(np.arange(1000), np.arange(1000)).to_bytes()
    assert len(data) == SKETCH_BYTES
    copy = KeySketch.from_bytes(data)
    assert copy.to_bytes() == data
    assert copy.difference(sketch(np.arange(1000), np.arange(1000))).added == []
    with pytest.raises(ValueError, match="expected 672 bytes, got 3"):
        KeySketch.from_bytes(b"abc")


@given(st.binary(min_size=SKETCH_BYTES, max_size=SKETCH_BYTES) | st.just(b"\xff" * SKETCH_BYTES))
@settings(max_examples=30, deadline=None)
def test_any_bytes_are_compared_without_an_error(data):
    foreign = KeySketch.from_bytes(data)
    thirty = sketch(np.arange(30))
    thirty.difference(foreign)
    assert thirty.estimated_difference(foreign) >= 0
