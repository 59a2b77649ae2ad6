"""Guarantee: an error of a worker arrives in its batch's turn, as itself if that can be, never as another failure."""

from __future__ import annotations

import os

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.engine.worker_errors import WorkerError
from tests.support.odd_things import ERRORS, MAIN, ErrorsAndNumbers, TwoArgumentsError
from tests.support.outcomes import BACKENDS, outcomes_of

WORKERS = {**BACKENDS, "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"}}


@pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.soak if n == "spawn" else ()) for n in WORKERS])
def test_every_error_arrives_in_its_turn(name, seed, monkeypatch):
    workers = WORKERS[name]
    monkeypatch.setenv(MAIN, str(os.getpid()))
    timeout = {"timeout": 60} if workers else {}
    with DataLoader(ErrorsAndNumbers(), batch_size=2, seed=seed, **workers, **timeout) as loader:
        outcomes = outcomes_of(loader)
    assert [batch.tolist() for batch in outcomes[1::2]] == [[n, n + 1] for n in range(2, 4 * len(ERRORS), 4)]
    for (name, case), error in zip(ERRORS.items(), outcomes[::2], strict=True):
        original = case.make()
        assert isinstance(error, Exception), name
        expected = case.comes_as if workers else type(original)
        assert type(error).__name__ == expected.__name__, name
        if not workers:
            continue
        notes = getattr(error, "__notes__", []) if name != "notes raise" else []
        text = notes[-1] if notes else str(error)
        assert f"Caught {type(original).__name__} in DataLoader worker" in text, name
        assert "odd_things.py" in text or name == "notes raise", name
        assert "__getitem__" in text or name == "notes raise", name
        if case.args is not None:
            assert error.args == case.args, name


@pytest.mark.parametrize("workers", ["fork", "thread"])
def test_attributes_of_an_error_arrive_with_it(workers):
    with DataLoader(ErrorsAndNumbers(), batch_size=2, **WORKERS[workers]) as loader:
        outcomes = dict(zip(ERRORS, outcomes_of(loader)[::2], strict=True))
    assert outcomes["two and a note"].__notes__[0] == "a note of its own"
    assert "a note of its own" in str(outcomes["with a note"])
    assert [type(member) for member in outcomes["group"].exceptions] == [ValueError, KeyError]
    assert outcomes["wants a number"].next == 5
    assert outcomes["of a process"].returncode == 3
    assert torch.equal(outcomes["small tensor"].args[1], torch.ones(9))


def test_copy_of_an_error_is_sent_only_if_needed_and_small():
    def sent(error):
        return WorkerError.of(error, "in a worker").copy

    assert sent(ValueError(torch.ones(3))) is None
    assert sent(TwoArgumentsError(1, bytes(60_000))) is not None
    assert sent(TwoArgumentsError(1, bytes(66_000))) is None
    assert sent(TwoArgumentsError(1, torch.zeros(66_000, dtype=torch.uint8))) is None


def test_ctrl_c_while_an_error_is_unpickled_is_raised(monkeypatch):
    def interrupted(data):
        raise KeyboardInterrupt

    error = WorkerError.of(TwoArgumentsError(1, 2), "in a worker")
    monkeypatch.setattr("lit_loader.engine.worker_errors.pickle.loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        error.reraise(keyed=False)
