"""New weights between epochs: later orders use them, and batches that were made ahead are dropped."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.samplers import WeightedRandomSampler

OLD = np.arange(1.0, 41.0)
NEW = np.arange(40.0, 0.0, -1.0) ** 2


class Indices(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("replacement", [True, False])
def test_new_weights_affect_only_later_orders(replacement):
    sampler = WeightedRandomSampler(OLD, 30, replacement)
    order = sampler.order(seed=1, epoch=0)
    first = order[:10]
    assert sampler.revision == 0
    sampler.set_weights(NEW)
    assert sampler.revision == 1
    expected = WeightedRandomSampler(NEW, 30, replacement)
    np.testing.assert_array_equal(sampler.order(seed=1, epoch=0)[:], expected.order(seed=1, epoch=0)[:])
    np.testing.assert_array_equal(order[:10], first)
    np.testing.assert_array_equal(order[:], WeightedRandomSampler(OLD, 30, replacement).order(seed=1, epoch=0)[:])
    np.testing.assert_array_equal(sampler.weights, NEW)
    if replacement:
        np.testing.assert_array_equal(sampler.expected_visits(), expected.expected_visits())
    assert pickle.loads(pickle.dumps(sampler)).revision == 1


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1.0, 2.0], ValueError, "`weights` must have 3 entries, one an index, got 2"),
        ([1.0, -2.0, 1.0], ValueError, r"weights\[1\]=-2\.0"),
        ([1.0, 0.0, 0.0], ValueError, "num_samples=2 exceeds the 1 positive weights"),
        (["a", "b", "c"], TypeError, "one number an index"),
    ],
)
def test_invalid_weights_are_refused_and_change_nothing(weights, error, message):
    sampler = WeightedRandomSampler([1.0, 2.0, 3.0], 2, replacement=False)
    fingerprint = sampler.fingerprint()
    with pytest.raises(error, match=message):
        sampler.set_weights(weights)
    assert (sampler.revision, sampler.fingerprint()) == (0, fingerprint)
    assert sampler.weights.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_prefetched_epoch_is_dropped_after_new_weights(method):
    sampler = WeightedRandomSampler(OLD)
    workers = {"num_workers": 2, "persistent_workers": True, "worker_method": method}
    with DataLoader(Indices(), batch_size=4, sampler=sampler, seed=5, **workers) as loader:

        def epoch():
            return [index for batch in loader for index in batch.tolist()]

        def drawn(weights, number):
            return WeightedRandomSampler(weights).order(seed=5, epoch=number)[:].tolist()

        assert epoch() == drawn(OLD, 0)
        ahead = loader._worker_manager.next_epoch
        assert ahead is not None  # epoch 1 was begun, with the old weights
        sampler.set_weights(NEW)
        assert epoch() == drawn(NEW, 1) != drawn(OLD, 1)
        assert epoch() == drawn(NEW, 2)
