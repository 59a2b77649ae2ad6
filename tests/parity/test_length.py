"""Length: ``len`` of a loader and of an iterator, and the warning about more batches than that."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

from lit_loader import DataLoader
from tests.support.parity_backends import BREADTH, FORK, INLINE, THREAD, assert_alike, each_of, length
from tests.support.parity_datasets import Count, Numbers, SizedCount, Unsized

BATCHING = [{"batch_size": size, "drop_last": drop} for size in (1, 4, 11, 20) for drop in (False, True)]
BATCHING.append({"batch_size": None})


@pytest.mark.parametrize("seed", [{}, {"seed": 0}], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("size", [0, 1, 4, 11, 12])
def test_length_of_a_map_dataset_is_torchs(size, seed):
    for arguments in BATCHING:
        torchs = TorchDataLoader(Numbers(size), **arguments)
        ours = DataLoader(Numbers(size), **arguments, **seed)
        assert len(ours) == len(torchs)
        assert len(iter(ours)) == len(iter(torchs))


@pytest.mark.parametrize("size", [0, 1, 4, 11])
def test_length_of_an_iterable_dataset_with_a_length_is_torchs(size):
    for arguments in BATCHING:
        torchs, ours = (kind(SizedCount(size, size), **arguments) for kind in (TorchDataLoader, DataLoader))
        assert len(ours) == len(torchs)
        assert length(iter(ours)) == length(iter(torchs))
        assert length(iter(ours))[:2] == ("raised", "TypeError")


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Count(3), {}),
        (Count(3), {"batch_size": None}),
        (Unsized(), {"sampler": (i for i in range(3))}),
        (Unsized(), {"batch_sampler": ([i] for i in range(3))}),
        (Unsized(), {"sampler": iter([1]), "batch_size": None}),
        (Unsized(), {}),
    ],
    ids=["iterable", "unbatched", "generator", "batch generator", "iterator", "unsized"],
)
def test_unknown_length_raises_torchs_error(dataset, arguments):
    torchs, ours = (length(kind(dataset, **arguments)) for kind in (TorchDataLoader, DataLoader))
    assert ours == torchs
    assert ours[1] == "TypeError"


def test_reported_length_of_a_sampler_is_used():
    class Wrong(SequentialSampler):
        def __len__(self):
            return 100

    for batch_size, expected in ((1, 100), (8, 13)):
        for kind in (TorchDataLoader, DataLoader):
            loader = kind(Numbers(5), sampler=Wrong(range(5)), batch_size=batch_size)
            assert len(loader) == expected
            assert sum(len(batch) for batch in loader) == 5


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("reported_length", [0, 3, 7])
def test_every_batch_beyond_the_reported_length_of_an_iterable_gives_a_warning(batch_size, reported_length):
    actual = assert_alike(lambda: (SizedCount(reported_length, 4, 3), {"batch_size": batch_size}), *BREADTH)
    if reported_length == 0:
        assert "was reported to be 0(when accessing len(dataloader)), but 1 samples" in actual["warnings"][0][1]


@each_of(INLINE, FORK, THREAD)
def test_no_warning_without_a_call_of_len(backend):
    for kind, workers in backend.both:  # a warning would be an error here
        assert len(list(kind(SizedCount(1, 3), **workers))) == 3 * max(1, backend.num_workers)


def test_length_read_after_iter_is_for_the_next_iterator():
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(SizedCount(1, 3))
        iterator = iter(loader)
        assert len(loader) == 1
        assert len(list(iterator)) == 3
        with pytest.warns(UserWarning, match="reported to be 1") as caught:
            assert len(list(loader)) == 3
        assert len(caught) == 2


def test_length_follows_a_growing_dataset():
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(dataset := [1, 2, 3], batch_size=2)
        iterator = iter(loader)
        assert (len(loader), len(iterator)) == (2, 2)
        dataset += [4, 5]
        assert (len(loader), len(iterator)) == (3, 3)
