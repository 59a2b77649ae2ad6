"""Errors of samples come back as themselves, and the iteration may go on."""

from __future__ import annotations

import signal

import pytest

from lit_loader import DataLoader
from lit_loader.errors import LitLoaderError, WorkerDiedError
from tests.support.in_threads import Calls
from tests.support.toys import Dying, Failing

SEEDS = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


@SEEDS
@pytest.mark.parametrize(
    ("signal_number", "cause"), [(None, "exit code 3"), (signal.SIGKILL, "SIGKILL"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_dead_worker_is_named_with_its_signal(seed, signal_number, cause):
    loader = DataLoader(Dying(5, signal_number), num_workers=2, seed=seed, max_worker_restarts=0)
    with pytest.raises(WorkerDiedError, match=rf"pid\(s\) \d+\) exited unexpectedly.*{cause}") as caught:
        list(loader)
    assert isinstance(caught.value, RuntimeError)  # as torch's is
    assert isinstance(caught.value, LitLoaderError)


def test_a_loader_whose_worker_died_can_be_iterated_again():
    dataset = Dying(5)
    with DataLoader(dataset, num_workers=2, persistent_workers=True, seed=0, max_worker_restarts=0) as loader:
        with pytest.raises(WorkerDiedError):
            list(loader)
        dataset.deadly = -1
        assert sum(batch.item() for batch in loader) == sum(range(16))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=["inline", "fork", "thread"]
)
def test_an_exception_that_a_sample_returns_is_delivered_and_not_raised(workers, seed):
    actual = list(DataLoader(Calls(LookupError, 4), batch_size=None, seed=seed, **workers))
    assert [type(error) for error in actual] == [LookupError] * 4
    assert [error.args for error in actual] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 3}, {"num_workers": 3, "worker_method": "thread"}], ids=str)
@pytest.mark.parametrize("first", [0, 3])
def test_first_of_several_errors_in_a_batch_is_raised_and_iteration_continues(workers, first):
    dataset = Failing({first: KeyError("first"), first + 2: ValueError("second")}, 12)
    iterator = iter(DataLoader(dataset, batch_size=6, seed=0, **workers))
    with pytest.raises(KeyError, match="first"):
        next(iterator)
    assert next(iterator).tolist() == list(range(6, 12))
    with pytest.raises(StopIteration):
        next(iterator)
