"""Iterable datasets: streams that end at different times, immediately, or that are divided among workers."""

from __future__ import annotations

import itertools

import pytest
from torch.utils.data import IterableDataset

from tests.support.parity_backends import (
    BREADTH,
    EVERY,
    FORK,
    INLINE,
    KEPT,
    THREAD,
    assert_alike,
    close,
    each_of,
    events,
    same_for_both,
)
from tests.support.parity_datasets import Count, Sharded, SizedCount, as_list


class NotGenerator(IterableDataset):
    """Its iterator is not a generator."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(list(range(self.length)))


class ItsOwnIterator(IterableDataset):
    """Continues where the last epoch in this process stopped."""

    def __init__(self, length):
        self.numbers = list(range(length))

    def __iter__(self):
        return self

    def __next__(self):
        if not self.numbers:
            raise StopIteration
        return self.numbers.pop(0)


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


STREAMS = {
    "one length": lambda: Count(7),
    "two lengths": lambda: Count(2, 9),
    "the first is empty": lambda: Count(0, 5),
    "the second is empty": lambda: Count(5, 0),
    "all are empty": lambda: Count(0),
    "sharded": lambda: Sharded(11),
    "fewer than workers": lambda: Sharded(1),
    "no generator": lambda: NotGenerator(5),
    "its own iterator": lambda: ItsOwnIterator(9),
    "with a length": lambda: SizedCount(6, 6),
}


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}, {"collate_fn": as_list}],
    ids=["batched", "dropping", "unbatched", "collate_fn"],
)
@pytest.mark.parametrize("name", STREAMS)
def test_batches_inline_are_torchs(name, arguments):
    assert_alike(lambda: (STREAMS[name](), arguments), INLINE)


DROPPING = {"batch_size": 3, "drop_last": True}
UNBATCHED = {"batch_size": None}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("two lengths", DROPPING),
        ("the first is empty", UNBATCHED),
        ("all are empty", DROPPING),
        ("sharded", DROPPING),
        ("fewer than workers", UNBATCHED),
        *(
            pytest.param(*both, marks=pytest.mark.soak)
            for both in [
                ("two lengths", UNBATCHED),
                ("the first is empty", DROPPING),
                ("all are empty", UNBATCHED),
                ("sharded", UNBATCHED),
                ("fewer than workers", DROPPING),
            ]
        ),
    ],
    ids=str,
)
def test_batches_of_workers_are_torchs(name, arguments):
    assert_alike(lambda: (STREAMS[name](), arguments), *BREADTH)


def test_dataset_that_is_its_own_iterator_is_exhausted_in_persistent_workers():
    # Worker threads share one such dataset, worker processes have a copy each.
    actual = assert_alike(lambda: (ItsOwnIterator(7), {"batch_size": 2}), FORK, KEPT)
    assert actual["epochs"][1] == ["end", "end"]


@pytest.mark.parametrize(
    ("lengths", "prefetch_factor"),
    [
        ((1, 9, 4), 1),
        ((9, 1, 0), 4),
        ((0, 0, 6), 1),
        *(pytest.param(*both, marks=pytest.mark.soak) for both in [((1, 9, 4), 4), ((9, 1, 0), 1), ((0, 0, 6), 4)]),
    ],
    ids=str,
)
def test_three_workers_end_in_any_order(lengths, prefetch_factor):
    settings = {"batch_size": 2, "num_workers": 3, "prefetch_factor": prefetch_factor}
    for backend in (FORK, THREAD):
        same_for_both(backend, lambda kind, workers: events(iter(kind(Count(*lengths), **workers | settings))))


@each_of(INLINE, FORK, THREAD)
def test_endless_stream_can_be_abandoned(backend):
    for kind, workers in backend.both:
        loader = kind(Endless(), batch_size=2, **workers)
        firsts = [batch.tolist() for batch in itertools.islice(loader, 5)]
        assert firsts[0] == [0, 1]
        assert len(firsts) == 5


@each_of(FORK, KEPT, THREAD)
def test_order_of_each_workers_batches_is_kept_out_of_order(backend):
    def by_worker(kind, workers):
        loader = kind(Count(8, 5), batch_size=2, in_order=False, **workers)
        batches = [batch.tolist() for batch in loader]
        close(loader)
        return [[batch for batch in batches if batch[0] // 100 == worker] for worker in range(2)]

    same_for_both(backend, by_worker)


@each_of(INLINE, FORK, THREAD)
def test_stream_restarts_with_each_iterator(backend):
    for kind, workers in backend.both:
        loader = kind(Count(3), **workers)
        first = iter(loader)
        second = iter(loader)
        assert [next(first).item(), next(second).item()] == [0, 0]


@each_of(INLINE, FORK, KEPT, THREAD)
def test_ended_iterator_stays_ended(backend):
    for kind, workers in backend.both:
        loader = kind(Count(2), **workers)
        iterator = iter(loader)
        list(iterator)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)
        close(loader)


def test_iterating_does_not_call_len_of_an_iterable():
    class Refuses(Count):
        def __len__(self):
            raise AssertionError("len was called")

    for backend in EVERY:
        for kind, workers in backend.both:
            loader = kind(Refuses(2), batch_size=2, **workers)
            assert len([batch for batch in loader]) == max(1, backend.num_workers)  # noqa: C416 (list() calls len)
            close(loader)
