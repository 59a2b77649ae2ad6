"""Without a seed the loader gives what torch's gives, value for value and draw for draw."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset, WeightedRandomSampler

from lit_loader import DataLoader
from tests.support.toys import Drawing, Mixed, Stream, collate_with_draw, plain


class Batches:
    """A batch sampler that is not a Sampler, of containers that are not lists."""

    def __iter__(self):
        return iter([(0, 3), np.array([1, 2, 5]), range(4)])

    def __len__(self):
        return 3


def tensors():
    return TensorDataset(torch.randn(11, 3, generator=torch.Generator().manual_seed(0)), torch.arange(11))


CASES = {
    "tensor dataset": lambda: (tensors(), {"batch_size": 4}),
    "dict dataset": lambda: (Mixed(), {"batch_size": 3}),
    "iterable dataset": lambda: (Stream(), {"batch_size": 4}),
    "custom batch sampler": lambda: (tensors(), {"batch_sampler": Batches()}),
    "torch's weighted sampler": lambda: (
        Drawing(),
        {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 23, 30)},
    ),
    "shuffled": lambda: (Drawing(), {"batch_size": 4, "shuffle": True}),
    "shuffled by a generator": lambda: (
        Drawing(),
        {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(4)},
    ),
    "collate_fn that draws": lambda: (Drawing(), {"batch_size": 6, "collate_fn": collate_with_draw}),
}


def epochs_of(kind, case, **workers):
    """Return two epochs of batches, and draws of the process afterwards."""
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    dataset, arguments = CASES[case]()
    loader = kind(dataset, **arguments, **workers)
    batches = [[plain(batch) for batch in loader] for _ in range(2)]
    draws = (torch.rand(1).item(), np.random.rand(), random.random())
    return batches, draws


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_and_draws_equal_torchs(case, num_workers):
    expected = epochs_of(TorchDataLoader, case, num_workers=num_workers)
    assert epochs_of(DataLoader, case, num_workers=num_workers) == expected


@pytest.mark.parametrize("case", ["iterable dataset", "shuffled", "dict dataset"])
def test_persistent_workers_equal_torchs(case):
    workers = {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 3}
    assert epochs_of(DataLoader, case, **workers) == epochs_of(TorchDataLoader, case, **workers)


def test_batches_may_be_delivered_out_of_order():
    for seed in ({}, {"seed": 3}):
        loader = DataLoader(tensors(), batch_size=2, num_workers=2, in_order=False, **seed)
        assert sorted(i for _, labels in loader for i in labels.tolist()) == list(range(11))
