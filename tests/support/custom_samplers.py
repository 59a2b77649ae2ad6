"""Samplers and batch samplers as users write them, and how a loader over them is made and read."""

from __future__ import annotations

from itertools import product

from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from lit_loader import DataLoader, samplers

DATA = range(22)
STAGES = (RunningStage.TRAINING, RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.PREDICTING)
SETTINGS = [
    {"stage": stage, "in_hook": in_hook} for stage, in_hook in product(STAGES, (True, False))
]  # in_hook: made in a *_dataloader hook, or passed


class Backwards(Sampler):
    """An order of a user's own."""

    def __init__(self, length=22):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))


class OwnRandom(RandomSampler):
    """A user's, which may do anything."""


class Buckets(BatchSampler):
    """One with a further argument."""

    def __init__(self, sampler, batch_size, drop_last, *, upwards=False):
        super().__init__(sampler, batch_size, drop_last)
        self.upwards = upwards

    def __iter__(self):
        return (sorted(batch, reverse=not self.upwards) for batch in super().__iter__())


class Plainer(BatchSampler):
    """One without."""


class Bare:
    """A batch sampler that torch takes, with nothing of a BatchSampler's."""

    def __len__(self):
        return 2

    def __iter__(self):
        return iter([[3, 1], [2]])


class Hidden(Bare):
    """One that takes a sampler and does not show it."""

    def __init__(self, order, batch_size, drop_last):
        self.order = order
        self.batch_size = batch_size
        self.drop_last = drop_last


class NamedEpochs(Bare):
    """One that wants to know the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch


class NamedBuckets(Plainer):
    """The same, with a sampler."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch


def batches(loader):
    return [batch.tolist() for batch in loader]


def flat(*loaders):
    return [index for loader in loaders for batch in batches(loader) for index in batch]


def loader(seed=None, **arguments):
    place = {"rank": 0, "world_size": 1} if seed is not None else {}
    return DataLoader(DATA, seed=seed, **{**place, **arguments})


# What Lightning's rebuilding loses something of.
WRONG = {
    "weighted": lambda: WeightedRandomSampler([1.0] * 22, 22),
    "subset": lambda: SubsetRandomSampler(range(9)),
    "some": lambda: RandomSampler(DATA, num_samples=9),
    "replaced": lambda: RandomSampler(DATA, replacement=True),
    "subclass": lambda: OwnRandom(DATA),
    "ordered": Backwards,
}
OURS = {
    "weighted": lambda: samplers.WeightedRandomSampler([1.0] * 11 + [2.0] * 11, 22),
    "random": lambda: samplers.RandomSampler(22),
    "sequential": lambda: samplers.SequentialSampler(22),
}


def over(sampler, kind=None, *, drop_last=False, **further):
    """Return a loader's arguments for batches of four over a sampler: by a batch sampler of that kind, if any."""
    if kind is None:
        return {"sampler": sampler, "batch_size": 4, "drop_last": drop_last}
    return {"batch_sampler": kind(sampler, 4, drop_last, **further)}
