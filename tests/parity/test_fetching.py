"""Fetching: ``__getitem__``, ``__getitems__``, no batching, subsets and other wrappers, sizes of batches."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, Subset, TensorDataset, random_split

from tests.support.parity_backends import BREADTH, EVERY, FORK, INLINE, assert_alike
from tests.support.parity_datasets import Count, Numbers, Samples, as_is, as_list


class ByBatch(Dataset):
    """Samples name the method and the type of the indices."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return ("getitem", index)

    def __getitems__(self, indices):
        return [("getitems", type(indices).__name__, index) for index in indices]


class WithoutByBatch(ByBatch):
    __getitems__ = None


class WrongCount(ByBatch):
    def __getitems__(self, indices):
        return [index for index in indices for _ in range(3)]


class NoList(ByBatch):
    """Returns a whole tensor, which only a collate function can handle."""

    def __getitems__(self, indices):
        return torch.tensor(indices)


class ByAttribute(ByBatch):
    """Has ``__getitems__`` as an attribute of the object."""

    __getitems__ = None

    def __init__(self):
        self.__getitems__ = lambda indices: [("attribute", index) for index in indices]


DATASETS = {
    "getitem": lambda: (Numbers(), {"batch_size": 4}),
    "getitems": lambda: (ByBatch(), {"batch_size": 3}),
    "getitems, shuffled": lambda: (ByBatch(), {"batch_size": 3, "shuffle": True}),
    "getitems without batching": lambda: (ByBatch(), {"batch_size": None}),
    "getitems that is None": lambda: (WithoutByBatch(), {"batch_size": 3}),
    "getitems that is an attribute": lambda: (ByAttribute(), {"batch_size": 3}),
    "getitems of another count": lambda: (WrongCount(), {"batch_size": 3}),
    "getitems that gives a tensor": lambda: (NoList(), {"batch_size": 3, "collate_fn": as_is}),
    "getitems and a batch sampler": lambda: (ByBatch(), {"batch_sampler": [(1, 2), range(3)]}),
    "subset": lambda: (Subset(Numbers(), [5, 1, 9, 2, 2]), {"batch_size": 2}),
    "subset of one with getitems": lambda: (Subset(ByBatch(), [5, 1, 0]), {"batch_size": 2}),
    "subset of a subset": lambda: (Subset(Subset(Numbers(), range(3, 9)), [5, 0, 2]), {"batch_size": 2}),
    "subset without batching": lambda: (Subset(Numbers(), [4, 2]), {"batch_size": None}),
    "random split": lambda: (random_split(Numbers(), [4, 7])[1], {"batch_size": 3, "shuffle": True}),
    "concatenation": lambda: (ConcatDataset([Numbers(3), Samples([7, 8])]), {"batch_size": 2}),
    "chain": lambda: (ChainDataset([Count(2), Count(3)]), {"batch_size": 2}),
    "tensor dataset": lambda: (TensorDataset(torch.arange(6).view(3, 2), torch.ones(3)), {"batch_size": 2}),
    "list": lambda: ([1.5, 2.5, 3.5], {"batch_size": 2}),
    "string": lambda: ("abcdef", {"batch_size": 4}),
    "dict": lambda: ({0: "a", 1: "b"}, {"batch_size": 2}),
    "range": lambda: (range(5), {"batch_size": 2}),
    "tensor": lambda: (torch.arange(6).view(3, 2), {"batch_size": 2}),
    "empty": lambda: (Numbers(0), {"batch_size": 2}),
    "empty, shuffled": lambda: (Samples([]), {"batch_size": 2, "sampler": []}),
    "empty, dropping": lambda: ([], {"batch_size": 2, "drop_last": True}),
    "smaller than a batch": lambda: (Numbers(3), {"batch_size": 64}),
    "smaller than a batch, dropping": lambda: (Numbers(3), {"batch_size": 64, "drop_last": True}),
    "as large as a batch": lambda: (Numbers(4), {"batch_size": 4, "drop_last": True}),
    "a last batch": lambda: (Numbers(11), {"batch_size": 4}),
    "a last batch, dropping": lambda: (Numbers(11), {"batch_size": 4, "drop_last": True}),
    "batches of one": lambda: (Numbers(3), {}),
    "collate_fn": lambda: (Numbers(5), {"batch_size": 2, "collate_fn": as_list}),
    "collate_fn without batching": lambda: (Numbers(5), {"batch_size": None, "collate_fn": torch.tensor}),
    "collate_fn that gives nothing": lambda: (Numbers(5), {"batch_size": 2, "collate_fn": lambda samples: None}),
    "collate_fn that raises": lambda: (Numbers(5), {"batch_size": 2, "collate_fn": lambda samples: samples[9]}),
    "zero-size samples": lambda: (Samples([torch.empty(0, 3)] * 4), {"batch_size": 3}),
    "samples of no dimension": lambda: (Samples(list(torch.arange(5.0))), {"batch_size": 2}),
    "8 MB samples": lambda: (Samples([torch.arange(2_000_000)] * 3), {"batch_size": 2, "collate_fn": sums}),
    "storages": lambda: (Samples([torch.ones(2).untyped_storage()]), {"batch_size": None}),
    "nothing at all": lambda: (Samples([{}, {}]), {"batch_size": 2}),
}


def sums(samples):
    """Return a batch too large for a pipe, reduced to values that can be compared."""
    return {
        "sum": torch.stack(samples).sum(),
        "bytes": bytes(3_000_000).count(0),
        "large": torch.stack(samples)[:, ::4000],
    }


# Other cases cover their path in workers.
INLINE_IS_ENOUGH = ["list", "string", "dict", "range", "tensor", "batches of one", "empty, shuffled", "a last batch"]
INLINE_IS_ENOUGH += [
    name for name in DATASETS if name.startswith(("as large", "smaller", "zero-size", "samples of no"))
]
INLINE_IS_ENOUGH += ["subset of a subset", "subset without batching", "getitems that is an attribute", "concatenation"]
# Their path in workers is nearly the same.
WORKERS_IN_THE_SOAK = [
    "getitems, shuffled",
    "getitems that is None",
    "random split",
    "empty, dropping",
    "collate_fn",
    "tensor dataset",
    "subset",
    "getitems of another count",
]


@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_torchs(name):
    assert_alike(DATASETS[name], *([INLINE] if name in INLINE_IS_ENOUGH + WORKERS_IN_THE_SOAK else BREADTH))


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKERS_IN_THE_SOAK)
def test_batches_of_workers_are_torchs(name):
    assert_alike(DATASETS[name], *BREADTH)


def test_dataset_that_returns_whole_batches_works_without_batching():
    batches = [torch.arange(3), torch.arange(7), torch.empty(0)]
    actual = assert_alike(lambda: (Samples(batches), {"batch_size": None}), *EVERY)
    assert [batch[-2] for batch in actual["epochs"][0][:3]] == [(3,), (7,), (0,)]


def test_batches_of_64_mb_arrive_complete():
    for kind, workers in FORK.both:
        loader = kind(Samples([torch.full((1 << 24,), n, dtype=torch.int32) for n in range(3)]), **workers)
        for number, batch in enumerate(loader):
            assert batch.shape == (1, 1 << 24)
            assert batch.min() == batch.max() == number
