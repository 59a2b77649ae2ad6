"""Guarantee: a state distinguishes a timeout from an error of the user's by its type, not by its message."""

from __future__ import annotations

import time

import pytest
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from tests.support.in_threads import Calls

WORDS = "DataLoader timed out after 3 tries of the object store"
WORKERS = [{}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}]


def fail_second(index):
    """Raise an error at sample 1 that begins as torch's timeout does."""
    if index == 1:
        raise RuntimeError(WORDS)
    return index


class Stream(IterableDataset):
    """Its batches are collated by `collate`, which raises for the second one."""

    def __iter__(self):
        return iter(range(5))


def collate(samples):
    if samples == [1]:
        raise RuntimeError(WORDS)
    return samples[0]


@pytest.mark.filterwarnings("ignore:Stream has no state to resume from")
@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("dataset", [Calls(fail_second, 5), Stream()], ids=["map", "iterable"])
def test_a_users_error_in_the_words_of_a_timeout_counts_as_a_failed_batch(dataset, workers):
    loader = DataLoader(dataset, 1, seed=0, collate_fn=collate, **workers)
    iterator = iter(loader)
    assert next(iterator) == 0
    with pytest.raises(RuntimeError, match="timed out after 3 tries"):
        next(iterator)
    assert next(iterator) == 2
    later = DataLoader(dataset, 1, seed=0, collate_fn=collate, **workers)
    later.load_state_dict(loader.state_dict())
    assert list(later) == [3, 4]


def late(index):
    """Take longer than the timeout for sample 0."""
    time.sleep(0.5 if index == 0 else 0)
    return index


@pytest.mark.parametrize("workers", WORKERS[1:], ids=str)
def test_a_timeout_is_torchs_type_and_counts_no_batch(workers):
    loader = DataLoader(Calls(late, 3), 1, seed=0, timeout=0.2, collate_fn=collate_late, **workers)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0\.2 seconds$") as caught:
        next(iterator)
    assert type(caught.value) is RuntimeError
    while True:
        try:
            assert next(iterator) == 0
            break
        except RuntimeError:
            continue
    later = DataLoader(Calls(late, 3), 1, seed=0, collate_fn=collate_late)
    later.load_state_dict(loader.state_dict())
    assert list(later) == [1, 2]


def collate_late(samples):
    return samples[0]
