"""Guarantee: predicting follows indices and changes none; overfitting repeats the same batches of the sampler's own."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from lightning.fabric.utilities.data import _update_dataloader as fabrics_update
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
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
        given = over(Backwards(), kind, drop_last=True)
        made = as_lightning(lambda given=given: loader(3, **given), PREDICT, world_size=1)
        assert flat(made) == list(DATA[::-1])
    given = over(Backwards(), Buckets, drop_last=True)
    with pytest.raises(ValueError, match="batch_sampler=Buckets has drop_last=True"):
        as_lightning(lambda: loader(3, **given), PREDICT, world_size=1, in_hook=False)


# -- overfitting ------------------------------------------------------------------------------------------


def overfitted(make, **arguments):
    """Return the batches of two epochs on each of two ranks."""
    actual = []
    for rank in (0, 1):
        made = as_lightning(lambda rank=rank: make(rank), rank=rank, overfit_batches=2, **arguments)
        actual.append([batches(made), batches(made)])
    return actual


@pytest.mark.parametrize("kind", [None, BatchSampler])
@pytest.mark.parametrize("name", OURS)
def test_overfitting_gives_ours_the_same_batches_each_epoch(name, kind):
    given = over(OURS[name](), kind, drop_last=True)
    for use in (True, False):
        for in_hook in (True, False):
            left, right = overfitted(
                lambda rank: loader(3, rank=rank, world_size=2, **given), use_distributed_sampler=use, in_hook=in_hook
            )
            assert left == 2 * [[list(range(0, 4)), list(range(8, 12))]]
            assert right == 2 * [[list(range(4, 8)), list(range(12, 16))]]


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
    left, right = overfitted(lambda rank: loader(3, rank=rank, world_size=2, **over(sampler)))
    assert left == 2 * [[list(range(6, 10)), list(range(14, 18))]]
    assert right == 2 * [[list(range(10, 14)), list(range(18, 22))]]


def test_overfitting_keeps_whole_batches_that_a_sampler_gives():
    class Whole:
        def __len__(self):
            return 22

        def __getitem__(self, indices):
            return torch.tensor(indices)

    given = {"sampler": BatchSampler(RandomSampler(DATA), 4, False), "batch_size": None}
    made = as_lightning(lambda: DataLoader(Whole(), seed=3, **given), world_size=1, overfit_batches=2)
    assert batches(made)[:2] == batches(made)[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_overfitting_refuses_a_batch_sampler_that_may_go_on_shuffling():
    for given in (Plainer(Backwards(), 4, False), Buckets(OwnRandom(DATA), 4, False)):
        with pytest.raises(ValueError, match=f"batch_sampler={type(given).__name__} may continue to shuffle"):
            as_lightning(lambda given=given: loader(3, batch_sampler=given), world_size=1, overfit_batches=2)
    with pytest.raises(TypeError, match="can't inject"):  # by Lightning, to which it is not shown as in order
        as_lightning(lambda: loader(3, batch_sampler=Bare()), world_size=1, overfit_batches=2)
    fixed = loader(3, batch_sampler=[[3, 1], [2]])
    assert as_lightning(lambda: fixed, world_size=1, overfit_batches=2) is fixed


@pytest.mark.parametrize(
    "given", [lambda: Plainer(Backwards(), 4, False), lambda: Buckets(OwnRandom(DATA), 4, False), Bare, list]
)
def test_without_a_seed_overfitting_leaves_a_users_batch_sampler_as_it_leaves_torchs(given):
    for kind in (TorchDataLoader, DataLoader):
        made = kind(DATA, batch_sampler=given())
        assert as_lightning(lambda made=made: made, world_size=1, overfit_batches=2) is made


def test_without_a_seed_a_users_batch_sampler_is_rebuilt_as_lightning_rebuilds_it():
    """Lightning rebuilds all loaders if one shuffles; its own test_custom_torch_batch_sampler does it directly."""
    batch_sampler = Buckets(OwnRandom(DATA), 4, False)
    expected = _update_dataloader(TorchDataLoader(DATA, batch_sampler=batch_sampler), SequentialSampler(DATA))
    rebuilt = _update_dataloader(loader(batch_sampler=batch_sampler), SequentialSampler(DATA))
    assert type(rebuilt.batch_sampler) is Buckets
    assert batches(rebuilt) == batches(expected)


@pytest.mark.parametrize(
    "sampler", [None, RandomSampler(DATA), samplers.RandomSampler(DATA)], ids=["none", "torch's", "ours"]
)
@pytest.mark.parametrize("kind", [None, BatchSampler, Plainer, Buckets])
def test_without_a_seed_a_prediction_has_lightnings_sampler(sampler, kind):
    arguments = {"batch_size": 4} if sampler is None else over(sampler, kind)
    for world_size in (1, 2):
        theirs, ours = (
            as_lightning(lambda loader=loader: loader(DATA, **arguments), PREDICT, world_size=world_size)
            for loader in (TorchDataLoader, DataLoader)
        )
        assert type(ours.sampler) is type(theirs.sampler) is SequentialSampler


# -- the mechanism ----------------------------------------------------------------------------------------


def test_fabric_is_held_to_the_same():
    theirs = DistributedSampler(DATA, num_replicas=2, rank=0)
    made = loader(sampler=WRONG["weighted"]())
    assert fabrics_update(made, theirs).sampler is theirs
    made = loader(3, rank=0, world_size=2, sampler=Backwards(), batch_size=4)
    rebuilt = fabrics_update(made, theirs)
    assert rebuilt.sampler is made.sampler
    assert batches(rebuilt) == batches(made)


def test_a_loader_with_a_record_is_collected_at_once_and_copied():
    made = loader(3, sampler=Backwards(), batch_size=4)
    gone = weakref.ref(made)
    copied = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()
    for loader_copy in copied:
        assert flat(as_lightning(lambda loader_copy=loader_copy: loader_copy)) == list(DATA[::-1])
