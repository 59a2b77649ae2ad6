"""Guarantee: what Lightning would make of a sampler or batch sampler wrongly is put right, or refused by name."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.utilities.data import _is_dataloader_shuffled
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from lit_loader import DataLoader, samplers
from tests.lightning.as_lightning import as_lightning
from tests.lightning.foreign import (
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


# -- refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("which", WRONG)
def test_a_sampler_that_lightning_would_replace_is_refused_by_name(which, seed):
    make, remedy = WRONG[which]
    for settings in SETTINGS:
        with pytest.raises(ValueError, match=r"use_distributed_sampler=False\)") as refused:
            as_lightning(lambda: loader(seed, **over(make())), **settings)
        assert f"sampler={type(make()).__name__} would be replaced" in str(refused.value)
        assert f"use {remedy}" in str(refused.value)


@pytest.mark.parametrize("kind", [BatchSampler, Plainer, Buckets])
@pytest.mark.parametrize("which", WRONG)
def test_so_is_a_batch_sampler_over_it(which, kind):
    make, remedy = WRONG[which]
    for settings in SETTINGS:
        for seed in (None, 3):
            given = over(make(), kind)
            with pytest.raises(
                ValueError, match=f"inside of batch_sampler={kind.__name__}, would be repl.*{remedy}"
            ):
                as_lightning(lambda seed=seed, given=given: loader(seed, **given), **settings)


@pytest.mark.parametrize("which", WRONG)
def test_with_use_distributed_sampler_off_they_are_left_alone(which):
    for kind in (None, BatchSampler, Buckets):
        sampler = WRONG[which][0]()
        made = loader(**over(sampler, kind))
        assert as_lightning(lambda made=made: made, use_distributed_sampler=False) is made
        assert made.sampler is sampler


def test_further_arguments_of_a_batch_sampler_are_kept_or_it_is_refused():
    def make():
        return loader(**over(SequentialSampler(DATA), Buckets, upwards=True))

    for stage in STAGES:
        ranks = [as_lightning(make, stage, rank=rank) for rank in (0, 1)]
        assert all(batch == sorted(batch) for rank in ranks for batch in batches(rank))
        assert sorted(flat(*ranks)) == list(DATA)
        with pytest.raises(
            ValueError, match=r"batch_sampler=Buckets would be rebuilt .* without its further arg"
        ):
            as_lightning(make, stage, in_hook=False)


def test_a_batch_sampler_that_hides_its_sampler_is_refused():
    given = Hidden(Backwards(), 4, False)
    for stage in (TRAIN, PREDICT):
        with pytest.raises(ValueError, match=r"batch_sampler=Hidden would be rebuilt .* attribute `sampler`"):
            as_lightning(lambda: loader(batch_sampler=given), stage)


def test_one_with_nothing_of_a_batch_samplers_is_refused_by_lightning_itself():
    with pytest.raises(TypeError, match=r"can't inject .*use_distributed_sampler=False"):
        as_lightning(lambda: loader(batch_sampler=Bare()))
    assert flat(as_lightning(lambda: loader(batch_sampler=Bare()), PREDICT, world_size=1)) == [3, 1, 2]


def test_without_a_seed_ours_refuse_to_give_every_rank_everything(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    for kind in (None, BatchSampler, Plainer):
        made = loader(**over(samplers.RandomSampler(22), kind))
        assert as_lightning(lambda made=made: made) is made
        with pytest.raises(RuntimeError, match="RandomSampler is iterated on world_size=2 ranks"):
            list(made)


# -- right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer])
def test_torchs_sequential_sampler_stays_in_order(kind):
    for settings in SETTINGS:
        given = over(SequentialSampler(DATA), kind)
        ranks = [as_lightning(lambda given=given: loader(**given), **settings, rank=rank) for rank in (0, 1)]
        assert [flat(rank) for rank in ranks] == [list(DATA[0::2]), list(DATA[1::2])]
        assert [len(batch) for batch in batches(ranks[0])] == [4, 4, 3]
        assert ranks[0].batch_sampler.batch_size == 4


@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer])
def test_torchs_random_sampler_is_shared_by_the_ranks_in_batches_of_the_same_size(kind):
    for settings in SETTINGS:
        if settings["stage"] is PREDICT:
            continue
        given = over(RandomSampler(DATA), kind, drop_last=True)
        ranks = [as_lightning(lambda given=given: loader(**given), **settings, rank=rank) for rank in (0, 1)]
        assert len(set(flat(*ranks))) == len(flat(*ranks)) == 16
        assert flat(ranks[0]) != sorted(flat(ranks[0]))
        assert {len(batch) for rank in ranks for batch in batches(rank)} == {4}


def test_predicting_in_torchs_random_order_is_refused_on_several_ranks():
    """Lightning lets each rank draw an order of its own, and gives it a part of that."""
    with pytest.raises(
        ValueError, match=r"sampler=RandomSampler would .* use lit_loader.samplers.RandomSampler"
    ):
        as_lightning(lambda: loader(sampler=RandomSampler(DATA)), PREDICT)


def test_a_list_of_indices_is_shared_in_its_order():
    given = list(range(20, 0, -1))
    ranks = [as_lightning(lambda: loader(sampler=given, batch_size=5), rank=rank) for rank in (0, 1)]
    assert [flat(rank) for rank in ranks] == [given[0::2], given[1::2]]


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("torchs", [RandomSampler, SequentialSampler])
def test_with_a_seed_torchs_plain_samplers_are_taken_as_ours(torchs, kind):
    ours = getattr(samplers, torchs.__name__)(22)
    order = ours.order(seed=3, epoch=0)
    for settings in SETTINGS:
        for rank in (0, 1):
            place = {"rank": rank, "world_size": 2}
            given = over(torchs(DATA), kind)
            made = as_lightning(
                lambda place=place, given=given: loader(3, **place, **given), **settings, rank=rank
            )
            assert isinstance(made.sampler, type(ours))
            cut = {"batch_size": 4, "drop_last": False, **place}
            expected = [samplers.rank_batch(order, b, **cut).indices.tolist() for b in range(3)]
            assert batches(made) == expected


def test_with_a_seed_a_random_sampler_of_another_kind_stays_the_users():
    generator = torch.Generator()
    for given in (
        RandomSampler(DATA, num_samples=9),
        RandomSampler(DATA, generator=generator),
        OwnRandom(DATA),
    ):
        assert loader(3, sampler=given).sampler is given


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("which", OURS)
def test_samplers_of_ours_are_left_alone(which, kind):
    sampler = OURS[which]()
    expected = batches(loader(3, **over(sampler, kind)))
    for settings in SETTINGS:
        for use in (True, False):
            made = loader(3, **over(sampler, kind))
            settled = as_lightning(lambda made=made: made, **settings, use_distributed_sampler=use)
            assert (settled is made) == (settings["stage"] is not PREDICT)
            assert settled.sampler is sampler
            assert (made.batch_size, made.drop_last) == (4, False)
            settled.set_epoch(0)
            assert batches(settled) == expected


def test_lightning_sees_whether_a_loader_is_shuffled():
    for made, shuffled in (
        (loader(3, shuffle=True), True),
        (loader(3, shuffle=False), False),
        (loader(**over(RandomSampler(DATA), BatchSampler)), True),
        (loader(3, **over(samplers.RandomSampler(22), BatchSampler)), True),
        (loader(3, **over(SequentialSampler(DATA), BatchSampler)), False),
    ):
        assert _is_dataloader_shuffled(made) is shuffled
        assert isinstance(made.sampler, SequentialSampler) is not shuffled


def test_a_users_distributed_sampler_is_left_alone_in_a_batch_sampler_too():
    own = DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=False)
    made = loader(**over(own, BatchSampler))
    assert as_lightning(lambda: made) is made
    assert flat(made) == list(DATA[1::2])


@pytest.mark.parametrize("given", [NamedEpochs(), NamedBuckets(SequentialSampler(DATA), 4, False)])
def test_epochs_are_named_to_a_batch_sampler(given):
    for seed in (None, 3):
        made = DataLoader(DATA, batch_sampler=given, seed=seed)
        as_lightning(lambda made=made: made, VALIDATE, use_distributed_sampler=False, epoch=5)
        assert given.epoch == 5
        given.epoch = None
        expected = batches(made)
        assert batches(as_lightning(lambda made=made: made, PREDICT, world_size=1, epoch=6)) == expected
        assert given.epoch == 6
    with pytest.raises((TypeError, ValueError), match="use_distributed_sampler=False"):
        as_lightning(lambda: made)
