"""Guarantee: errors and timeouts in worker threads are as in worker processes, and name the thread."""

from __future__ import annotations

import re

import pytest
import torch.utils.data as torch_data
from torch.utils.data import IterableDataset

from tests.support.in_threads import threads
from tests.support.toys import Failing

seeds = pytest.mark.parametrize("seed", [None, 1])


class TwoArgumentError(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


@seeds
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), KeyError("key"), OSError(2, "gone"), SystemExit(3), KeyboardInterrupt(), TwoArgumentError(1, 2)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_type_and_names_the_thread(error, seed):
    collate = torch_data.default_collate
    loader = threads(Failing({5: error}), batch_size=3, seed=seed, collate_fn=collate)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    text = caught.value.__notes__[-1] if isinstance(error, TwoArgumentError) else str(caught.value)
    assert re.search(rf"Caught {type(error).__name__} in DataLoader worker thread [01]", text)
    assert "toys.py" in text
    assert [batch.tolist() for batch in iterator] == [[6, 7, 8], [9, 10, 11]]


@seeds
def test_an_error_of_the_collate_function_names_the_thread(seed):
    def collate(samples):
        raise LookupError(samples)

    iterator = iter(threads(range(2), seed=seed, collate_fn=collate))
    for _ in range(2):
        with pytest.raises(LookupError, match="in DataLoader worker thread"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@seeds
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), SystemExit(1)])
def test_a_worker_init_fn_that_fails_fails_every_batch_of_its_worker(seed, error):
    def init(worker):
        raise error

    iterator = iter(threads(range(3), seed=seed, worker_init_fn=init))
    for _ in range(3):
        with pytest.raises(type(error), match="in DataLoader worker thread"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@seeds
def test_a_stream_that_fails_names_the_thread(seed):
    class Broken(IterableDataset):
        def __iter__(self):
            raise FloatingPointError

    with pytest.raises(FloatingPointError, match="in DataLoader worker thread 0"):
        next(iter(threads(Broken(), seed=seed)))


def test_a_worker_that_cannot_go_on_is_no_endless_wait(monkeypatch):
    """A simulated defect of lit_loader."""
    from lit_loader.engine import threads as thread_backend

    monkeypatch.setattr(thread_backend.ThreadLink, "send", lambda *arguments: 1 / 0)
    with pytest.raises(RuntimeError, match="worker thread of the loader failed") as caught:
        next(iter(threads(range(4), seed=1)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
