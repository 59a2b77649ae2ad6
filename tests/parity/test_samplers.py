"""Samplers and batch samplers: any iterable, with indices of any type, any container, and right or wrong lengths."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tests.support.parity_backends import (
    BREADTH,
    EVERY,
    FORK,
    INLINE,
    THREAD,
    WORKERS,
    Backend,
    assert_alike,
    close,
    described,
    each_of,
    events,
    everywhere,
    same_for_both,
)
from tests.support.parity_datasets import Numbers, Samples, Unsized, as_is, as_list

PERSISTENT = {"num_workers": 1, "persistent_workers": True}
KEYS = {"a": 1, "b": 2, (0, "x"): 3, b"bytes": 4, None: 5, 1.5: 6, frozenset({1}): 7}


class Plain:
    """A sampler without a base class, which restarts at each ``iter``."""

    def __init__(self, *indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)


class Sized(Plain):
    def __init__(self, reported_length, *indices):
        super().__init__(*indices)
        self.reported_length = reported_length

    def __len__(self):
        return self.reported_length


SAMPLERS = {
    "list": lambda: [3, 1, 2, 1],
    "tuple": lambda: (0, 5),
    "range": lambda: range(2, 9, 3),
    "set": lambda: {4},
    "dict": lambda: {2: "two", 3: "three"},
    "deque": lambda: deque([1, 1]),
    "array": lambda: np.array([2, 7, 1]),
    "2-dim array": lambda: np.array([[2, 7], [1, 1]]),
    "tensor": lambda: torch.tensor([3, 2, 1]),
    "no Sampler": lambda: Plain(9, 8, 7),
    "too long": lambda: Sized(2, 1, 2, 3, 4),
    "too short": lambda: Sized(9, 1, 2),
    "negative length": lambda: Sized(-1, 1, 2),
    "empty": lambda: [],
    "once only": lambda: iter([4, 5, 6]),
    "generator": lambda: (i for i in (6, 5, 4)),
    "numpy integers": lambda: [np.int64(1), np.uint8(2), np.array(3)],
    "booleans": lambda: [True, False],
    "floats": lambda: [0.5, float("inf")],
    "strings": lambda: ["a", "text"],
    "slices": lambda: [slice(1, 3), slice(None)],
    "lists": lambda: [[1, 2], [], [3]],
    "none": lambda: [None, None],
    "torch's sequential": lambda: SequentialSampler(range(5)),
    "torch's random": lambda: RandomSampler(range(7)),
    "torch's random, replacement": lambda: RandomSampler(range(7), replacement=True, num_samples=40),
    "torch's random, more than there are": lambda: RandomSampler(range(7), num_samples=17),
    "torch's subset": lambda: SubsetRandomSampler([5, 3, 8]),
    "torch's weighted": lambda: WeightedRandomSampler([1.0, 2.0, 3.0], 9),
    "torch's weighted, without replacement": lambda: WeightedRandomSampler([1.0, 2.0, 3.0], 2, replacement=False),
    "torch's distributed": lambda: DistributedSampler(range(9), num_replicas=2, rank=1, seed=3),
    "a string": lambda: "abc",
}


class Chained:
    """Yields the items of several samplers, one after the other."""

    def __init__(self, makers):
        self.makers = makers

    def __iter__(self):
        for make in self.makers.values():
            yield from make()


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_is_any_iterable_of_any_indices(name):
    for arguments in ({"batch_size": 2, "collate_fn": as_list}, {"batch_size": None, "collate_fn": as_is}):
        actual = assert_alike(lambda a=arguments: (Numbers(), {"sampler": SAMPLERS[name](), **a}), INLINE)
        assert (actual["epochs"][0] == ["end", "end"]) is (name == "empty")


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 2, "collate_fn": as_list}, {"batch_size": None}], ids=["batched", "unbatched"]
)
def test_indices_of_any_type_reach_workers_unchanged(arguments):
    assert_alike(lambda: (Numbers(), {"sampler": Chained(SAMPLERS), **arguments}), *EVERY)


@pytest.mark.parametrize("drop_last", [False, True])
def test_keys_of_a_mapping_are_indices(drop_last):
    actual = assert_alike(
        lambda: (Samples(KEYS), {"sampler": list(KEYS), "batch_size": 3, "drop_last": drop_last}), *BREADTH
    )
    assert actual["epochs"][0][0][:2] == ("torch.Tensor", "torch.int64")


BATCHES = {
    "lists": lambda: [[0, 3], [1]],
    "tuples": lambda: [(0, 3), (1, 1)],
    "ranges": lambda: [range(4), range(4, 6)],
    "arrays": lambda: [np.array([1, 2, 5]), np.array([3])],
    "2-dim arrays": lambda: [np.array([[1, 2], [3, 4]])],
    "tensors": lambda: [torch.tensor([1, 2]), torch.tensor([3])],
    "one tensor": lambda: torch.arange(6).view(3, 2),
    "sets": lambda: [{1}, {2}],
    "dicts": lambda: [{1: "a", 2: "b"}],
    "deques": lambda: [deque([4, 5])],
    "strings": lambda: ["ab", "c"],
    "of keys": lambda: [["a", (0, "x")], [None]],
    "empty ones": lambda: [[], [1], []],
    "no containers": lambda: [1, 2],
    "generator": lambda: ([i, i + 1] for i in range(3)),
    "no Sampler": lambda: Plain([1, 2], [3]),
    "wrong length": lambda: Sized(7, [1, 2], [3]),
    "torch's": lambda: BatchSampler(SequentialSampler(range(7)), 3, drop_last=True),
    "torch's over a random one": lambda: BatchSampler(RandomSampler(range(7)), 3, drop_last=False),
    "torch's over a list": lambda: BatchSampler([5, 4, 3], 2, drop_last=False),
    "torch's over keys": lambda: BatchSampler(["a", "b", "a"], 2, drop_last=False),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_sampler_is_any_iterable_of_any_containers(name):
    actual = assert_alike(lambda: (Numbers(), {"batch_sampler": BATCHES[name](), "collate_fn": as_list}), INLINE)
    assert len(actual["epochs"][0]) > 2


def test_containers_of_any_type_reach_workers_unchanged():
    assert_alike(lambda: (Numbers(), {"batch_sampler": Chained(BATCHES), "collate_fn": as_list}), INLINE, *WORKERS)


def test_one_shot_batch_of_indices_is_read_once_inline():
    actual = assert_alike(
        lambda: (Numbers(), {"batch_sampler": Plain(map(abs, [1, -2]), iter([3])), "collate_fn": as_list}), INLINE
    )
    assert [batch[1] for batch in actual["epochs"][0][:2]] == [[described(1), described(2)], [described(3)]]


def test_dataset_without_a_length_works_with_a_sampler():
    assert_alike(lambda: (Unsized(), {"sampler": Plain(5, 6, 7), "batch_size": 2}), *EVERY)


class Recording(Sampler):
    """Records when an iterator and an index are requested."""

    def __init__(self, length):
        self.length = length
        self.log = []

    def __iter__(self):
        self.log.append("iter")
        return self._indices()

    def _indices(self):
        self.log.append("begin")
        for index in range(self.length):
            self.log.append(index)
            yield index
        self.log.append("end")


@everywhere
@pytest.mark.parametrize("batch_size", [3, None], ids=["batched", "unbatched"])
def test_sampler_is_read_when_torch_reads_it(backend, batch_size):
    def steps(kind, workers):
        sampler = Recording(40)
        loader = kind(Numbers(40), sampler=sampler, batch_size=batch_size, **workers)
        logs = [list(sampler.log)]
        for _ in range(2):
            iterator = iter(loader)
            logs.append(list(sampler.log))
            for _ in range(3):
                next(iterator)
                logs.append(list(sampler.log))
            list(iterator)
            logs.append(list(sampler.log))
        del iterator
        close(loader)
        return logs

    same_for_both(backend, steps)


def test_orders_are_torchs_after_lightning_has_reset_the_iterator():
    # Lightning sets `_iterator` to None. Torch then draws a base seed for the new iterator, persistent or not.
    def orders(kind, workers):
        loader = kind(range(40), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1), **workers)
        batches = []
        for _ in range(3):
            batches.append([batch.tolist() for batch in loader])
            loader._iterator = None
            batches.append([batch.tolist() for batch in loader])
        close(loader)
        return batches

    same_for_both(Backend("one persistent worker", PERSISTENT, PERSISTENT), orders)


class FailsOnce:
    """Its iterator raises once and continues, which a generator cannot."""

    def __iter__(self):
        self.count = 0
        return self

    def __next__(self):
        self.count += 1
        if self.count == 3:
            raise LookupError("the third")
        if self.count > 5:
            raise StopIteration
        return self.count


def test_sampler_that_continues_after_an_error_is_continued_inline():
    actual = assert_alike(lambda: (Numbers(), {"sampler": FailsOnce(), "batch_size": None}), INLINE)
    assert ("raised", "LookupError", "the third") in actual["epochs"][0]


@everywhere
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in torch's __del__
def test_sampler_that_cannot_be_iterated_raises_at_iter(backend):
    class Broken:
        def __iter__(self):
            raise LookupError("no order")

    for kind, workers in backend.both:
        with pytest.raises(LookupError, match="no order"):
            iter(kind(Numbers(), sampler=Broken(), batch_size=None, **workers))


@each_of(INLINE, FORK, THREAD)
def test_index_out_of_range_raises_the_error_of_the_dataset(backend):
    for kind, workers in backend.both:
        actual = events(iter(kind(Samples([1, 2]), sampler=[0, 7, 1], **workers)))
        assert [item[1] if item[0] == "raised" else "batch" for item in actual[:3]] == ["batch", "IndexError", "batch"]
