"""Errors of samples come back as themselves, and the iteration may go on."""

from __future__ import annotations

import signal

import pytest
import torch
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.errors import LitLoaderError, WorkerDiedError
from tests.support.toys import Drawing, Dying, Failing, Slow

SEEDS = pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])


def collected(loader):
    """Return all batches, with an exception instead of each batch that failed."""
    actual = []
    iterator = iter(loader)
    while True:
        try:
            actual.append(next(iterator).tolist())
        except StopIteration:
            return actual
        except Exception as error:
            actual.append(error)


@SEEDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_iteration_goes_on_after_errors(seed, num_workers):
    bad = {3: ValueError("three"), 4: KeyError("four"), 5: OSError("five")}
    actual = collected(DataLoader(Failing(bad), batch_size=2, num_workers=num_workers, seed=seed))
    assert [type(item) for item in actual] == [list, ValueError, KeyError, list, list, list]
    assert actual[0] == [0, 1]
    assert actual[5] == [10, 11]


@SEEDS
def test_an_error_in_a_worker_tells_type_message_place_and_traceback(seed):
    loader = DataLoader(Failing({1: KeyError("a key")}), batch_size=2, num_workers=1, seed=seed)
    with pytest.raises(KeyError) as caught:
        list(loader)
    text = str(caught.value)
    assert "Caught KeyError in DataLoader worker process 0" in text
    assert "a key" in text
    assert "__getitem__" in text
    assert "\n" in text


@SEEDS
def test_a_failing_worker_init_fn_is_raised(seed):
    def fails(worker):
        raise ArithmeticError(f"worker {worker}")

    with pytest.raises(ArithmeticError, match="worker 0"):
        next(iter(DataLoader(Drawing(), num_workers=1, worker_init_fn=fails, seed=seed)))


@SEEDS
def test_a_timeout_is_raised_and_the_iteration_may_go_on(seed):
    iterator = iter(DataLoader(Slow(0.5, 2), num_workers=1, timeout=0.1, seed=seed))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.1 seconds"):
        next(iterator)
    for _ in range(30):
        try:
            assert next(iterator).tolist() == [0]
            break
        except RuntimeError:
            continue
    else:
        pytest.fail("the batch never came")


@SEEDS
@pytest.mark.parametrize(
    ("signal_number", "told"), [(None, "exit code 3"), (signal.SIGKILL, "SIGKILL"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_dead_worker_is_named_with_its_signal(seed, signal_number, told):
    loader = DataLoader(Dying(5, signal_number), num_workers=2, seed=seed, max_worker_restarts=0)
    with pytest.raises(WorkerDiedError, match=rf"pid\(s\) \d+\) exited unexpectedly.*{told}") as caught:
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


class Exceptions(Dataset):
    """Errors that are data."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return LookupError(index)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=["inline", "fork", "thread"]
)
def test_an_exception_that_a_sample_returns_is_delivered_and_not_raised(workers, seed):
    actual = list(DataLoader(Exceptions(), batch_size=None, seed=seed, **workers))
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


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_an_error_of_a_collate_function_of_ours_has_its_own_type(workers):
    ragged = [torch.zeros(2), torch.zeros(3), torch.zeros(2), torch.zeros(2)]
    iterator = iter(DataLoader(ragged, batch_size=2, seed=0, **workers))
    with pytest.raises(RuntimeError, match="size"):
        next(iterator)
    assert next(iterator).shape == (2, 2)
    del iterator
