"""Attributes: those that are fixed after construction, and those whose change affects the next iterator."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader, get_worker_info
from tests.support.parity_backends import (
    FORK,
    INLINE,
    THREAD,
    both_raise,
    close,
    each_of,
    events,
    length,
    same_for_both,
)
from tests.support.parity_datasets import Numbers, Samples, WorkerFacts, as_list

FIXED = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]


@pytest.mark.parametrize("class_name", ["DataLoader", "MyLoader"])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_attributes_refuse_a_change_with_torchs_message(name, class_name):
    def change(kind):
        kind = kind if class_name == "DataLoader" else type(class_name, (kind,), {})
        setattr(kind(Numbers()), name, 3)

    torchs, ours = both_raise(ValueError, change)
    assert ours == torchs == f"{name} attribute should not be set after {class_name} is initialized"


def plus_100(samples):
    return [sample + 100 for sample in samples]


def set_to(name, value):
    return lambda loader: setattr(loader, name, value)


@each_of(INLINE, FORK, THREAD)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(set_to("collate_fn", plus_100), id="collate_fn"),
        pytest.param(set_to("generator", torch.Generator().manual_seed(3)), id="generator"),
        pytest.param(set_to("num_workers", 0), id="num_workers"),
        pytest.param(set_to("in_order", True), id="in_order", marks=pytest.mark.soak),
        pytest.param(set_to("new_attribute", 1), id="new", marks=pytest.mark.soak),
    ],
)
def test_change_affects_the_next_iterator(backend, change):
    def epochs(kind, workers):
        torch.manual_seed(1)
        loader = kind(Numbers(6), batch_size=2, shuffle=True, **workers)
        first_epoch = events(iter(loader))
        change(loader)
        second_epoch = events(iter(loader))
        close(loader)
        return first_epoch, length(loader), second_epoch

    same_for_both(backend, epochs)


def set_first_sample(worker):
    get_worker_info().dataset.samples[0] = 50 + worker


@each_of(FORK, THREAD)
def test_worker_init_fn_timeout_and_prefetch_factor_may_be_changed(backend):
    for kind, workers in backend.both:
        loader = kind(Samples([0, 1, 2]), **{**workers, "num_workers": 1})
        assert [batch.item() for batch in loader] == [0, 1, 2]
        loader.worker_init_fn = set_first_sample
        loader.prefetch_factor = 3
        loader.timeout = 60
        assert [batch.item() for batch in loader] == [50, 1, 2]


@each_of(FORK, THREAD)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in torch's __del__
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_prefetch_factor_of_zero_is_refused_when_iterated(backend, seed):
    for kind, workers in backend.both:
        arguments = workers if kind is TorchDataLoader else {**workers, **seed}
        with pytest.raises(AssertionError, match="prefetch_factor"):
            iter(kind(Numbers(2), **{**arguments, "prefetch_factor": 0}))
        loader = kind(Numbers(2), **arguments)
        loader.prefetch_factor = 0
        with pytest.raises(AssertionError, match="prefetch_factor"):
            iter(loader)


@each_of(FORK, THREAD)
def test_number_of_workers_may_be_changed(backend):
    for kind, workers in backend.both:
        loader = kind(WorkerFacts(), collate_fn=as_list, **workers)
        loader.num_workers = 1
        assert {batch[0]["num_workers"] for batch in loader} == {1}


@pytest.mark.parametrize("value", ["fork", "spawn", None], ids=str)
def test_context_is_given_by_name_or_as_an_object(value):
    for kind in (TorchDataLoader, DataLoader):
        loader = kind(Numbers(), num_workers=1, multiprocessing_context=value)
        assert getattr(loader.multiprocessing_context, "_name", None) == value
        if value is not None:
            context = multiprocessing.get_context(value)
            loader.multiprocessing_context = context
            assert loader.multiprocessing_context is context
            loader.multiprocessing_context = None
            assert loader.multiprocessing_context is None


@pytest.mark.parametrize(
    ("value", "num_workers", "error"),
    [("nope", 1, ValueError), (3, 1, TypeError), (multiprocessing, 1, TypeError), ("fork", 0, ValueError)],
)
def test_wrong_context_is_refused_when_set(value, num_workers, error):
    def change(kind):
        kind(Numbers(), num_workers=num_workers).multiprocessing_context = value

    torchs, ours = both_raise(error, change)
    assert ours == torchs


def test_changed_context_starts_the_workers():
    class Counting(type(multiprocessing.get_context("fork"))):
        started = 0

        def Process(self, *arguments, **named):
            type(self).started += 1
            return super().Process(*arguments, **named)

    for kind in (TorchDataLoader, DataLoader):
        Counting.started = 0
        loader = kind(Numbers(4), num_workers=2)
        loader.multiprocessing_context = Counting()
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]
        assert Counting.started == 2
