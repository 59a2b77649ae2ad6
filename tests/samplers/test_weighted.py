"""`WeightedRandomSampler`: torch's signature, with errors for everything it cannot do."""

from __future__ import annotations

import math
import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers import WeightedRandomSampler
from lit_loader.samplers.weighted import _minus_log


def test_weights_may_be_a_list_an_array_or_a_tensor():
    values = [0.5, 2.0, 0.0, 1.0]
    orders = [
        WeightedRandomSampler(weights, 50, True).order(seed=1, epoch=2)[:]
        for weights in (values, np.array(values, np.float32), torch.tensor(values), tuple(values))
    ]
    assert all(np.array_equal(order, orders[0]) for order in orders)


def test_signature_and_base_class_are_torchs():
    sampler = WeightedRandomSampler([1, 2, 3], 2, False)
    assert isinstance(sampler, torch.utils.data.WeightedRandomSampler)
    assert (len(sampler), sampler.num_samples, sampler.replacement) == (2, 2, False)
    assert torch.equal(sampler.weights, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-320, 1e-3, 1.0, 7.0, 1e300]), min_size=1, max_size=40),
    seed=st.integers(),
    data=st.data(),
)
def test_draws_without_replacement_are_distinct_and_positive(weights, seed, data):
    positive = sum(weight > 0 for weight in weights)
    if not positive:
        return
    num_samples = data.draw(st.integers(1, positive))
    drawn = WeightedRandomSampler(weights, num_samples, replacement=False).order(seed=seed, epoch=0)[:]
    assert len(set(drawn.tolist())) == len(drawn) == num_samples
    assert all(weights[index] > 0 for index in drawn)


def test_fewer_draws_are_a_prefix_of_more_draws():
    weights = np.arange(1, 2001)
    short = WeightedRandomSampler(weights, 10, replacement=False).order(seed=0, epoch=0)[:]
    long = WeightedRandomSampler(weights, 2000, replacement=False).order(seed=0, epoch=0)[:10]
    np.testing.assert_array_equal(short, long)


def test_expected_visits_follow_the_formula():
    assert WeightedRandomSampler([1, 3, 0], 8).expected_visits().tolist() == [2.0, 6.0, 0.0]
    everything = WeightedRandomSampler([1, 3, 0], 2, replacement=False)
    assert everything.expected_visits().tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="no closed form"):
        WeightedRandomSampler([1, 3, 2], 2, replacement=False).expected_visits()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weights": [1.0, -0.5, -2.0]}, ValueError, r"weights\[1\]=-0.5"),
        ({"weights": [1.0, 1.0, math.nan]}, ValueError, r"weights\[2\]=nan"),
        ({"weights": [math.inf, 1.0]}, ValueError, r"weights\[0\]=inf"),
        ({"weights": pa.array([1.0, None, 2.0])}, ValueError, r"weights\[1\]=nan"),
        ({"weights": [0.0, 0.0]}, ValueError, r"all zero \(2 of them\)"),
        ({"weights": []}, ValueError, r"shape \(0,\)"),
        ({"weights": [[1.0, 2.0]]}, ValueError, r"shape \(1, 2\)"),
        ({"weights": torch.tensor(1.0)}, ValueError, r"shape \(\)"),
        ({"weights": [1.0, "many"]}, TypeError, "one number an index"),
        # numpy would convert these to numbers
        ({"weights": ["1", "2"]}, TypeError, "one number an index: got "),
        ({"weights": np.array([b"1", b"2"])}, TypeError, "one number an index: got "),
        ({"weights": np.array([1 + 2j, 1])}, TypeError, "one number an index: got "),
        ({"weights": np.array(["2020-01-01"], dtype="datetime64[D]")}, TypeError, "one number an index: got "),
        ({"num_samples": 0}, ValueError, "num_samples=0"),
        ({"num_samples": 2.0}, TypeError, "`num_samples` must be an int"),
        ({"replacement": 1}, TypeError, "`replacement` must be True or False"),
        ({"num_samples": 3, "replacement": False}, ValueError, "num_samples=3 exceeds the 2 positive weights"),
        ({"generator": torch.Generator()}, TypeError, "generator"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        WeightedRandomSampler(**{"weights": [1.0, 0.0, 1.0], **arguments})


@pytest.mark.parametrize("kind", ["array", "memory map", "tensor", "arrow", "chunked arrow"])
def test_weights_of_any_container_are_copied_once(kind, tmp_path):
    n = 100_000
    np.ones(n).tofile(tmp_path / "weights")
    array = np.fromfile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", dtype=np.float64, mode="r+")
    weights, changed = {
        "array": (array, array),
        "memory map": (mapped, mapped),
        "tensor": (torch.from_numpy(array), array),
        "arrow": (pa.array(array), array),
        "chunked arrow": (pa.chunked_array([pa.array(array)]), array),
    }[kind]
    tracemalloc.start()
    try:
        sampler = WeightedRandomSampler(weights, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * 8 * n  # the copy, and a few bits a weight for the checks
    changed[: n - 1] = 0.0
    sampler.weights[0] = 0.0
    assert sampler.expected_visits()[0] == 1.0
    assert len(sampler) == n


@pytest.mark.parametrize("kind", ["memory map", "arrow"])
def test_memory_of_drawing_is_copy_and_alias_table(kind, tmp_path):
    n = 1_000_000
    np.save(tmp_path / "weights.npy", np.random.default_rng(0).random(n))
    column = np.load(tmp_path / "weights.npy", mmap_mode="r")
    weights = pa.array(column) if kind == "arrow" else column
    tracemalloc.start()
    try:
        order = WeightedRandomSampler(weights).order(seed=0, epoch=0)
        for start in range(0, n, 1 << 14):
            order[start : start + (1 << 14)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 + 12) * n  # copy and table take 16 bytes a weight; the others are for chunks, for any n


def test_alias_table_is_not_pickled():
    sampler = WeightedRandomSampler(np.ones(10_000))
    num_bytes = len(pickle.dumps(sampler))
    sampler.order(seed=0, epoch=0)
    assert len(pickle.dumps(sampler)) == num_bytes


def test_the_logarithm_is_exact_to_the_last_bits():
    numbers = np.random.default_rng(0).random(100_000) + 2.0**-53
    numbers = np.concatenate([numbers, numbers * 2.0**-40, 1 - numbers * 2.0**-40])
    np.testing.assert_allclose(_minus_log(numbers), -np.log(numbers), rtol=1e-15)
