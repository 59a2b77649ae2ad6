"""Guarantee: without a seed ranks get what torch's loader gets under Lightning; where that is wrong, one warning."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.lightning.as_lightning import as_lightning
from tests.lightning.custom_samplers import (
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
        f"{which}, {'alone' if kind is None else kind.__name__}": lambda make=make, kind=kind: over(
            make(), kind
        )
        for (which, make), kind in product(SAMPLERS.items(), [None, BatchSampler, Plainer, Buckets, Hidden])
    },
    "upwards": lambda: over(SequentialSampler(DATA), Buckets, upwards=True),
    "drop_last": lambda: over(Backwards(), BatchSampler, drop_last=True),
    "drop_last of a user's": lambda: over(Backwards(), Plainer, drop_last=True),
    "one by one": lambda: {"sampler": Backwards(), "batch_size": None},
    "with epochs": lambda: over(Backwards(), NamedBuckets),
    "nothing of a batch sampler's": lambda: {"batch_sampler": Bare()},
    "nothing but epochs": lambda: {"batch_sampler": NamedEpochs()},
    "a list of batches": lambda: {"batch_sampler": [[3, 1], [2], [4, 5]]},
}


def outcome(kind, given, stage, **settings):
    """Return two epochs of what a loader gives under Lightning, or its error."""
    try:
        made = as_lightning(lambda: kind(DATA, **given()), stage, **settings)
        torch.manual_seed(11)
        found = (
            [batches(made), batches(made)]
            if "batch_size" not in given() or given()["batch_size"]
            else list(made)
        )
        return found, len(made), made.batch_size, made.drop_last
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_the_ranks_get_what_torchs_loader_gets(case):
    for stage, rank, in_hook in product(STAGES, (0, 1), (True, False)):
        settings = {"stage": stage, "rank": rank, "in_hook": in_hook, "epoch": 5}
        expected = outcome(TorchDataLoader, CASES[case], **settings)
        found = outcome(DataLoader, CASES[case], **settings)
        assert found == expected, (stage, rank, in_hook)


def warned(make, *stages, **settings):
    """Return what was warned of by us while Lightning handled a loader in these stages."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for stage in stages:
            as_lightning(make, stage, **settings)
    return [str(one.message) for one in told if "as with torch's DataLoader" in str(one.message)]


@pytest.mark.parametrize("which", WRONG)
def test_one_warning_for_a_sampler_names_it_and_the_remedy(which):
    for kind in (None, Plainer, Buckets):
        given = over(WRONG[which](), kind)
        (text,) = warned(lambda given=given: DataLoader(DATA, **given), *STAGES, *STAGES)
        name = (
            "sampler=" + type(given["sampler"]).__name__ if kind is None else f"batch_sampler={kind.__name__}"
        )
        assert text.startswith(f"{name} was replaced by Lightning's Distributed")
        assert "pass seed=" in text
        assert "use_distributed_sampler=False" in text
        assert "a sampler of lit_loader.samplers" in text


@dataclass
class Same(Backwards):
    """Equal to any other of its length, and without a hash."""

    length: int = 22


def test_each_of_two_equal_samplers_without_a_hash_is_warned_of_once():
    for given in (Same(), Same()):
        assert len(warned(lambda given=given: DataLoader(DATA, sampler=given), *STAGES, *STAGES)) == 1


class Alike(Backwards):
    """Equal to any other, with a hash."""

    def __eq__(self, other):
        return type(other) is Alike

    def __hash__(self):
        return 1


def test_each_of_two_equal_samplers_is_warned_of():
    first, second = Alike(), Alike()
    for given in (first, second):
        assert len(warned(lambda given=given: DataLoader(DATA, sampler=given), *STAGES)) == 1


@pytest.mark.parametrize(
    ("given", "stage", "lost"),
    [
        (lambda: over(SequentialSampler(DATA)), TRAIN, "its order is shuffled"),
        (lambda: {"sampler": list(DATA)}, TRAIN, "its order is shuffled"),
        (
            lambda: over(SequentialSampler(DATA), BatchSampler),
            VALIDATE,
            "batch_size=4 became batch_size=None",
        ),
        (lambda: over(SequentialSampler(DATA[:9]), Plainer), TEST, "all indices of the data set are given"),
        (lambda: over(Backwards()), TEST, "each rank draws for itself and takes a part of that"),
        (lambda: over(RandomSampler(DATA)), PREDICT, "each rank draws for itself and takes a part of that"),
        (lambda: over(RandomSampler(DATA), Plainer), PREDICT, "what it draws is lost"),
        (lambda: over(Backwards(), Hidden), TRAIN, "it was made again over the data set's indices"),
    ],
)
def test_the_warning_says_what_is_lost(given, stage, lost):
    arguments = given()
    (text,) = warned(lambda: DataLoader(DATA, **arguments), stage, in_hook=False)
    assert re.search(re.escape(lost), text)
    assert (
        warned(lambda: DataLoader(DATA, **given()), stage, in_hook=False, rank=1) == []
    )  # rank 0 warns for all


@pytest.mark.parametrize(
    ("given", "stage"),
    [
        (lambda: over(SequentialSampler(DATA)), VALIDATE),
        (lambda: {"sampler": list(DATA)}, TEST),
        (lambda: over(RandomSampler(DATA)), TRAIN),
        (lambda: over(RandomSampler(DATA), Plainer), TRAIN),
        (lambda: over(SequentialSampler(DATA), Buckets, upwards=True), PREDICT),
        (lambda: {}, TRAIN),
        (lambda: {"shuffle": True}, TRAIN),
        (lambda: over(Backwards()), None),
    ],
)
def test_nothing_is_warned_of_where_nothing_is_lost(given, stage):
    assert (
        warned(lambda: DataLoader(DATA, **given()), stage or TRAIN, use_distributed_sampler=stage is not None)
        == []
    )
