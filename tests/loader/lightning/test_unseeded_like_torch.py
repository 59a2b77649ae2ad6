"""Guarantee: without a seed every rank gets what torch's loader gets under Lightning, without a warning from us."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support.as_lightning import as_lightning
from tests.support.custom_samplers import (
    DATA,
    STAGES,
    WRONG,
    Backwards,
    Bare,
    Buckets,
    Hidden,
    NamedBuckets,
    NamedEpochs,
    Plainer,
    batches,
    over,
)

TRAIN, VALIDATE, TEST, PREDICT = STAGES
SAMPLERS = {
    **WRONG,
    "sequential": lambda: SequentialSampler(DATA),
    "fewer in order": lambda: SequentialSampler(DATA[:9]),
    "random": lambda: RandomSampler(DATA),
    "a list": lambda: list(range(20, 0, -1)),
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=False),
}
CASES = {
    **{
        f"{name}, {'alone' if kind is None else kind.__name__}": lambda make=make, kind=kind: over(make(), kind)
        for (name, make), kind in product(SAMPLERS.items(), [None, BatchSampler, Plainer, Buckets, Hidden])
    },
    "upwards": lambda: over(SequentialSampler(DATA), Buckets, upwards=True),
    "drop_last": lambda: over(Backwards(), BatchSampler, drop_last=True),
    "drop_last of a user's": lambda: over(Backwards(), Plainer, drop_last=True),
    "one by one": lambda: {"sampler": Backwards(), "batch_size": None},
    "with epochs": lambda: over(Backwards(), NamedBuckets),
    "nothing of a batch sampler's": lambda: {"batch_sampler": Bare()},
    "only epochs": lambda: {"batch_sampler": NamedEpochs()},
    "a list of batches": lambda: {"batch_sampler": [[3, 1], [2], [4, 5]]},
}


def outcome(kind, make_arguments, stage, **settings):
    """Return two epochs of a loader's batches under Lightning, or its error."""
    try:
        arguments = make_arguments()
        loader = as_lightning(lambda: kind(DATA, **arguments), stage, **settings)
        torch.manual_seed(11)
        # Samples that are not batched cannot be converted to lists.
        epochs = [batches(loader), batches(loader)] if arguments.get("batch_size", 1) else list(loader)
        return epochs, len(loader), loader.batch_size, loader.drop_last, type(loader.sampler)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("case", CASES)
def test_the_ranks_get_what_torchs_loader_gets(case):
    for stage, (rank, world_size), in_hook in product(STAGES, ((0, 2), (1, 2), (0, 1)), (True, False)):
        settings = {"stage": stage, "rank": rank, "world_size": world_size, "in_hook": in_hook, "epoch": 5}
        expected = outcome(TorchDataLoader, CASES[case], **settings)
        actual = outcome(DataLoader, CASES[case], **settings)
        assert actual == expected, (stage, rank, world_size, in_hook)
