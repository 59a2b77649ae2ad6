"""The class: generic, a subclass of torch's, open to subclasses, with torch's label in the profiler."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import get_origin

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support.parity_backends import EVERY, FORK, INLINE, THREAD, close, each_of, error_of, events, same_for_both
from tests.support.parity_datasets import Numbers


def test_loader_is_torchs_class_by_isinstance_and_name():
    loader = DataLoader[int](Numbers())
    assert isinstance(loader, TorchDataLoader)
    assert type(loader).__name__ == TorchDataLoader.__name__
    assert get_origin(DataLoader[int]) is DataLoader
    assert get_origin(TorchDataLoader[int]) is TorchDataLoader


def subclass(base):
    class Twice(base):
        """Overrides ``__init__``, ``__iter__`` and ``__len__``, and adds attributes."""

        note = "class attribute"

        def __init__(self, dataset, *, times=2, **arguments):
            self.times = times
            super().__init__(dataset, **arguments)
            self.late_attribute = "set after the base class"

        def __iter__(self):
            for _ in range(self.times):
                yield from super().__iter__()

        def __len__(self):
            return self.times * super().__len__()

    return Twice


@pytest.mark.parametrize("backend", EVERY, ids=lambda backend: backend.name)
def test_subclass_may_override_methods_and_add_attributes(backend):
    def observe(kind, workers):
        loader = subclass(kind)(Numbers(5), batch_size=2, times=3, **workers)
        loader.anything = [1]
        batches = [batch.tolist() for batch in loader]
        close(loader)
        return batches, len(loader), loader.late_attribute, loader.note, loader.anything

    assert len(same_for_both(backend, observe)[0]) == 9


@each_of(INLINE, FORK, THREAD)
def test_subclass_may_override_the_index_sampler(backend):
    def reversing(base):
        class Reversing(base):
            @property
            def _index_sampler(self):
                return list(super()._index_sampler)[::-1]

        return Reversing

    for kind, workers in backend.both:
        loader = reversing(kind)(Numbers(5), batch_size=2, **workers)
        assert [batch.tolist() for batch in loader] == [[4], [2, 3], [0, 1]]


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_profiler_shows_each_step_with_torchs_label(backend, seed):
    def labels(kind, arguments):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in kind(Numbers(9), batch_size=4, **arguments):
                pass
        counts = {event.key: event.count for event in profile.key_averages()}
        return {label: count for label, count in counts.items() if label.startswith("enumerate(DataLoader)#")}

    assert set(same_for_both(backend, labels, **seed).values()) == {4}


class Nested(Numbers):
    """Each sample is computed by another loader."""

    def __init__(self, kind, arguments):
        super().__init__(2)
        self.kind = kind
        self.arguments = arguments

    def __getitem__(self, index):
        return sum(batch.sum().item() for batch in self.kind(Numbers(4), batch_size=3, **self.arguments)) + index


@each_of(INLINE, FORK)
def test_loader_without_workers_runs_inside_a_worker(backend):
    for kind, workers in backend.both:
        assert [batch.item() for batch in kind(Nested(kind, {}), **workers)] == [6, 7]


def test_loader_with_worker_processes_is_refused_inside_a_worker_process():
    actual = same_for_both(FORK, lambda kind, workers: events(iter(kind(Nested(kind, workers), **workers))))
    assert actual[0][1] == "AssertionError"
    assert "daemonic processes are not allowed to have children" in actual[0][2]


def in_a_daemon(kind, workers, pipe):
    loader = kind(Numbers(3), **workers)
    actual = [batch.item() for batch in loader] if not workers else str(error_of(iter, loader))
    pipe.send(pickle.dumps(actual))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@each_of(INLINE, FORK)
def test_daemonic_process_iterates_inline_and_is_refused_workers(backend):
    context = multiprocessing.get_context("fork")

    def result(kind, workers):
        receiving, sending = context.Pipe()
        process = context.Process(target=in_a_daemon, args=(kind, workers, sending), daemon=True)
        process.start()
        assert receiving.poll(30)
        actual = pickle.loads(receiving.recv())
        process.join(30)
        process.close()
        receiving.close()
        sending.close()
        return actual

    expected = [0, 1, 2] if backend is INLINE else "daemonic processes are not allowed to have children"
    assert same_for_both(backend, result) == expected
