"""Class weights from a confusion matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.callbacks import recall_weights

matrices = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 50).map(float), min_size=n, max_size=n), min_size=n, max_size=n)
)


def test_weights_follow_the_formula():
    confusion = [[9, 1, 0], [5, 5, 0], [0, 0, 0]]  # recalls 0.9 and 0.5; the third was not seen
    expected = [0.2 / 0.4, 0.6 / 0.4, 1.0]
    np.testing.assert_allclose(recall_weights(confusion), expected)
    np.testing.assert_array_equal(recall_weights(torch.tensor(confusion)), recall_weights(confusion))
    np.testing.assert_allclose(recall_weights(confusion, floor=0.9), [1.0 / 1.2, 1.4 / 1.2, 1.0])


@given(confusion=matrices, floor=st.floats(0.01, 2))
def test_lower_recall_gives_a_larger_weight_and_the_mean_is_one(confusion, floor):
    weights = recall_weights(confusion, floor=floor)
    counts = np.array(confusion)
    seen = counts.sum(axis=1) > 0
    assert (weights > 0).all()
    assert weights.mean() == pytest.approx(1)
    assert (weights[~seen] == 1).all()
    recalls = np.diagonal(counts)[seen] / counts[seen].sum(axis=1)
    assert (np.diff(weights[seen][np.argsort(-recalls, kind="stable")]) >= -1e-12).all()
    assert weights[seen].max(initial=1) <= weights[seen].min(initial=1) * (1 + floor) / floor * (1 + 1e-9)


@pytest.mark.parametrize(
    ("confusion", "settings", "message"),
    [
        ([[1, 2]], {}, r"got \(1, 2\); leave a background"),
        ([1, 2], {}, r"got \(2,\)"),
        (np.empty((0, 0)), {}, r"got \(0, 0\)"),
        ([[1, 2], [-1, 0]], {}, r"confusion\[1, 0\]=-1"),
        ([[1, np.nan], [1, 0]], {}, r"confusion\[0, 1\]=nan"),
        ([[1.0]], {"floor": 0.0}, "floor=0.0"),
        ([[1.0]], {"floor": np.inf}, "floor=inf"),
    ],
)
def test_invalid_confusion_matrices_are_refused(confusion, settings, message):
    with pytest.raises(ValueError, match=message):
        recall_weights(confusion, **settings)
