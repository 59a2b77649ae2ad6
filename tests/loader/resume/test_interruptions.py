"""A state that is saved at an unusual time: before the first batch, after one that failed, in a signal handler."""

from __future__ import annotations

import threading
import time
import warnings

import pytest

from lit_loader import DataLoader
from lit_loader.errors import ResumeWarning
from lit_loader.loader.resume import MAX_HELD, Progress
from tests.support.resume_sets import Flaky, StatefulStream, assert_same, epochs, make, resumed, stopped

ALL = ["plain", "custom", "custom with state", "stream", "stream with state"]


def load(loader, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResumeWarning)
        loader.load_state_dict(state)


@pytest.mark.parametrize("name", ALL)
def test_held_batches_of_a_resumed_epoch_do_not_count(name):
    full = epochs(make(name), 1)[0]
    state = stopped(make(name), 0, 2)
    for received, num_held in ((1, 1), (2, 1), (2, 2)):
        loader = make(name)
        load(loader, state)
        iterator = iter(loader)
        for _ in range(received):
            next(iterator)
        assert_same(resumed(make(name), loader.state_dict(num_held=num_held), 1), [full[2 + received - num_held :]])


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("name", ALL)
def test_epoch_whose_first_batch_fails_is_resumed_where_it_began(name, start):
    full = epochs(make(name), 1)[0]
    loader = make(name, collate_fn=Flaky())
    if start:
        load(loader, stopped(make(name), 0, start))
    Flaky.fails_at = float(full[start][0, 0])
    with pytest.raises(OSError, match="no such disk"):
        next(iter(loader))
    assert_same(resumed(make(name), loader.state_dict(), 1), [full[start:]])


@pytest.mark.parametrize("name", ALL)
def test_a_batch_that_failed_is_not_mixed_up_with_one_that_is_held(name):
    full = epochs(make(name), 1)[0]
    loader = make(name, collate_fn=Flaky())
    Flaky.fails_at = float(full[1][0, 0])
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="no such disk"):
        next(iterator)
    next(iterator), next(iterator)
    assert_same(resumed(make(name), loader.state_dict(num_held=1), 1), [full[3:]])


def test_a_resumed_pass_that_fails_and_ends_does_not_go_on_with_the_next_epoch():
    full = epochs(make("plain"), 1)[0]
    loader = make("plain", collate_fn=Flaky())
    loader.load_state_dict(stopped(make("plain"), 0, len(full) - 1))
    Flaky.fails_at = float(full[-1][0, 0])
    iterator = iter(loader)
    with pytest.raises(OSError, match="no such disk"):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize("resumes", [False, True])
def test_a_pass_that_cannot_start_is_not_taken_for_begun(resumes, monkeypatch):
    full = epochs(make("plain"), 1)[0]
    loader = make("plain")
    if resumes:
        loader.load_state_dict(stopped(make("plain"), 0, 3))
    state = loader.state_dict()

    def fail(*_, **__):
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(loader._worker_manager, "start", fail)
        iterator = iter(loader)
        with pytest.raises(OSError, match="too many open files"):
            next(iterator)
        assert loader.state_dict() == state
    assert_same([list(iterator)], [full[3 * resumes :]])


class Asking(StatefulStream):
    """Calls ``state_dict`` while an epoch begins, as a signal handler may do."""

    def __init__(self, handler):
        super().__init__()
        self.handler = handler

    def state_dict(self):
        handler = self.handler
        self.handler = None
        if handler is not None:
            handler()
        return super().state_dict()


def test_a_signal_in_the_moment_in_which_a_resumed_pass_begins():
    state = stopped(make("stream with state"), 0, 3)
    actual = []
    loader = DataLoader(Asking(lambda: actual.append(loader.state_dict())), batch_size=4, seed=3)
    load(loader, state)
    next(iter(loader))
    assert actual == [state]


@pytest.mark.parametrize("name", ALL)
def test_a_state_taken_in_another_thread_is_one_of_those_between_batches(name):
    states = [stopped(make(name), 0, n) for n in range(8)]
    loader = make(name)
    seen = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            seen.append(loader.state_dict())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for _ in loader:
            time.sleep(0.001)
        seen.append(loader.state_dict())
    finally:
        stop.set()
        thread.join()
    assert all(state in states or state["epoch"] == 1 for state in seen)


def test_progress_keeps_what_may_be_held_and_no_more():
    progress = Progress(0, None, first="first")
    for number in range(1, 50):
        progress.note(number)
        progress.received()
        for num_held in range(MAX_HELD + 1):
            assert progress.reached(num_held=num_held)[1] == (number - num_held if number > num_held else "first")
    assert len(progress._notes) <= MAX_HELD + 2
