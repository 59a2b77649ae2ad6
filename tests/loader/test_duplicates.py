"""Guarantee: a sample knows whether it only fills up the last batches; those that do not are the set, each once."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, Subset

from lit_loader import DataLoader, SequentialSampler, WeightedRandomSampler, is_duplicate
from lit_loader.errors import BadSamplesWarning
from tests.support.dying_sets import die, first_time

PROCESSES = {"num_workers": 2}
THREADS = {"num_workers": 2, "worker_method": "thread"}
BACKENDS = {"inline": {}, "processes": PROCESSES, "threads": THREADS}


class Marked:
    """Each sample is its index and its mark."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, is_duplicate()


class Together(Marked):
    def __getitems__(self, indices):
        return [(index, is_duplicate(row)) for row, index in enumerate(indices)]


class Fragile(Marked):
    """The worker that makes a duplicate dies the first time."""

    def __init__(self, length, marks):
        super().__init__(length)
        self.marks = marks

    def __getitem__(self, index):
        if is_duplicate() and first_time(self.marks, "death"):
            die()
        return super().__getitem__(index)


class FailingDuplicates(Marked):
    def __getitem__(self, index):
        if index < 2 and is_duplicate():
            raise ValueError("no")
        return super().__getitem__(index)


def marked(dataset, world_size, *, batch_size=3, epochs=1, **arguments):
    """Return the samples of the ranks: a list of (index, mark) for each rank."""
    ranks = []
    for rank in range(world_size):
        settings = {"seed": 3, "batch_size": batch_size, "rank": rank, "world_size": world_size, **arguments}
        with DataLoader(dataset, **settings) as loader:
            actual = [batch for _ in range(epochs) for batch in loader]
        rows = [[(int(i), bool(m)) for i, m in zip(*batch, strict=True)] for batch in actual]
        ranks.append([row for batch in rows for row in batch])
    return ranks


def real(ranks):
    return sorted(index for rank in ranks for index, mark in rank if not mark)


@pytest.mark.parametrize(
    ("backend", "world_size", "length"),
    [
        *((backend, 2, 13) for backend in BACKENDS),
        *((backend, 3, 19) for backend in ("inline", "threads")),
        *((backend, 8, 27) for backend in ("inline", "processes", "threads")),
    ],
)
def test_unmarked_samples_are_each_index_once(backend, world_size, length):
    ranks = marked(Marked(length), world_size, shuffle=True, **BACKENDS[backend])
    assert real(ranks) == list(range(length))
    assert len({len(rank) for rank in ranks}) == 1
    assert sum(map(len, ranks)) > length
    assert [[mark for _, mark in rank] for rank in ranks] == [sorted(mark for _, mark in rank) for rank in ranks]


@pytest.mark.parametrize("workers", [{}, PROCESSES, THREADS], ids=["inline", "processes", "threads"])
def test_workers_that_are_kept_follow_an_order_that_grows(workers):
    dataset = Marked(5)
    settings = {"persistent_workers": bool(workers), "sampler": SequentialSampler(dataset)}
    with DataLoader(dataset, batch_size=2, seed=0, rank=1, world_size=2, **settings, **workers) as loader:
        for length, last in ((5, ([0], [True])), (6, ([5], [False])), (5, ([0], [True]))):
            dataset.length = length
            loader.set_epoch(0)
            actual = [(indices.tolist(), marks.tolist()) for indices, marks in loader]
            assert actual == [([2, 3], [False, False]), last]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_set_of_fewer_samples_than_ranks_goes_round_several_times(length):
    ranks = marked(Marked(length), 8, shuffle=True)
    assert real(ranks) == list(range(length))
    assert [len(rank) for rank in ranks] == [1] * 8


@pytest.mark.parametrize("backend", ["inline", "threads", "processes"])
def test_the_mark_is_of_the_position_in_training_too(backend):
    """An index that is drawn several times is a duplicate only where it fills up."""
    sampler = WeightedRandomSampler([1.0, 1.0, 8.0], num_samples=9)
    ranks = marked(Marked(3), 2, batch_size=2, sampler=sampler, epochs=2, **BACKENDS[backend])
    drawn = [sampler.order(seed=3, epoch=epoch)[:9].tolist() for epoch in range(2)]
    assert Counter(real(ranks)) == Counter(drawn[0] + drawn[1])
    assert sum(mark for rank in ranks for _, mark in rank) == 2


@pytest.mark.parametrize("workers", [{}, PROCESSES, THREADS], ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("kind", ["single samples", "subset", "together"])
def test_every_way_to_ask_a_data_set(workers, kind):
    if kind == "subset":
        dataset = Subset(Marked(20), range(4, 13))
        expected = list(range(4, 13))
    else:
        dataset = (Together if kind == "together" else Marked)(9)
        expected = list(range(9))
    if kind == "single samples":
        ranks = [
            [
                (int(i), bool(m))
                for i, m in DataLoader(dataset, batch_size=None, seed=3, rank=r, world_size=2, **workers)
            ]
            for r in range(2)
        ]
    else:
        ranks = marked(dataset, 2, batch_size=4, **workers)
    assert real(ranks) == expected
    assert sum(map(len, ranks)) == 10


def test_a_sample_that_is_made_again_after_a_death_keeps_its_mark(tmp_path):
    inline = marked(Marked(13), 2)
    with pytest.warns(RuntimeWarning, match="killed"):
        actual = marked(Fragile(13, tmp_path), 2, **PROCESSES)
    assert actual == inline
    assert (tmp_path / "death").exists()


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_replacement_of_a_bad_duplicate_is_a_duplicate(policy):
    with pytest.warns(BadSamplesWarning):
        ranks = marked(FailingDuplicates(13), 2, batch_size=7, on_bad_sample=policy)
    assert real(ranks) == list(range(13))
    assert sum(map(len, ranks)) == (13 if policy == "skip" else 14)


def test_with_drop_last_and_on_one_rank_nothing_is_marked():
    ranks = marked(Marked(13), 2, drop_last=True, shuffle=True)
    assert [len(rank) for rank in ranks] == [6, 6]
    assert len(set(real(ranks))) == 12
    assert real(marked(Marked(13), 1)) == list(range(13))


class Stream(IterableDataset):
    def __iter__(self):
        return ((index, is_duplicate()) for index in range(4))


def collate_and_ask(samples):
    return *torch.utils.data.default_collate(samples), is_duplicate()


def test_elsewhere_nothing_is_a_duplicate():
    assert not is_duplicate()
    custom = DistributedSampler(range(5), num_replicas=2, rank=1)
    ours = {"batch_size": 2, "seed": 0, "rank": 1, "world_size": 2}
    for loader in (
        DataLoader(Marked(5), sampler=custom, **ours),
        DataLoader(Marked(5), sampler=custom, batch_size=2),
        DataLoader(Stream(), **ours),
    ):
        assert not any(bool(mark) for _, marks in loader for mark in marks)
    answers = list(DataLoader(Marked(5), collate_fn=collate_and_ask, **ours))
    assert [(marks.any().item(), answer) for _, marks, answer in answers] == [(False, False), (True, False)]
    assert not is_duplicate()
