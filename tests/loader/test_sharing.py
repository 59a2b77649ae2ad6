"""Batches that several workers make together: by whom, when, how they are collated, and what may not be shared."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from lit_loader import DataLoader
from lit_loader.collate import default_collate as own_default_collate
from tests.scheduled_set import Draws
from tests.toys import Drawing, DrawingBatches, Failing, collate_with_draw, plain

METHODS = pytest.mark.parametrize("method", ["multiprocessing", "thread"])


class Makers(Dataset):
    """Who made each sample: process and thread."""

    def __init__(self, length=32, seconds=0.0):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return os.getpid() % 100_000 * 100_000 + threading.get_ident() % 99_991


def makers(loader):
    """Return how many workers had a hand in each batch."""
    return [len(set(batch.tolist())) for batch in loader]


class Meeting(Dataset):
    """Each of two samples waits until the other one is being made."""

    def __init__(self, here):
        self.here = here

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.here[index].set()
        assert self.here[1 - index].wait(20)
        return index


@METHODS
def test_one_batch_is_in_several_hands_at_once(method):
    kind = threading if method == "thread" else torch.multiprocessing
    loader = DataLoader(
        Meeting([kind.Event(), kind.Event()]),
        batch_size=2,
        num_workers=2,
        seed=0,
        worker_method=method,
        share_batches=True,
    )
    assert [batch.tolist() for batch in loader] == [[0, 1]]


@METHODS
def test_slow_samples_are_shared_and_a_batch_whose_samples_are_fast_is_one_workers(method):
    arguments = {"num_workers": 2, "seed": 0, "worker_method": method, "persistent_workers": True}
    with DataLoader(Makers(64, 0.02), batch_size=16, **arguments) as slow:
        assert max(makers(slow)) == 2
    with DataLoader(Makers(512), batch_size=16, **arguments) as fast:
        list(fast)  # how fast is known then
        assert set(makers(fast)) == {1}


@METHODS
def test_false_shares_nothing(method):
    with DataLoader(
        Makers(64, 0.01), batch_size=16, num_workers=2, seed=0, worker_method=method, share_batches=False
    ) as loader:
        assert set(makers(loader)) == {1}


@METHODS
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_shared_batches_are_the_same_bits(method, in_order, num_workers):
    inline = [plain(batch) for batch in DataLoader(Draws(), batch_size=5, shuffle=True, seed=3)]
    loader = DataLoader(
        Draws(),
        batch_size=5,
        shuffle=True,
        seed=3,
        num_workers=num_workers,
        share_batches=True,
        worker_method=method,
        in_order=in_order,
    )
    found = [plain(batch) for batch in loader]
    assert found == inline if in_order else sorted(map(str, found)) == sorted(map(str, inline))


class Counting:
    """A collate function of ours, as far as its home says, that counts its calls in this process."""

    __module__ = "lit_loader.collate.counting"
    calls = 0

    def __call__(self, samples):
        type(self).calls += 1
        return list(samples)


@METHODS
def test_a_shared_batch_is_collated_once_and_whole(method, monkeypatch):
    monkeypatch.setattr(Counting, "calls", 0)
    loader = DataLoader(
        list(range(12)),
        batch_size=4,
        seed=5,
        collate_fn=Counting(),
        num_workers=2,
        share_batches=True,
        worker_method=method,
    )
    assert list(loader) == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8)]
    assert Counting.calls == 3  # by worker threads, and for worker processes by the consumer


def test_the_consumers_generators_are_its_own_while_it_collates_what_worker_processes_made():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert len(list(DataLoader(Draws(), batch_size=8, seed=5, num_workers=2, share_batches=True))) == 3
    assert torch.equal(torch.rand(3), expected)


@METHODS
@pytest.mark.parametrize("first", [0, 3])
def test_the_first_error_of_a_batch_is_raised_whatever_the_timing_and_iteration_goes_on(method, first):
    class Timed(Failing):
        def __getitem__(self, index):
            if index == first:
                time.sleep(0.05)  # the second error is there before the first
            return super().__getitem__(index)

    dataset = Timed({first: KeyError("first"), first + 2: ValueError("second")}, 12)
    loader = DataLoader(
        dataset, batch_size=6, num_workers=3, seed=0, share_batches=True, worker_method=method
    )
    iterator = iter(loader)
    with pytest.raises(KeyError, match="first"):
        next(iterator)
    assert next(iterator).tolist() == list(range(6, 12))
    with pytest.raises(StopIteration):
        next(iterator)


@METHODS
def test_an_error_of_the_collate_function_of_a_shared_batch_has_its_own_type(method):
    ragged = [torch.zeros(2), torch.zeros(3), torch.zeros(2), torch.zeros(2)]
    loader = DataLoader(ragged, batch_size=2, num_workers=2, seed=0, share_batches=True, worker_method=method)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="size"):
        next(iterator)
    assert next(iterator).shape == (2, 2)
    del iterator


@METHODS
def test_a_batch_that_a_foreign_sampler_names_by_any_container_is_shared(method):
    loader = DataLoader(
        list(range(100, 112)),
        batch_sampler=[{0, 1, 2}, (3, 4), range(5, 9), dict.fromkeys((9, 10)), torch.tensor([11, 0])],
        num_workers=2,
        seed=0,
        share_batches=True,
        worker_method=method,
    )
    expected = [[100, 101, 102], [103, 104], [105, 106, 107, 108], [109, 110], [111, 100]]
    assert [batch.tolist() for batch in loader] == expected


def test_a_split_is_shared_as_its_samples_keep_their_keys():
    split = Subset(Drawing(), [4, 2, 9, 7])
    inline = [plain(batch) for batch in DataLoader(split, batch_size=4, seed=3)]
    loader = DataLoader(split, batch_size=4, seed=3, num_workers=2, share_batches=True)
    assert [plain(batch) for batch in loader] == inline


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Drawing(), {}),
        (Drawing(), {"seed": 1, "batch_size": None}),
        (Drawing(), {"seed": 1, "collate_fn": collate_with_draw}),
        (DrawingBatches(), {"seed": 1}),
        (Subset(DrawingBatches(), [0, 1]), {"seed": 1}),
        (Numbers(), {"seed": 1}),
    ],
    ids=[
        "no seed",
        "no batches",
        "a collate function of the user's",
        "getitems",
        "getitems below",
        "iterable",
    ],
)
def test_what_cannot_be_shared_is_not_and_true_says_so(dataset, arguments):
    arguments = {"batch_size": 4, **arguments}
    with pytest.raises(ValueError, match="share_batches=True needs"):
        DataLoader(dataset, num_workers=2, share_batches=True, **arguments)
    if arguments.get("seed") is not None:
        inline = [plain(batch) for batch in DataLoader(dataset, **arguments)]
        found = [plain(batch) for batch in DataLoader(dataset, num_workers=1, **arguments)]
        assert sorted(map(str, found)) == sorted(map(str, inline))


def test_a_collate_function_that_is_exchanged_for_a_foreign_one_gets_whole_batches():
    with DataLoader(
        Makers(32, 0.01),
        batch_size=8,
        num_workers=2,
        seed=0,
        persistent_workers=True,
        collate_fn=own_default_collate,
    ) as loader:
        list(loader)
    loader.collate_fn = list
    with loader:
        assert {len(set(batch)) for batch in loader} == {1}
