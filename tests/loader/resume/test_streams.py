"""Iterable datasets: where each worker is, with the dataset's own state or counted off."""

from __future__ import annotations

import warnings

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import ResumeWarning
from tests.support.resume_sets import SIZE, StatefulStream, Stream, assert_same, epochs, make, resumed, share, stopped


class Uneven(StatefulStream):
    """The first worker has much less than the others."""

    def __iter__(self):
        worker, _ = share()
        for number in range(self.at.pop(str(worker), 0), 3 if worker == 0 else 17):
            self.at[str(worker)] = number + 1
            yield torch.tensor([float(worker), float(number), torch.rand(()).item()])
        self.at.pop(str(worker), None)


class UnevenWithoutState(Stream):
    def __iter__(self):
        return iter(Uneven())


@pytest.mark.parametrize("dataset", [Uneven, UnevenWithoutState])
def test_a_worker_that_ended_stays_ended_and_the_turns_go_on(dataset):
    def loader():
        return DataLoader(dataset(), batch_size=4, seed=1, num_workers=3)

    full = epochs(loader(), 2)
    for stop in (1, 4, len(full[0])):  # the first one ends with its first batch
        state = stopped(loader(), 0, stop)
        remaining = full[0][stop:]
        assert_same(resumed(loader(), state, 1 + bool(remaining)), [remaining, full[1]] if remaining else [full[1]])


class Counting(StatefulStream):
    num_samples = 0

    def __iter__(self):
        for sample in super().__iter__():
            type(self).num_samples += 1
            yield sample


def test_with_a_state_nothing_is_made_twice():
    state = stopped(DataLoader(Counting(), batch_size=4, seed=1), 0, 4)
    Counting.num_samples = 0
    loader = DataLoader(Counting(), batch_size=4, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it costs nothing to speak of
        loader.load_state_dict(state)
    next(iter(loader))
    assert Counting.num_samples == 4


def test_threads_that_share_a_dataset_are_counted_off():
    state = stopped(make("stream with state", (2, "thread")), 0, 3)
    assert all(worker[3] is None for worker in state["workers"])
    with make("stream with state", (2, "fork")) as loader, pytest.warns(ResumeWarning, match="made again"):
        loader.load_state_dict(state)


def test_several_ranks_are_counted_off_and_go_on_each_with_its_own():
    def loaders():
        return [make("stream with state", rank=rank, world_size=2) for rank in range(2)]

    full = [epochs(loader, 1)[0] for loader in loaders()]
    states = [stopped(loader, 0, 2) for loader in loaders()]
    assert states[0] == states[1]
    for loader, expected in zip(loaders(), full, strict=True):
        assert_same(resumed(loader, states[0], 1), [expected[2:]])


class Unsavable(StatefulStream):
    def state_dict(self):
        raise OSError("no such disk")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_whose_state_cannot_be_had_is_still_iterated(num_workers):
    with DataLoader(Unsavable(), batch_size=4, seed=1, num_workers=num_workers) as loader:
        assert sum(len(batch) for batch in loader) == SIZE
        assert loader.state_dict()["epoch"] == 1


class Shuffling(Stream):
    """A shuffle buffer: its contents depend on all earlier draws."""

    def __iter__(self):
        buffer = []
        for index in range(self.size):
            buffer.append(index)
            if len(buffer) > 5:
                yield torch.tensor(buffer.pop(int(torch.randint(len(buffer), ()))))
        while buffer:
            yield torch.tensor(buffer.pop(int(torch.randint(len(buffer), ()))))


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_shuffle_buffer_is_the_same_after_forwarding_by_count(stop):
    def loader():
        return DataLoader(Shuffling(), batch_size=4, seed=1)

    full = epochs(loader(), 1)[0]
    assert_same(resumed(loader(), stopped(loader(), 0, stop), 1), [full[stop:]])


def test_an_empty_stream_ends():
    loader = DataLoader(Stream(0), batch_size=4, seed=1)
    assert list(loader) == []
    other = DataLoader(Stream(0), batch_size=4, seed=1)
    other.load_state_dict(loader.state_dict())
    assert list(other) == []
