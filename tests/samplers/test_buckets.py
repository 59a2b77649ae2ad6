"""Buckets of aspect ratios and sizes: like images together, equal ones always, no bucket empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.samplers import aspect_ratio_buckets, size_buckets

BOTH = pytest.mark.parametrize("buckets", [aspect_ratio_buckets, size_buckets])
sizes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60)


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
def test_groups_do_not_depend_on_the_order_of_images(buckets, sizes):
    widths, heights = np.array(sizes).T
    ordered = np.array([(w, h) for w in range(3, 9) for h in range(3, 9)])
    groups = dict(zip(map(tuple, ordered.tolist()), buckets(*ordered.T, 5).tolist(), strict=True))
    assert buckets(widths, heights, 5).tolist() == [groups[size] for size in sizes]


def test_sizes_are_cut_along_widths_heights_areas_and_ratios():
    # one area
    wide = (400, 100)
    square = (200, 200)
    narrow = (100, 400)
    groups = size_buckets(*np.array([wide, narrow, square, square, narrow, wide]).T, 3).tolist()
    assert groups[0] == groups[5] != groups[1] == groups[4] != groups[2] == groups[3] != groups[0]
    # Two uprights and two landscapes along one diagonal: no width or height parts them, a ratio does.
    upright = [(100, 150), (400, 600)] * 9
    landscape = [(150, 100), (600, 400)] * 9
    groups = size_buckets(*np.array(upright + landscape).T, 4)
    assert len(set(groups[:18].tolist()) & set(groups[18:].tolist())) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_first_cut_leaves_the_least_squared_deviations(seed):
    rng = np.random.default_rng(seed)
    widths, heights = rng.integers(20, 400, (2, 40))
    logs = np.log(widths / heights)
    cuts = [logs <= value for value in np.unique(logs)[:-1]]
    best = min(cuts, key=lambda low: low.sum() * logs[low].var() + (~low).sum() * logs[~low].var())
    assert aspect_ratio_buckets(widths, heights, 2).tolist() == (~best).astype(int).tolist()


@BOTH
def test_buckets_take_lists_tensors_and_arrays(buckets):
    widths = [640, 480, 640]
    heights = [480, 640, 480]
    expected = buckets(widths, heights, 2).tolist()
    assert sorted(set(expected)) == [0, 1]
    assert buckets(torch.tensor(widths), torch.tensor(heights, dtype=torch.float32), 2).tolist() == expected
    assert buckets(np.array(widths, np.int32), np.array(heights, np.uint16), 2).tolist() == expected


@BOTH
@pytest.mark.parametrize(
    ("widths", "heights", "num_buckets", "error", "message"),
    [
        ([1, 0, 0], [1, 1, 1], 2, ValueError, r"`widths` must be positive, got widths\[1\]=0"),
        ([1, -2], [1, 1], 2, ValueError, r"widths\[1\]=-2"),
        ([], [], 2, ValueError, r"`widths` must have shape \(n,\) with n > 0"),
        ([1, 1, 1], [1, 1, np.nan], 2, ValueError, r"heights\[2\]=nan"),
        ([1, 1], [1, np.inf], 2, ValueError, r"heights\[1\]=inf"),
        ([1, 1], [1], 2, ValueError, "got 2 `widths` and 1 `heights`"),
        ([[1]], [1], 2, ValueError, r"`widths` must have shape \(n,\) .* got shape \(1, 1\)"),
        (["a"], [1], 2, TypeError, "`widths` must be one number an index"),
        ([1], [1], 0, ValueError, "`num_buckets` must be at least 1, got num_buckets=0"),
        ([1], [1], 1.5, TypeError, "`num_buckets` must be an int"),
    ],
)
def test_invalid_sizes_are_refused_by_index(buckets, widths, heights, num_buckets, error, message):
    with pytest.raises(error, match=message):
        buckets(widths, heights, num_buckets)
