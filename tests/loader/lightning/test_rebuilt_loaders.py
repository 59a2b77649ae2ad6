"""Guarantee: predicting follows indices and changes none; overfitting repeats the same batches of the sampler's own."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from lightning.fabric.utilities.data import _update_dataloader as fabrics_update
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader, samplers
from tests.support.as_lightning import as_lightning
from tests.support.custom_samplers import (
    DATA,
    OURS,
    STAGES,
    WRONG,
    Backwards,
    Bare,
    Buckets,
    OwnRandom,
    Plainer,
    batches,
    flat,
    loader,
    over,
)

PREDICT = STAGES[-1]


# -- prediction on one process ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer, Buckets])
@pytest.mark.parametrize("name", WRONG)
def test_prediction_on_one_process_gives_what_the_sampler_gives(name, kind):
    further = {"upwards": True} if kind is Buckets else {}

    def make():
        return loader(3, **over(WRONG[name](), kind, **further))

    for in_hook in (True, False):
        expected = batches(make())
        predicting = as_lightning(make, PREDICT, world_size=1, in_hook=in_hook)
        assert batches(predicting) == expected
        assert predicting.batch_sampler.seen_batch_indices == expected


def test_prediction_drops_nothing():
    for kind in (BatchSampler, Plainer):
        arguments = over(Backwards(), kind, drop_last=True)
        rebuilt = as_lightning(lambda arguments=arguments: loader(3, **arguments), PREDICT, world_size=1)
        assert flat(rebuilt) == list(DATA[::-1])
    arguments = over(Backwards(), Buckets, drop_last=True)
    with pytest.raises(ValueError, match="batch_sampler=Buckets has drop_last=True"):
        as_lightning(lambda: loader(3, **arguments), PREDICT, world_size=1, in_hook=False)


# -- overfitting ------------------------------------------------------------------------------------------


def overfitted(make, **arguments):
    """Return the batches of two epochs on each of two ranks."""
    actual = []
    for rank in (0, 1):
        rebuilt = as_lightning(partial(make, rank=rank), rank=rank, overfit_batches=2, **arguments)
        actual.append([batches(rebuilt), batches(rebuilt)])
    return actual


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("name", OURS)
def test_overfitting_gives_ours_the_same_batches_each_epoch(name, kind):
    arguments = over(OURS[name](), kind, drop_last=True)
    for use in (True, False):
        for in_hook in (True, False):
            settings = {"use_distributed_sampler": use, "in_hook": in_hook}
            first_rank, second_rank = overfitted(partial(loader, 3, world_size=2, **arguments), **settings)
            assert first_rank == 2 * [[list(range(0, 4)), list(range(8, 12))]]
            assert second_rank == 2 * [[list(range(4, 8)), list(range(12, 16))]]


@pytest.mark.parametrize(
    "sampler",
    [
        samplers.SubsetRandomSampler(DATA[6:]),
        samplers.WeightedRandomSampler([0.0] * 6 + [1.0] * 16, 22),
        SubsetRandomSampler(DATA[6:]),
    ],
    ids=["subset", "weighted", "torch's subset"],
)
def test_overfitting_takes_no_image_that_the_sampler_leaves_out(sampler):
    first_rank, second_rank = overfitted(lambda rank: loader(3, rank=rank, world_size=2, **over(sampler)))
    assert first_rank == 2 * [[list(range(6, 10)), list(range(14, 18))]]
    assert second_rank == 2 * [[list(range(10, 14)), list(range(18, 22))]]


def test_overfitting_keeps_whole_batches_that_a_sampler_gives():
    class Whole:
        def __len__(self):
            return 22

        def __getitem__(self, indices):
            return torch.tensor(indices)

    arguments = {"sampler": BatchSampler(RandomSampler(DATA), 4, False), "batch_size": None}
    rebuilt = as_lightning(lambda: DataLoader(Whole(), seed=3, **arguments), world_size=1, overfit_batches=2)
    assert batches(rebuilt)[:2] == batches(rebuilt)[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_overfitting_refuses_a_batch_sampler_that_may_go_on_shuffling():
    for batch_sampler in (Plainer(Backwards(), 4, False), Buckets(OwnRandom(DATA), 4, False)):
        make = partial(loader, 3, batch_sampler=batch_sampler)
        with pytest.raises(ValueError, match=f"batch_sampler={type(batch_sampler).__name__} may continue to shuffle"):
            as_lightning(make, world_size=1, overfit_batches=2)
    with pytest.raises(TypeError, match="can't inject"):  # by Lightning, to which it is not shown as in order
        as_lightning(lambda: loader(3, batch_sampler=Bare()), world_size=1, overfit_batches=2)
    fixed = loader(3, batch_sampler=[[3, 1], [2]])
    assert as_lightning(lambda: fixed, world_size=1, overfit_batches=2) is fixed


@pytest.mark.parametrize(
    "make_sampler", [lambda: Plainer(Backwards(), 4, False), lambda: Buckets(OwnRandom(DATA), 4, False), Bare, list]
)
def test_without_a_seed_overfitting_leaves_a_users_batch_sampler_as_it_leaves_torchs(make_sampler):
    for kind in (TorchDataLoader, DataLoader):
        rebuilt = kind(DATA, batch_sampler=make_sampler())
        assert as_lightning(lambda rebuilt=rebuilt: rebuilt, world_size=1, overfit_batches=2) is rebuilt


# -- the mechanism ----------------------------------------------------------------------------------------


def test_fabric_is_held_to_the_same():
    theirs = DistributedSampler(DATA, num_replicas=2, rank=0)
    original = loader(sampler=WRONG["weighted"]())
    assert fabrics_update(original, theirs).sampler is theirs
    original = loader(3, rank=0, world_size=2, sampler=Backwards(), batch_size=4)
    rebuilt = fabrics_update(original, theirs)
    assert rebuilt.sampler is original.sampler
    assert batches(rebuilt) == batches(original)


def test_a_loader_with_a_record_is_collected_at_once_and_copied():
    original = loader(3, sampler=Backwards(), batch_size=4)
    reference = weakref.ref(original)
    copied = [copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
    gc.disable()
    try:
        del original
        assert reference() is None
    finally:
        gc.enable()
    for loader_copy in copied:
        assert flat(as_lightning(lambda loader_copy=loader_copy: loader_copy)) == list(DATA[::-1])
