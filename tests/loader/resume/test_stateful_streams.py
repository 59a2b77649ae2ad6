"""Iterable datasets with a state resume as with torchdata's loader, others by count."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, get_worker_info
from lit_loader.errors import ResumeWarning
from tests.support.resume_sets import assert_same, epochs, resumed, stopped

SIZE = 23
BACKENDS = {
    "inline": {},
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "one thread": {"num_workers": 1, "worker_method": "thread"},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
SEEDS = [None, 4]


def worker():
    info = get_worker_info()
    return 0 if info is None else info.id


class Positioned(IterableDataset):
    """A dataset whose state is its position."""

    def __init__(self):
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class SelfIterating(Positioned):
    """A dataset that is its own iterator, and resets itself in ``__iter__``."""

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == SIZE:
            raise StopIteration
        self.at += 1
        return torch.tensor([100 * worker() + self.at])


class Iterator:
    def __init__(self, epoch):
        self.at = 0
        self.epoch = epoch

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == SIZE:
            raise StopIteration
        self.at += 1
        return torch.tensor([1000 * self.epoch + 100 * worker() + self.at])

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at = state["at"]
        self.epoch = state["epoch"]


class StatefulIterator(IterableDataset):
    """Has no state of its own; its iterators have."""

    def __iter__(self):
        return Iterator(0)


class CountsEpochs(IterableDataset):
    """Gives other samples in each epoch, which it counts; its iterators have their own state."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return Iterator(self.epoch)

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


class CountsAtTheEnd(IterableDataset):
    """A dataset that continues from its state, and counts the epoch at its end."""

    def __init__(self):
        self.epoch = self.at = 0

    def __iter__(self):
        while self.at < SIZE:
            self.at += 1
            yield torch.tensor([1000 * self.epoch + 100 * worker() + self.at])
        self.epoch = self.epoch + 1
        self.at = 0

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        self.at = state["at"]


class Flagged(Positioned):
    """A dataset that continues once from the loaded state, and then stays at its end."""

    resume = False

    def __iter__(self):
        first = self.at if self.resume else 0
        self.resume = False
        for number in range(first, SIZE):
            self.at = number + 1
            yield torch.tensor([100 * worker() + number])

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.resume = True


class FlaggedWithIterator(Flagged):
    """Its iterator has a state too, and ``__iter__`` uses the flag up at once."""

    def __iter__(self):
        first = self.at if self.resume else 0
        self.resume = False
        actual = Iterator(0)
        actual.at = first
        return actual

    def state_dict(self):
        return {"at": 0}


class Cycling(Positioned):
    """Without an end: its state comes back every eight samples."""

    def __iter__(self):
        for _ in range(SIZE):
            self.at = (self.at + 1) % 8
            yield torch.tensor([100 * worker() + self.at])


class Coarse(IterableDataset):
    """Has a state that does not hold its position."""

    def __iter__(self):
        yield from (torch.tensor([100 * worker() + n, int(torch.randint(1000, ()))]) for n in range(SIZE))

    def state_dict(self):
        return {"version": 1}

    def load_state_dict(self, state):
        pass


class Resetting(Positioned):
    """A generator that resets the loaded state at its first sample."""

    def __iter__(self):
        self.at = 0
        while self.at < SIZE:
            self.at += 1
            yield torch.tensor([100 * worker() + self.at, int(torch.randint(1000, ()))])


def loader_of(dataset, seed, **arguments):
    return DataLoader(dataset(), batch_size=4, seed=seed, **arguments)


def unbroken(make, count):
    """Return the batches of the first epochs of a new loader."""
    with make() as loader:
        return epochs(loader, count)


def state_after(make, epoch, batches):
    """Return the state of a new loader after some epochs and then some batches."""
    with make() as loader:
        return stopped(loader, epoch, batches)


def unbroken_with_states(make, count):
    """Return the batches of the first epochs of a new loader, and its state after each batch and before each epoch.

    A run saves this state at that batch, and the loader continues.
    """
    batches = []
    states = {}
    with make() as loader:
        for epoch in range(count):
            states[epoch, 0] = loader.state_dict()
            batches.append([])
            for batch in loader:
                batches[-1].append(batch.clone())
                states[epoch, len(batches[-1])] = loader.state_dict()
    return batches, states


# Every other one in the soak: each backend, and each seed, is there either way.
MATRIX = [
    ("inline", None),
    ("inline", 4),
    ("processes", 4),
    ("processes", None),
    ("persistent", None),
    ("persistent", 4),
]
MATRIX += [("one thread", 4), ("one thread", None)]
STREAMS = [SelfIterating, StatefulIterator, CountsEpochs, CountsAtTheEnd, Flagged, FlaggedWithIterator]


@pytest.mark.parametrize(
    ("backend", "seed"), [*MATRIX[::2], *(pytest.param(*pair, marks=pytest.mark.soak) for pair in MATRIX[1::2])]
)
@pytest.mark.parametrize("dataset", STREAMS)
def test_stateful_stream_resumes_in_the_middle_at_the_beginning_and_between_epochs(dataset, backend, seed):
    def loader():
        return loader_of(dataset, seed, **BACKENDS[backend])

    full, states = unbroken_with_states(loader, 3)
    # A loader that was broken off has the same state.
    states[0, 3] = state_after(loader, 0, 3)
    for epoch, batches in ((0, 3), (1, 0), (1, len(full[1])), (2, 2)):
        state = json.loads(json.dumps(states[epoch, batches]))
        remaining = full[epoch][batches:]
        with loader() as going_on:
            expected = (([remaining] if remaining else []) + full[epoch + 1 :])[:2]
            assert_same(resumed(going_on, state, len(expected)), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("backend", ["inline", "processes", "one thread"])
@pytest.mark.parametrize("dataset", [Resetting, Coarse])
def test_dataset_that_resets_itself_is_resumed_by_count_with_a_warning(dataset, backend, seed):
    def loader():
        return loader_of(dataset, seed, **BACKENDS[backend])

    full = unbroken(loader, 1)[0]
    state = state_after(loader, 0, 3)
    with loader() as resuming:
        resuming.load_state_dict(state)
        with pytest.warns(ResumeWarning, match="__iter__ resets what its load_state_dict loaded"):
            batches = list(resuming)
    if seed is None:  # draws are not promised
        batches = [batch[:, 0] for batch in batches]
        full = [batch[:, 0] for batch in full]
    assert_same([batches], [full[3:]])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_stream_whose_states_repeat_is_resumed(stop, seed):
    full = epochs(loader_of(Cycling, seed), 1)[0]
    state = stopped(loader_of(Cycling, seed), 0, stop)
    loader = loader_of(Cycling, seed)
    loader.load_state_dict(state)
    actual = list(loader)  # a warning is an error here
    assert len(actual[0]) == 4
    # its own end is not part of its state: as far as the batches of the unbroken run go
    assert_same([actual[: len(full) - stop - 1]], [full[stop:-1]])


class Shrunk(IterableDataset):
    size = SIZE

    def __iter__(self):
        return iter([torch.tensor([n]) for n in range(self.size)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_that_has_become_shorter_says_so(seed, monkeypatch):
    state = stopped(loader_of(Shrunk, seed), 0, 3)
    monkeypatch.setattr(Shrunk, "size", 5)
    loader = loader_of(Shrunk, seed)
    with pytest.warns(ResumeWarning, match="made again and dropped"):
        loader.load_state_dict(state)
    with pytest.warns(ResumeWarning, match="fewer than the 12 samples"):
        next(iter(loader))


class Refusing(CountsAtTheEnd):
    def load_state_dict(self, state):
        raise KeyError("no such state")


@pytest.mark.parametrize("backend", ["processes"])
def test_without_a_seed_a_worker_whose_dataset_refuses_its_state_counts_off(backend, monkeypatch):
    def loader():
        return loader_of(Refusing, None, **BACKENDS[backend])

    full = unbroken(loader, 1)[0]
    state = state_after(loader, 0, 3)
    state["dataset_state"] = None
    with loader() as going_on:
        going_on.load_state_dict(state)
        with pytest.warns(ResumeWarning, match="load_state_dict raised KeyError"):
            actual = list(going_on)
    assert_same([actual], [full[3:]])


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_that_share_a_dataset_go_on_from_what_it_was_before_the_epoch(seed):
    class PerEpoch(CountsEpochs):
        def __iter__(self):
            return iter([torch.tensor([1000 * self.epoch + 100 * worker() + n]) for n in range(SIZE)])

    def loader():
        return loader_of(PerEpoch, seed, **BACKENDS["threads"])

    with loader() as unbroken:
        unbroken.dataset.epoch = 7
        full = epochs(unbroken, 1)[0]
    with loader() as saving:
        saving.dataset.epoch = 7
        state = stopped(saving, 0, 2)
    with loader() as going_on:
        assert_same(resumed(going_on, state, 1), [full[2:]])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("backend", ["inline", "persistent"])
def test_a_state_loaded_into_a_loader_that_was_used_puts_its_dataset_back(backend, seed):
    with loader_of(CountsEpochs, seed, **BACKENDS[backend]) as loader:
        state = stopped(loader, 1, 2)
        remaining = [batch.clone() for batch in loader]
        assert len(remaining)
        epochs(loader, 2)
        loader.load_state_dict(state)  # a warning is an error here
        actual = epochs(loader, 1)[0]
    with loader_of(CountsEpochs, seed, **BACKENDS[backend]) as unbroken:
        assert_same([actual], [epochs(unbroken, 2)[1][2:]])


class Plain(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([100 * worker() + n]) for n in range(SIZE)])


@pytest.mark.parametrize("backend", ["inline", "processes", "threads"])
def test_without_seed_or_state_samples_are_counted_off_at_the_same_worker_count(backend):
    def loader():
        return loader_of(Plain, None, **BACKENDS[backend])

    full = epochs(loader(), 1)[0]
    state = state_after(loader, 0, 3)
    with loader() as going_on:
        with pytest.warns(ResumeWarning, match="made again and dropped"):
            going_on.load_state_dict(state)
        assert_same(epochs(going_on, 2), [full[3:], full])


@pytest.mark.parametrize("other", [{"num_workers": 2}, {"num_workers": 1, "in_order": False}])
def test_without_a_seed_another_worker_count_or_order_begins_the_epoch_anew(other):
    state = stopped(loader_of(Plain, None), 0, 3)
    with loader_of(Plain, None, **other) as loader:
        with pytest.warns(ResumeWarning, match=r"its epoch starts over.*(num_workers=|in_order=False)") as records:
            loader.load_state_dict(state)
        assert len(records) == 1
        with loader_of(Plain, None, **other) as fresh:
            assert_same(epochs(loader, 1), epochs(fresh, 1))


@pytest.mark.parametrize("workers", [{"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_the_end_of_a_stream_is_sent_once(workers, tmp_path):
    class Counted(IterableDataset):
        position = 0

        def __iter__(self):
            self.position = 0
            while self.position < 4:
                self.position += 1
                yield self.position

        def state_dict(self):
            with (tmp_path / "calls").open("a") as file:
                file.write(f"{self.position}\n")
            return {"position": self.position}

        def load_state_dict(self, state):
            self.position = state["position"]

    with DataLoader(Counted(), batch_size=2, seed=0, prefetch_factor=8, **workers) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
    calls = (tmp_path / "calls").read_text().split()
    assert calls[-1] == "4"
    assert calls.count("4") == 2, "after the last batch, and at the end"
