"""Orders are read by slices, as lists are."""

from __future__ import annotations

import numpy as np
import pytest

from lit_loader.samplers import SequentialSampler, array_order


def sequential(length):
    return SequentialSampler(length).order(seed=0, epoch=0)


def test_steps_and_single_positions_are_refused():
    order = sequential(5)
    with pytest.raises(ValueError, match="step=2"):
        order[::2]
    with pytest.raises(TypeError, match=r"order\[3\]"):
        order[3]


def test_slices_beyond_the_end_are_empty():
    assert sequential(5)[7:9].shape == (0,)
    assert sequential(5)[3:1].dtype == np.int64
    assert sequential(0)[:].shape == (0,)


def test_a_sequential_order_of_any_length_needs_no_memory():
    order = sequential(10**15)
    assert order[10**15 - 2 :].tolist() == [10**15 - 2, 10**15 - 1]


def test_an_array_order_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        array_order(np.arange(5))[1:3][0] = 9


@pytest.mark.parametrize("indices", [np.zeros((2, 2), np.int64), np.zeros(3, np.int32)])
def test_an_array_order_refuses_other_shapes_and_types(indices):
    with pytest.raises(ValueError, match="`indices` must be int64"):
        array_order(indices)
