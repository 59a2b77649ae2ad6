"""Ranks: each takes its part of every global batch, all get as many."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from lit_loader import ClassBalancedSampler, DataLoader, RandomSampler
from tests.support.toys import Drawing


def indices(**arguments):
    loader = DataLoader(Drawing(23), **{"batch_size": 3, "shuffle": True, "seed": 5, **arguments})
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_cover_the_epoch_with_equal_counts(world_size, drop_last):
    ranks = [indices(rank=r, world_size=world_size, drop_last=drop_last) for r in range(world_size)]
    loader = DataLoader(Drawing(23), batch_size=3, seed=5, rank=0, world_size=world_size, drop_last=drop_last)
    assert {len(rank) for rank in ranks} == {len(loader)}
    flat = [i for rank in ranks for batch in rank for i in batch]
    if drop_last:
        assert len(set(flat)) == len(flat) == 23 // (3 * world_size) * 3 * world_size
    else:
        assert set(flat) == set(range(23))
        assert len(flat) - 23 < world_size  # no more filled up than equal counts ask for


def test_a_sampler_shared_by_ranks_gives_each_its_part():
    labels = [0] * 20 + [1] * 3
    ranks = [
        indices(sampler=ClassBalancedSampler(labels, num_samples=24), shuffle=None, rank=r, world_size=4)
        for r in range(4)
    ]
    assert sum(labels[i] for rank in ranks for batch in rank for i in batch) == 12


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"rank": 2, "world_size": 2}, "rank=2 and world_size=2"),
        ({"rank": 0}, "must both be set"),
        ({"world_size": 2}, "must both be set"),
        ({"rank": 0, "world_size": 2, "seed": None}, "need seed="),
        ({"generator": torch.Generator()}, "generator= would have no effect with seed=1"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, error):
    with pytest.raises(ValueError, match=error):
        DataLoader(Drawing(), **{"seed": 1, **arguments})


@pytest.mark.parametrize("seed", [1.0, "1", True])
def test_a_seed_that_is_no_int_is_refused(seed):
    with pytest.raises(TypeError, match="seed="):
        DataLoader(Drawing(), seed=seed)


@pytest.fixture
def second_rank(monkeypatch):
    """Be rank 1 of 2."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


def test_the_process_group_is_the_default(second_rank):
    assert indices() == indices(rank=1, world_size=2)


def test_a_sampler_of_ours_without_a_loader_seed_is_refused_on_several_ranks(second_rank):
    with pytest.raises(RuntimeError, match="seed="):
        list(DataLoader(Drawing(), sampler=RandomSampler(23)))
