"""Spawned workers: all types of samples, all errors and all that a worker knows, in one start of one worker."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from lit_loader import DataLoader
from tests.parity.test_worker_errors import ERRORS
from tests.support.collate_samples import OTHERWISE_IN_TORCHS_WORKERS, SAMPLES
from tests.support.parity_backends import close, error_of, events, seed_everything
from tests.support.parity_datasets import Numbers, ProcessFacts

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of kinds of tensors

SPAWN = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
NAMES = [name for name in SAMPLES if name not in OTHERWISE_IN_TORCHS_WORKERS]


class Everything(Dataset):
    """By name: a sample of each type, an error of each type, the facts of the worker."""

    def __getitem__(self, index):
        kind, name, number = index
        if kind == "sample":
            return SAMPLES[name]()[number]
        if kind == "error":
            raise ERRORS[name]()
        facts = ProcessFacts()[0] | {"dataset": get_worker_info().dataset is self}
        return [str(facts), str(self.mark)]


def batches():
    """Return index lists: each type's samples, then each error, then two looks at the worker."""
    samples = [[("sample", name, number) for number in range(len(SAMPLES[name]()))] for name in NAMES]
    return [*samples, *([("error", name, 0)] for name in ERRORS), [("facts", "", 0)], [("facts", "", 1)]]


def init(worker):
    info = get_worker_info()
    info.dataset.mark = [worker, info.id, info.seed == torch.initial_seed()]


@pytest.fixture(scope="module")
def seen():
    """Return what torch's loader and lit_loader's give over two epochs; both workers start at the same time."""
    loaders = []
    iterators = []
    actual = []
    for kind in (TorchDataLoader, DataLoader):
        seed_everything()
        loaders.append(kind(Everything(), batch_sampler=batches(), worker_init_fn=init, **SPAWN))
        iterators.append(iter(loaders[-1]))
    for loader, iterator in zip(loaders, iterators, strict=True):
        first = events(iterator, ends=3)
        again = events(iter(loader), ends=3)
        actual.append((first, again))
        close(loader)
    iterators.clear()
    return actual


def test_samples_of_every_type_errors_of_every_type_and_a_workers_facts_are_torchs(seen):
    torchs, ours = seen
    for epoch in range(2):
        differ = [pair for pair in zip(torchs[epoch], ours[epoch], strict=True) if pair[0] != pair[1]]
        assert not differ


def test_all_of_them_came(seen):
    for first, _ in seen:
        assert len(first) == len(batches()) + 3 - 1  # three ends, one of them a sample's StopIteration
        assert "[0, 0, True]" in str(first[-3])
        assert "'own process': True" in str(first[-3])


def test_unpicklable_objects_raise_with_torchs_warning_and_error():
    for arguments in (
        {"worker_init_fn": lambda worker: None},
        {"collate_fn": lambda samples: samples},
        {"dataset": [lambda: None]},
    ):
        actual = []
        for kind in (TorchDataLoader, DataLoader):
            loader = kind(**{"dataset": Numbers(3), **arguments}, num_workers=1, multiprocessing_context="spawn")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                error = error_of(iter, loader)
            said = [str(warning.message) for warning in caught if "pickle" in str(warning.message)]
            actual.append((type(error), str(error).split(" at 0x")[0], [text[:60] for text in said]))
        assert actual[0] == actual[1]
        assert actual[0][2] == ["Got pickle error when attempting to start a worker Process. T"[:60]]
