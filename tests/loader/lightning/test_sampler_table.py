"""Guarantee: with a seed every rank gets its part of a sampler's indices, whatever Lightning does to the sampler.

Loaders without a seed are tested in test_unseeded_like_torch.py.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning.pytorch.utilities.data import _is_dataloader_shuffled
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from lit_loader import DataLoader, samplers
from tests.support.as_lightning import as_lightning
from tests.support.custom_samplers import (
    DATA,
    OURS,
    SETTINGS,
    STAGES,
    WRONG,
    Backwards,
    Bare,
    Buckets,
    Hidden,
    NamedBuckets,
    NamedEpochs,
    OwnRandom,
    Plainer,
    batches,
    flat,
    loader,
    over,
)

TRAIN, VALIDATE, _, PREDICT = STAGES


# -- with a seed: put back --------------------------------------------------------------------------------


def kept(make_arguments, stage, **settings):
    """Return the batches of the ranks, after a check that ``use_distributed_sampler`` makes no difference."""
    outcomes = []
    for use in (True, False):
        ranks = []
        for rank in (0, 1):
            rebuilt = as_lightning(
                lambda rank=rank: loader(3, rank=rank, world_size=2, **make_arguments()),
                stage,
                rank=rank,
                use_distributed_sampler=use,
                **settings,
            )
            ranks.append(batches(rebuilt))
            if stage is PREDICT:
                assert rebuilt.batch_sampler.seen_batch_indices == ranks[-1]
            assert len(rebuilt) == len(ranks[-1])
        outcomes.append(ranks)
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def together(ranks):
    """Return the indices of all ranks, global batch by global batch."""
    return [index for parts in zip(*ranks, strict=True) for part in parts for index in part]


@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer, Buckets])
@pytest.mark.parametrize("name", WRONG)
def test_with_a_seed_a_users_sampler_is_cut_by_rank_in_every_stage(name, kind):
    further = {"upwards": True} if kind is Buckets else {}
    alone = batches(loader(3, **over(WRONG[name](), kind, **further)))
    expected = [index for batch in alone for index in batch]
    for settings in SETTINGS:
        ranks = kept(lambda: over(WRONG[name](), kind, **further), **settings)
        assert len(ranks[0]) == len(ranks[1]) == -(-len(alone) // 2)
        assert together(ranks)[: len(expected)] == expected
        unbroken = alone[: len(alone) // 2 * 2 - 2]  # the last global batch may be cut otherwise
        assert [part for parts in zip(*ranks, strict=True) for part in parts][: len(unbroken)] == unbroken


@pytest.mark.parametrize(
    "make_batch_sampler",
    [
        lambda: Hidden(Backwards(), 4, False),
        lambda: NamedBuckets(Backwards(), 4, False),
        lambda: [[n, n + 1] for n in range(6)],
        Bare,
        NamedEpochs,
    ],
)
def test_with_a_seed_so_is_any_batch_sampler(make_batch_sampler):
    for settings in SETTINGS:
        if settings["stage"] is PREDICT and isinstance(make_batch_sampler(), list):
            continue  # Lightning's wrapper reads the batch sampler's __dict__, which a list lacks
        ranks = kept(lambda: {"batch_sampler": make_batch_sampler()}, **settings)
        alone = batches(loader(3, batch_sampler=make_batch_sampler()))
        assert ranks == [(alone + alone[: len(alone) % 2])[rank::2] for rank in (0, 1)]


class OwnPart(Backwards):
    """One that gives each rank its own part, and shows it."""

    def __init__(self, rank, num_replicas=2):
        super().__init__()
        self.rank = rank
        self.num_replicas = num_replicas

    def __len__(self):
        return 11

    def __iter__(self):
        return iter(range(self.rank, 22, self.num_replicas))


@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer])
@pytest.mark.parametrize("make_sampler", [OwnPart, lambda rank: DistributedSampler(DATA, 2, rank, shuffle=False)])
def test_with_a_seed_a_sampler_that_shards_by_itself_is_taken_as_it_is(make_sampler, kind):
    for settings in SETTINGS:
        for use in (True, False):
            for rank in (0, 1):
                rebuilt = as_lightning(
                    lambda rank=rank: loader(3, rank=rank, world_size=2, **over(make_sampler(rank), kind)),
                    **settings,
                    rank=rank,
                    use_distributed_sampler=use,
                )
                assert flat(rebuilt) == list(DATA[rank::2])


def test_sampler_that_cannot_be_split_raises_by_name():
    def make(seed=3):
        return loader(seed, rank=0, world_size=2, **over(Backwards(), Buckets, drop_last=True))

    with pytest.raises(ValueError, match="batch_sampler=Buckets has drop_last=True, so predictions"):
        as_lightning(make, PREDICT)
    with pytest.raises(TypeError, match=r"can't inject .*use_distributed_sampler=False"):  # by Lightning
        as_lightning(lambda: loader(batch_sampler=Bare()))
    predicting = as_lightning(lambda: loader(3, batch_sampler=Bare()), PREDICT, world_size=1)
    assert flat(predicting) == [3, 1, 2]


@pytest.mark.parametrize("name", WRONG)
def test_with_use_distributed_sampler_off_they_are_left_alone(name):
    for kind in (None, BatchSampler, Buckets):
        for seed in (None, 3):
            sampler = WRONG[name]()
            rebuilt = loader(seed, **over(sampler, kind))
            assert as_lightning(lambda rebuilt=rebuilt: rebuilt, use_distributed_sampler=False) is rebuilt
            assert (rebuilt.sampler if kind is None else rebuilt.batch_sampler.sampler) is sampler


def test_without_a_seed_ours_refuse_to_give_every_rank_everything(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    unseeded = loader(**over(samplers.RandomSampler(22)))
    assert as_lightning(lambda: unseeded) is unseeded
    with pytest.raises(RuntimeError, match="RandomSampler is iterated on world_size=2 ranks"):
        list(unseeded)


# -- ours -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("torchs", [RandomSampler, SequentialSampler])
def test_with_a_seed_torchs_plain_samplers_are_taken_as_ours(torchs, kind):
    ours = getattr(samplers, torchs.__name__)(22)
    order = ours.order(seed=3, epoch=0)
    for settings in SETTINGS:
        for rank in (0, 1):
            place = {"rank": rank, "world_size": 2}
            arguments = {**over(torchs(DATA), kind), **place}
            rebuilt = as_lightning(partial(loader, 3, **arguments), **settings, rank=rank)
            assert isinstance(rebuilt.sampler, type(ours))
            cut = {"batch_size": 4, "drop_last": False, **place}
            expected = [samplers.rank_batch(order, b, **cut).indices.tolist() for b in range(3)]
            assert batches(rebuilt) == expected


def test_with_a_seed_a_random_sampler_of_another_kind_stays_the_users():
    generator = torch.Generator()
    for sampler in (RandomSampler(DATA, num_samples=9), RandomSampler(DATA, generator=generator), OwnRandom(DATA)):
        assert loader(3, sampler=sampler).sampler is sampler


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("name", OURS)
def test_samplers_of_ours_are_left_alone(name, kind):
    sampler = OURS[name]()
    expected = batches(loader(3, **over(sampler, kind)))
    for settings in SETTINGS:
        for use in (True, False):
            rebuilt = loader(3, **over(sampler, kind))
            settled = as_lightning(lambda rebuilt=rebuilt: rebuilt, **settings, use_distributed_sampler=use)
            assert (settled is rebuilt) == (settings["stage"] is not PREDICT)
            assert settled.sampler is sampler
            assert (rebuilt.batch_size, rebuilt.drop_last) == (4, False)
            settled.set_epoch(0)
            assert batches(settled) == expected


def test_lightning_sees_whether_a_loader_is_shuffled():
    for rebuilt, shuffled in (
        (loader(3, shuffle=True), True),
        (loader(3, shuffle=False), False),
        (loader(3, **over(samplers.RandomSampler(22), BatchSampler)), True),
        (loader(3, **over(SequentialSampler(DATA), BatchSampler)), False),
    ):
        assert _is_dataloader_shuffled(rebuilt) is shuffled
        assert isinstance(rebuilt.sampler, SequentialSampler) is not shuffled


@pytest.mark.parametrize("batch_sampler", [NamedEpochs(), NamedBuckets(SequentialSampler(DATA), 4, False)])
def test_epochs_are_named_to_a_batch_sampler(batch_sampler):
    rebuilt = DataLoader(DATA, batch_sampler=batch_sampler, seed=3)
    as_lightning(lambda: rebuilt, VALIDATE, use_distributed_sampler=False, epoch=5)
    assert batch_sampler.epoch == 5
    batch_sampler.epoch = None
    expected = batches(rebuilt)
    assert batches(as_lightning(lambda: rebuilt, PREDICT, world_size=1, epoch=6)) == expected
    assert batch_sampler.epoch == 6
