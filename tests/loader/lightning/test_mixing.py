"""Guarantee: a loader that Lightning rebuilds mixes the same samples; overfitting and predicting do not stop mixing."""

from __future__ import annotations

import pytest

from lit_loader import DataLoader, RandomSampler, SequentialSampler
from tests.support.as_lightning import as_lightning
from tests.support.custom_samplers import STAGES
from tests.support.partner_sets import Blend, Mixed, Plain
from tests.support.toys import plain


def loader_of(sampler=RandomSampler, **arguments):
    return DataLoader(Mixed(Blend(3), dataset=Plain(24)), 4, sampler=sampler(24), seed=3, **arguments)


def batches(loader):
    return [plain(batch) for batch in loader]


@pytest.mark.parametrize("in_hook", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_mixes_as_the_loader_does(stage, in_hook):
    rebuilt = as_lightning(loader_of, stage, world_size=1, in_hook=in_hook)
    assert batches(rebuilt) == batches(loader_of())


def test_overfitting_mixes_the_same_images_anew_in_each_epoch():
    rebuilt = as_lightning(loader_of, world_size=1, overfit_batches=2)
    in_order = loader_of(SequentialSampler)
    for _ in range(2):
        assert batches(rebuilt) == batches(in_order)


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_ranks_mix_as_one_process(use_distributed_sampler):
    expected = [
        row
        for batch in batches(DataLoader(Mixed(Blend(3), dataset=Plain(24)), 8, sampler=RandomSampler(24), seed=3))
        for row in batch["members"][2]
    ]
    by_rank = [
        batches(
            as_lightning(
                lambda rank=rank: loader_of(rank=rank, world_size=2),
                rank=rank,
                world_size=2,
                use_distributed_sampler=use_distributed_sampler,
            )
        )
        for rank in range(2)
    ]
    actual = [row for parts in zip(*by_rank, strict=True) for part in parts for row in part["members"][2]]
    assert actual == expected
