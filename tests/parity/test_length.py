"""Length: ``len`` of a loader and of an iterator, and the warning when more batches come than that."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

from lit_loader import DataLoader
from tests.support.parity_backends import BREADTH, FORK, INLINE, THREAD, assert_alike, each_of, length
from tests.support.parity_datasets import Count, Numbers, SizedCount, Unsized


@pytest.mark.parametrize("seed", [{}, {"seed": 0}], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("size", [0, 1, 4, 11, 12])
def test_length_of_a_map_dataset(size, seed):
    for batch_size in (1, 4, 11, 20, None):
        for drop_last in (False, True) if batch_size else (False,):
            arguments = {"batch_size": batch_size, "drop_last": drop_last}
            torchs, ours = (TorchDataLoader(Numbers(size), **arguments), DataLoader(Numbers(size), **arguments, **seed))
            assert len(ours) == len(torchs)
            assert len(iter(ours)) == len(iter(torchs))


@pytest.mark.parametrize("size", [0, 1, 4, 11])
def test_length_of_an_iterable_dataset_with_a_length(size):
    for batch_size in (1, 4, 11, 20, None):
        for drop_last in (False, True) if batch_size else (False,):
            arguments = {"batch_size": batch_size, "drop_last": drop_last}
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


def test_the_length_of_a_sampler_is_believed():
    class Wrong(SequentialSampler):
        def __len__(self):
            return 100

    for arguments, expected in [
        ({"sampler": Wrong(range(5))}, 100),
        ({"sampler": Wrong(range(5)), "batch_size": 8}, 13),
    ]:
        for kind in (TorchDataLoader, DataLoader):
            assert len(kind(Numbers(5), **arguments)) == expected
            assert sum(len(batch) for batch in kind(Numbers(5), **arguments)) == 5


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("told", [0, 3, 7])
def test_more_batches_than_an_iterable_dataset_told_are_warned_about_one_by_one(batch_size, told):
    actual = assert_alike(lambda: (SizedCount(told, 4, 3), {"batch_size": batch_size}), *BREADTH)
    if told == 0:
        assert "was reported to be 0(when accessing len(dataloader)), but 1 samples" in actual["warnings"][0][1]


@each_of(INLINE, FORK, THREAD)
def test_no_warning_if_the_length_was_never_asked_for(backend):
    for kind, workers in backend.both:  # a warning would be an error here
        assert len(list(kind(SizedCount(1, 3), **workers))) == 3 * max(1, backend.num_workers)


def test_a_length_asked_for_after_iter_is_for_the_next_iterator():
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(SizedCount(1, 3))
        iterator = iter(loader)
        assert len(loader) == 1
        assert len(list(iterator)) == 3
        with pytest.warns(UserWarning, match="reported to be 1") as caught:
            assert len(list(loader)) == 3
        assert len(caught) == 2


def test_the_length_follows_a_dataset_that_grows():
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(dataset := [1, 2, 3], batch_size=2)
        iterator = iter(loader)
        assert (len(loader), len(iterator)) == (2, 2)
        dataset += [4, 5]
        assert (len(loader), len(iterator)) == (3, 3)
