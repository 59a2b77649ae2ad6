"""Guarantee: a loader that Lightning rebuilds mixes the same samples; overfitting and predicting do not stop mixing."""

from __future__ import annotations

from functools import partial

import pytest

from lit_loader import DataLoader, RandomSampler, SequentialSampler
from tests.support.as_lightning import as_lightning
from tests.support.custom_samplers import STAGES
from tests.support.partner_sets import Blend, Mixed, Plain
from tests.support.toys import plain


def loader_of(sampler=RandomSampler, **arguments):
    arguments = {"batch_size": 4, "seed": 3, **arguments}
    return DataLoader(Mixed(Blend(3), dataset=Plain(24)), sampler=sampler(24), **arguments)


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
    epochs = [batches(rebuilt) for _ in range(2)]
    assert epochs == [batches(in_order) for _ in range(2)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_ranks_mix_as_one_process(use_distributed_sampler):
    expected = [row for batch in batches(loader_of(batch_size=8)) for row in batch["members"][2]]
    by_rank = []
    for rank in range(2):
        make = partial(loader_of, rank=rank, world_size=2)
        by_rank.append(batches(as_lightning(make, rank=rank, use_distributed_sampler=use_distributed_sampler)))
    actual = [row for parts in zip(*by_rank, strict=True) for part in parts for row in part["members"][2]]
    assert actual == expected
