"""Spawned workers: samples of all types, all errors and the worker info, in one start of one worker."""

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

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about types of tensors

SPAWN = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
NAMES = [name for name in SAMPLES if name not in OTHERWISE_IN_TORCHS_WORKERS]


class Everything(Dataset):
    """Samples by name: one of each type, an error of each type, the facts of the worker."""

    def __getitem__(self, index):
        kind, name, number = index
        if kind == "sample":
            return SAMPLES[name]()[number]
        if kind == "error":
            raise ERRORS[name]()
        facts = ProcessFacts()[0] | {"dataset": get_worker_info().dataset is self}
        return [str(facts), str(self.mark)]


def batches():
    """Return index lists: each type's samples, each error, and twice the facts of the worker."""
    samples = [[("sample", name, number) for number in range(len(SAMPLES[name]()))] for name in NAMES]
    return [*samples, *([("error", name, 0)] for name in ERRORS), [("facts", "", 0)], [("facts", "", 1)]]


def init(worker):
    info = get_worker_info()
    info.dataset.mark = [worker, info.id, info.seed == torch.initial_seed()]


@pytest.fixture(scope="module")
def epochs_of_both():
    """The events of two epochs for torch's class and lit_loader's, whose workers start at the same time."""
    loaders = []
    iterators = []
    actual = []
    for kind in (TorchDataLoader, DataLoader):
        seed_everything()
        loaders.append(kind(Everything(), batch_sampler=batches(), worker_init_fn=init, **SPAWN))
        iterators.append(iter(loaders[-1]))
    for loader, iterator in zip(loaders, iterators, strict=True):
        actual.append((events(iterator, ends=3), events(iter(loader), ends=3)))
        close(loader)
    iterators.clear()
    return actual


def test_samples_errors_and_worker_facts_are_torchs(epochs_of_both):
    torchs, ours = epochs_of_both
    for torchs_events, our_events in zip(torchs, ours, strict=True):
        different = [pair for pair in zip(torchs_events, our_events, strict=True) if pair[0] != pair[1]]
        assert not different
    for first_epoch, _ in epochs_of_both:
        assert len(first_epoch) == len(batches()) + 3 - 1  # three ends, one of them a sample's StopIteration
        assert "[0, 0, True]" in str(first_epoch[-3])
        assert "'own process': True" in str(first_epoch[-3])


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
            texts = [str(warning.message)[:60] for warning in caught if "pickle" in str(warning.message)]
            actual.append((type(error), str(error).split(" at 0x")[0], texts))
        assert actual[0] == actual[1]
        assert actual[0][2] == ["Got pickle error when attempting to start a worker Process. T"[:60]]
