"""Buckets of aspect ratios and sizes: like images together, equal ones always, no bucket empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.samplers import aspect_ratio_buckets, size_buckets

BOTH = pytest.mark.parametrize("buckets", [aspect_ratio_buckets, size_buckets])
sizes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=60)


@BOTH
@settings(deadline=None)  # other processes may hold it up
@given(sizes=sizes, num_buckets=st.integers(1, 20))
def test_buckets_are_numbered_without_gaps_and_equal_images_share_one(buckets, sizes, num_buckets):
    widths, heights = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    groups = buckets(widths, heights, num_buckets)
    assert groups.dtype == np.int64
    assert groups.shape == widths.shape
    used = np.unique(groups)
    np.testing.assert_array_equal(used, np.arange(len(used)))
    keys = [w / h for w, h in sizes] if buckets is aspect_ratio_buckets else sizes
    assert len(used) == min(num_buckets, len(set(keys)))
    assert len(set(zip(keys, groups.tolist(), strict=True))) == len(set(keys))


@settings(deadline=None)  # other processes may hold it up
@given(sizes=sizes, num_buckets=st.integers(1, 20))
def test_ids_rise_with_the_ratio(sizes, num_buckets):
    widths, heights = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
    groups = aspect_ratio_buckets(widths, heights, num_buckets)
    assert (np.diff(groups[np.argsort(widths / heights, kind="stable")]) >= 0).all()


@BOTH
@settings(deadline=None)  # other processes may hold it up
@given(sizes=st.permutations([(w, h) for w in range(3, 9) for h in range(3, 9)]))
def test_what_is_together_depends_on_no_order_of_the_images(buckets, sizes):
    widths, heights = np.array(sizes).T
    ordered = np.array([(w, h) for w in range(3, 9) for h in range(3, 9)])
    groups = dict(zip(map(tuple, ordered.tolist()), buckets(*ordered.T, 5).tolist(), strict=True))
    assert buckets(widths, heights, 5).tolist() == [groups[size] for size in sizes]


def test_ratios_are_parted_where_nothing_is():
    """Quantiles would cut through the landscapes, which are three in four."""
    upright, landscape = (
        [(30, 40), (31, 40), (20, 30)],
        [(40, 30)] * 5 + [(41, 30), (40, 31), (30, 20), (33, 20)],
    )
    groups = aspect_ratio_buckets(*np.array(upright + landscape).T, 2)
    assert groups.tolist() == [0] * 3 + [1] * 9


def test_sizes_are_halved_at_the_median_of_the_wider_side_of_the_costliest_bucket():
    # heights spread most: split there first; then the lower three, whose widths spread more than the upper's
    images = [(10, 10), (20, 10), (40, 10), (10, 200), (11, 200), (12, 200)]
    assert size_buckets(*np.array(images).T, 2).tolist() == [0, 0, 0, 1, 1, 1]
    assert size_buckets(*np.array(images).T, 3).tolist() == [0, 1, 1, 2, 2, 2]
    assert size_buckets(*np.array(images).T, 4).tolist() == [0, 1, 2, 3, 3, 3]


def test_the_median_counts_images_and_not_sizes():
    images = [(10, 10)] * 7 + [(20, 10), (30, 10), (40, 10)]
    assert size_buckets(*np.array(images).T, 2).tolist() == [0] * 7 + [1] * 3


@BOTH
def test_it_takes_lists_tensors_and_arrays(buckets):
    widths, heights = [640, 480, 640], [480, 640, 480]
    wanted = buckets(widths, heights, 2).tolist()
    assert sorted(set(wanted)) == [0, 1]
    assert buckets(torch.tensor(widths), torch.tensor(heights, dtype=torch.float32), 2).tolist() == wanted
    assert buckets(np.array(widths, np.int32), np.array(heights, np.uint16), 2).tolist() == wanted
    assert buckets([], [], 2).shape == (0,)


@BOTH
@pytest.mark.parametrize(
    ("widths", "heights", "num_buckets", "error", "told"),
    [
        ([1, 0, -1], [1, 1, 1], 2, ValueError, r"`widths` must be positive, got widths\[1\]=0"),
        ([1, 1, 1], [1, 1, np.nan], 2, ValueError, r"heights\[2\]=nan"),
        ([1, 1], [1, np.inf], 2, ValueError, r"heights\[1\]=inf"),
        ([1, 1], [1], 2, ValueError, "2 `widths` and 1 `heights`"),
        ([[1]], [1], 2, ValueError, r"`widths` must have one dimension, got shape \(1, 1\)"),
        (["a"], [1], 2, TypeError, "`widths` must be numbers"),
        ([1], [1], 0, ValueError, "`num_buckets` must be at least 1, got num_buckets=0"),
        ([1], [1], 1.5, TypeError, "`num_buckets` must be an int"),
    ],
)
def test_what_is_no_size_is_refused_by_its_index(buckets, widths, heights, num_buckets, error, told):
    with pytest.raises(error, match=told):
        buckets(widths, heights, num_buckets)
