"""Labels in every form give the same members."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.samplers.class_balanced import class_members


def _as_sets(members):
    pieces = np.split(members.members, np.cumsum(members.counts)[:-1])
    return [piece.tolist() for piece in pieces]


@given(rows=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=30))
def test_ragged_labels_give_the_images_that_contain_each_class(rows):
    offsets = np.cumsum([0] + [len(row) for row in rows])
    flat = np.array([label for row in rows for label in row], dtype=np.int64)
    num_classes = max((label + 1 for row in rows for label in row), default=0)
    expected = [[i for i, row in enumerate(rows) if c in row] for c in range(num_classes)]
    expected.append([i for i, row in enumerate(rows) if not row])
    for labels in (rows, (offsets, flat), (torch.tensor(offsets), torch.tensor(flat))):
        members = class_members(labels)
        assert (members.num_images, len(members.counts)) == (len(rows), num_classes + 1)
        assert _as_sets(members) == expected
        assert members.counts.tolist() == [len(images) for images in expected]


def test_single_labels_may_be_a_list_an_array_a_tensor_or_a_tuple():
    values = [2, -1, 0, 2]
    for labels in (values, tuple(values), np.array(values, np.int8), torch.tensor(values)):
        assert _as_sets(class_members(labels)) == [[2], [], [0, 3], [1]]
    assert _as_sets(class_members((1, 0))) == [[1], [0], []]


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([], ValueError, "`labels` is empty"),
        ([0, -2], ValueError, r"labels\[1\]=-2"),
        ([[0], [1, -1]], ValueError, r"classes\[2\]=-1"),
        (np.zeros(3), TypeError, "`labels` must be integers, got float64"),
        ([[0], [0.5]], TypeError, r"`labels\[1\]` must be integers"),
        ([0, 2**40], ValueError, "class id 1099511627776 exceeds 1000000.*renumber the classes"),
        (([0, 1], [1, 2]), ValueError, "as a list"),
        (np.zeros((2, 2), np.int64), ValueError, "one dimension"),
        ((np.array([0, 2]), np.array([1])), ValueError, r"len\(classes\)=1 without falling, got \[0, 2\]"),
        ((np.array([0, 2, 1, 3]), np.zeros(3, np.int64)), ValueError, "without falling"),
        ((np.array([], np.int64), np.array([], np.int64)), ValueError, r"got \[\]"),
    ],
)
def test_invalid_labels_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        class_members(labels)


def test_many_images_may_have_ids_beyond_a_million():
    labels = np.full(100_001, -1)
    labels[0] = 1_000_001
    assert len(class_members(labels).counts) == 1_000_003
