"""Datasets and samplers for resumed epochs; every value depends on the sample's own draws."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler
from torch.utils.data import RandomSampler as TorchRandomSampler

from lit_loader import DataLoader, get_worker_info, sample_rng
from lit_loader.errors import ResumeWarning
from lit_loader.samplers import ClassBalancedSampler, GroupedSampler, RandomSampler, WeightedRandomSampler

SIZE = 26
BATCH = 4


def draws(index):
    return torch.tensor([float(index), torch.rand(()).item(), sample_rng().numpy.random()], dtype=torch.float64)


class Numbers(Dataset):
    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return draws(index)


def share():
    """Return this worker's number and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Stream(IterableDataset):
    """A stream without a state. Every worker gives its share."""

    def __init__(self, size=SIZE):
        self.size = size

    def __iter__(self):
        worker, count = share()
        for index in range(worker, self.size, count):
            yield draws(index)


class StatefulStream(Stream):
    """The same stream, with a state: it continues from its position."""

    def __init__(self, size=SIZE):
        super().__init__(size)
        self.at = {}

    def __iter__(self):
        worker, count = share()
        for index in range(self.at.pop(str(worker), worker), self.size, count):
            self.at[str(worker)] = index + count
            yield draws(index)
        self.at.pop(str(worker), None)

    def state_dict(self):
        return dict(self.at)

    def load_state_dict(self, state):
        self.at = dict(state)


class StatefulSampler(Sampler):
    """A sampler of a user's, with a state: another permutation in each round."""

    def __init__(self, size=SIZE):
        self.size = size
        self.taken = 0
        self.round = 0

    def __len__(self):
        return self.size

    def __iter__(self):
        order = np.random.default_rng(self.round).permutation(self.size)
        while self.taken < self.size:
            self.taken += 1
            yield int(order[self.taken - 1])
        self.taken = 0
        self.round = self.round + 1

    def state_dict(self):
        return {"taken": self.taken, "round": self.round}

    def load_state_dict(self, state):
        self.taken = state["taken"]
        self.round = state["round"]


def chosen(name):
    """Return the arguments of a loader over `Numbers` that say how it samples."""
    balanced = ClassBalancedSampler([i % 3 for i in range(SIZE)])
    weighted = WeightedRandomSampler(np.arange(1.0, SIZE + 1))
    return {
        "plain": lambda: {"batch_size": BATCH, "shuffle": True},
        "drop last": lambda: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
        "weighted": lambda: {"batch_size": BATCH, "sampler": weighted},
        "class-balanced": lambda: {"batch_size": BATCH, "sampler": balanced},
        "grouped": lambda: {"batch_size": BATCH, "sampler": GroupedSampler(RandomSampler(SIZE), np.arange(SIZE) % 2)},
        "weighted grouped": lambda: {"batch_size": BATCH, "sampler": GroupedSampler(weighted, np.arange(SIZE) % 2)},
        "no batches": lambda: {"batch_size": None, "shuffle": True},
        "custom": lambda: {"batch_size": BATCH, "sampler": Shuffled(range(SIZE))},
        "custom batches": lambda: {"batch_sampler": BatchSampler(Shuffled(range(SIZE)), BATCH, False)},
        "custom with state": lambda: {"batch_size": BATCH, "sampler": StatefulSampler()},
    }[name]()


class Shuffled(TorchRandomSampler):
    """A sampler of a user's that draws from torch's process-wide generator."""


SAMPLERS = ["plain", "drop last", "weighted", "class-balanced", "grouped", "weighted grouped", "no batches"]
CUSTOM = ["custom", "custom batches", "custom with state"]
STREAMS = {"stream": Stream, "stream with state": StatefulStream}

Backend = tuple[int, str]
INLINE: Backend = (0, "")


def make(name, backend=INLINE, **more):
    """Return a loader; ``name`` is a sampler's or a stream's, ``backend`` its workers and their kind."""
    count, kind = backend
    arguments = {"seed": 3, "num_workers": count, "persistent_workers": count > 0}
    if kind == "thread":
        arguments["worker_method"] = "thread"
    elif count:
        arguments["multiprocessing_context"] = kind
    if name in STREAMS:
        return DataLoader(STREAMS[name](), **{**arguments, "batch_size": BATCH, **more})
    return DataLoader(Numbers(), **{**arguments, **chosen(name), **more})


def epochs(loader, count):
    """Return the batches of the next epochs."""
    return [[batch.clone() for batch in loader] for _ in range(count)]


def stopped(loader, epoch, batches):
    """Return the loader's state after some epochs and then some batches."""
    epochs(loader, epoch)
    if batches:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
    return loader.state_dict()


def resumed(loader, state, count):
    """Return the batches of a resumed epoch and the epochs after it, ``count`` in all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResumeWarning)
        loader.load_state_dict(state)
    return epochs(loader, count)


def rest_of(full, epoch, batches):
    """Return the remaining batches after some batches of an epoch, and the later epochs."""
    remaining = full[epoch][batches:]
    return ([remaining] if remaining else []) + full[epoch + 1 :]


def assert_same(actual, expected):
    assert [len(epoch) for epoch in actual] == [len(epoch) for epoch in expected]
    for mine, other in zip(actual, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


class Flaky:
    """A collate function that fails once, at a certain sample."""

    fails_at = -1

    def __call__(self, batch):
        if float(batch[0][0]) == Flaky.fails_at:
            Flaky.fails_at = -1
            raise OSError("no such disk")
        return torch.stack(batch)
