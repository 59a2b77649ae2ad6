"""Guarantee: torch's functions answer for worker threads while there are any, and are as before when the last one ends.

To the identity of their code, and with nothing added to torch's modules, however the thread ends.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from types import FunctionType

import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from lit_loader import DataLoader
from lit_loader.engine import threads as thread_backend
from lit_loader.seeding import ThreadScope, functions_answer_for_threads
from tests.loader.in_threads import Calls, threads

FUNCTIONS = (
    torch.random.manual_seed,
    torch.random.seed,
    torch.random.initial_seed,
    torch.random.get_rng_state,
    torch.random.set_rng_state,
    get_worker_info,
)
ORIGINAL = tuple(function.__code__ for function in FUNCTIONS)
NAMES = set(vars(torch.random)), set(vars(torch_worker))


def is_original():
    assert (set(vars(torch.random)), set(vars(torch_worker))) == NAMES
    same = {function.__code__ is code for function, code in zip(FUNCTIONS, ORIGINAL, strict=True)}
    assert len(same) == 1, "some are exchanged and some are not"
    return same.pop()


def becomes_original(within_s=5.0):
    deadline = time.monotonic() + within_s
    while not is_original() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_original()


def test_nothing_is_exchanged_before_the_first_thread():
    assert is_original()
    assert list(DataLoader([0, 1], num_workers=0, seed=1)) == [0, 1]
    loader = threads([0, 1])
    assert is_original()
    loader.close()


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_they_are_put_back_when_the_pool_is_closed_for_each_epoch_anew(seed, persistent):
    loader = threads(Calls(lambda index: get_worker_info().id), seed=seed, persistent_workers=persistent)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        assert not is_original()
        assert len(list(iterator)) == 7
        loader.close()
        assert is_original()
        assert get_worker_info() is None


def test_they_are_put_back_with_the_last_of_several_pools():
    first, second = (threads(range(8), persistent_workers=True) for _ in range(2))
    assert len(list(first)) == len(list(second)) == 8
    first.close()
    assert not is_original()
    second.close()
    assert is_original()


def test_they_are_put_back_when_the_pool_is_collected():
    iterator = iter(threads(range(8)))
    next(iterator)
    assert not is_original()
    del iterator
    gc.collect()
    assert becomes_original()


def test_they_are_put_back_by_a_thread_that_was_left_behind_when_it_ends(monkeypatch):
    monkeypatch.setattr(thread_backend, "_GRACE_S", 0.05)
    go_on, began, found = threading.Event(), threading.Event(), []

    def stuck(index):
        if index:
            began.set()
            go_on.wait(20)
            found.append((get_worker_info().id, torch.manual_seed(index) is torch.default_generator))

    loader = threads(Calls(stuck), num_workers=1, timeout=2, seed=1)
    iterator = iter(loader)
    next(iterator)
    assert began.wait(5)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    loader.close()
    assert not is_original()
    go_on.set()
    assert becomes_original()
    assert found == [(0, False)]  # it was a worker to its end


def test_they_are_put_back_when_a_thread_cannot_be_started(monkeypatch):
    started, start = [], threading.Thread.start

    def start_one(thread):
        if thread.name.startswith("lit_loader-worker"):
            started.append(thread)
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="needs as many threads"):
        next(iter(threads(range(8))))
    started.clear()
    gc.collect()
    assert becomes_original()


def test_they_are_put_back_when_a_thread_cannot_set_itself_up(monkeypatch):
    def fails(*_, **__):
        raise OSError("no more")

    monkeypatch.setattr("lit_loader.engine.threads.set_worker_info", fails)
    with pytest.raises(RuntimeError, match="worker thread of the loader failed"):
        next(iter(threads(range(8))))
    assert becomes_original()


def test_they_are_put_back_after_errors_of_the_users_code():
    def fails(*_, **__):
        raise ValueError

    for arguments in ({"worker_init_fn": fails}, {"collate_fn": fails}):
        with pytest.raises(ValueError):
            next(iter(threads(range(8), seed=1, **arguments)))
        gc.collect()
        assert becomes_original()


def in_a_fork(check):
    """Whether a check holds in a fork of the calling thread."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_begins_with_them_put_back_and_leaves_them_to_the_parent():
    with threads(range(8), persistent_workers=True) as loader:
        list(loader)
        assert in_a_fork(is_original)
        assert not is_original()


def test_a_fork_of_a_worker_thread_is_no_worker_and_may_begin_workers_of_its_own():
    def is_like_new():
        first = is_original() and get_worker_info() is None
        first = first and torch.manual_seed(3) is torch.default_generator
        loader = threads(Calls(lambda index: get_worker_info().id), num_workers=1, persistent_workers=True)
        found, within = list(loader), is_original()
        loader.close()
        return first and found == [[0]] * 8 and not within and is_original()

    found = list(threads(Calls(lambda index: in_a_fork(is_like_new), 2), num_workers=1))
    assert found == [[True]] * 2
    assert becomes_original()


def test_a_fork_that_leaves_the_thread_it_was_made_in_puts_nothing_back_twice():
    with functions_answer_for_threads():
        pid = os.fork()
        if pid == 0:
            inner = functions_answer_for_threads()
            inner.__enter__()
    if pid == 0:
        exchanged = not is_original()  # by the thread that began in the fork
        inner.__exit__(None, None, None)
        os._exit(0 if exchanged and is_original() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_original()


def test_a_call_that_began_before_they_were_put_back_ends_as_torchs_own():
    """A thread of the user's may be running a replaced function when it is restored: it finishes the code."""
    with functions_answer_for_threads():
        begun = [FunctionType(function.__code__, function.__globals__) for function in FUNCTIONS]
    assert is_original()
    manual_seed, seed, initial_seed, get_rng_state, set_rng_state, info = begun
    assert manual_seed(11) is torch.default_generator
    state = torch.get_rng_state()
    assert initial_seed() == 11
    assert torch.equal(get_rng_state(), state)
    drawn = torch.rand(1)
    assert set_rng_state(state) is None
    assert torch.rand(1) == drawn
    assert seed() == torch.initial_seed()
    assert info() is None


def test_users_threads_that_call_them_all_the_time_notice_nothing():
    over, wrong = threading.Event(), []

    def calls():
        while not over.is_set():
            if get_worker_info() is not None or torch.initial_seed() != 5:
                wrong.append(1)

    torch.manual_seed(5)
    users = [threading.Thread(target=calls) for _ in range(2)]
    for user in users:
        user.start()
    for _ in range(100):
        with functions_answer_for_threads(), ThreadScope(1):
            assert torch.initial_seed() == 1
    over.set()
    for user in users:
        user.join()
    assert not wrong
    assert is_original()


def test_loaders_in_samples_of_worker_threads_answer_for_the_innermost():
    def outer(index):
        before = get_worker_info().id, torch.initial_seed()
        inner = [sample for (sample,) in threads(Calls(lambda _: get_worker_info().num_workers, 3), seed=1)]
        assert not is_original()
        assert (get_worker_info().id, torch.initial_seed()) == before
        return inner

    found = [sample for (sample,) in threads(Calls(outer, 4), num_workers=1, seed=1)]
    assert found == [[2, 2, 2]] * 4
    assert becomes_original()


def test_code_that_somebody_else_put_there_meanwhile_stays(monkeypatch):
    def another(seed):
        return "another's"

    monkeypatch.setattr(torch.random.manual_seed, "__code__", torch.random.manual_seed.__code__)
    with functions_answer_for_threads():
        torch.random.manual_seed.__code__ = another.__code__
    assert torch.manual_seed(1) == "another's"
    assert torch.random.initial_seed.__code__ is ORIGINAL[2]
