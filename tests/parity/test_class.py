"""The class itself: generic, a subclass of torch's, open to subclasses, named in the profiler as torch's is."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import get_origin

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support.parity_backends import EVERY, FORK, INLINE, THREAD, close, each_of, error_of, events
from tests.support.parity_datasets import Numbers


def test_loader_is_torchs_class_by_isinstance_and_name():
    loader = DataLoader[int](Numbers())
    assert isinstance(loader, TorchDataLoader)
    assert type(loader).__name__ == TorchDataLoader.__name__
    assert get_origin(DataLoader[int]) is DataLoader
    assert get_origin(TorchDataLoader[int]) is TorchDataLoader


def subclass(base):
    class Twice(base):
        """Has an ``__init__``, an ``__iter__``, a ``__len__`` and attributes of its own."""

        note = "of the class"

        def __init__(self, dataset, *, times=2, **arguments):
            self.times = times
            super().__init__(dataset, **arguments)
            self.after = "set later"

        def __iter__(self):
            for _ in range(self.times):
                yield from super().__iter__()

        def __len__(self):
            return self.times * super().__len__()

    return Twice


@pytest.mark.parametrize("backend", EVERY, ids=lambda backend: backend.name)
def test_a_subclass_may_have_its_own_methods_and_attributes(backend):
    actual = []
    for kind, workers in backend.both:
        loader = subclass(kind)(Numbers(5), batch_size=2, times=3, **workers)
        loader.anything = [1]
        actual.append((len(loader), [batch.tolist() for batch in loader], loader.after, loader.note, loader.anything))
        close(loader)
    assert actual[0] == actual[1]
    assert len(actual[0][1]) == 9


@each_of(INLINE, FORK, THREAD)
def test_a_subclass_may_replace_what_gives_the_indices(backend):
    def reversing(base):
        class Reversing(base):
            @property
            def _index_sampler(self):
                return list(super()._index_sampler)[::-1]

        return Reversing

    for kind, workers in backend.both:
        assert [batch.tolist() for batch in reversing(kind)(Numbers(5), batch_size=2, **workers)] == [
            [4],
            [2, 3],
            [0, 1],
        ]


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_the_profiler_shows_each_step_under_torchs_name(backend, seed):
    def labels(kind, arguments):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in kind(Numbers(9), batch_size=4, **arguments):
                pass
        return {
            event.key: event.count for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)#")
        }

    (torch_kind, torchs), (our_kind, ours) = backend.both
    actual = labels(our_kind, {**ours, **seed})
    assert actual == labels(torch_kind, torchs)
    assert set(actual.values()) == {4}


class Nested(Numbers):
    """Each sample is made by a loader of its own."""

    def __init__(self, kind, arguments):
        super().__init__(2)
        self.kind = kind
        self.arguments = arguments

    def __getitem__(self, index):
        return sum(batch.sum().item() for batch in self.kind(Numbers(4), batch_size=3, **self.arguments)) + index


@each_of(INLINE, FORK)
def test_a_loader_without_workers_may_run_inside_a_worker(backend):
    for kind, workers in backend.both:
        assert [batch.item() for batch in kind(Nested(kind, {}), **workers)] == [6, 7]


def test_a_loader_with_worker_processes_is_refused_inside_a_worker_process():
    actual = [events(iter(kind(Nested(kind, workers), **workers))) for kind, workers in FORK.both]
    assert actual[0] == actual[1]
    assert actual[0][0][1] == "AssertionError"
    assert "daemonic processes are not allowed to have children" in actual[0][0][2]


def in_a_daemon(kind, workers, pipe):
    loader = kind(Numbers(3), **workers)
    actual = [batch.item() for batch in loader] if not workers else str(error_of(iter, loader))
    pipe.send(pickle.dumps(actual))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@each_of(INLINE, FORK)
def test_in_a_daemonic_process_it_works_inline_and_is_refused_workers(backend):
    context = multiprocessing.get_context("fork")
    answers = []
    for kind, workers in backend.both:
        theirs, ours = context.Pipe()
        process = context.Process(target=in_a_daemon, args=(kind, workers, ours), daemon=True)
        process.start()
        assert theirs.poll(30)
        answers.append(pickle.loads(theirs.recv()))
        process.join(30)
        process.close()
        theirs.close()
        ours.close()
    assert answers[0] == answers[1]
    assert answers[0] == ([0, 1, 2] if backend is INLINE else "daemonic processes are not allowed to have children")
