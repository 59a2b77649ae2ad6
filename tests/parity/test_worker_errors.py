"""Errors: their type and message, in a row, from every place, and the iteration that continues after them."""

from __future__ import annotations

import time

import pytest

from lit_loader import DataLoader
from tests.support.parity_backends import (
    BREADTH,
    EVERY,
    FORK,
    INLINE,
    KEPT,
    THREAD,
    assert_alike,
    close,
    each_of,
    error_event,
    error_of,
    events,
    same_for_both,
)
from tests.support.parity_datasets import Count, Numbers, Raising, as_list


class WithMessage(Exception):
    """Takes its message by name, like the errors of some libraries."""

    message = "by name"

    def __init__(self, message):
        super().__init__(f"said: {message}")


class KeyErrorKind(KeyError):
    pass


ERRORS = {
    "ValueError": lambda: ValueError("three"),
    "KeyError": lambda: KeyError("a key"),
    "a kind of KeyError": lambda: KeyErrorKind("a key"),
    "IndexError": lambda: IndexError(3),
    "no message": lambda: RuntimeError(),
    "several arguments": lambda: OSError(2, "no such file", "x.jpg"),
    "message by name": lambda: WithMessage("x"),
    "two lines": lambda: ValueError("one\ntwo"),
    "StopIteration": lambda: StopIteration(4),
    "StopAsyncIteration": lambda: StopAsyncIteration(4),
    "AssertionError": lambda: AssertionError(),
    "MemoryError": lambda: MemoryError("x"),
    "RecursionError": lambda: RecursionError("x"),
    "a warning": lambda: UserWarning("raised"),
}


def every_error():
    """Return a dataset of numbers with an error after each."""
    return Raising([item for number, make in enumerate(ERRORS.values()) for item in (number, make())])


@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_every_error_is_torchs_and_the_iteration_continues(batch_size):
    actual = assert_alike(lambda: (every_error(), {"batch_size": batch_size}), *BREADTH)
    assert str(actual["epochs"][0]).count("'raised'") >= len(ERRORS) - 1


def test_message_names_the_worker_and_has_its_traceback():
    for backend, where in ((FORK, "worker process 0"), (THREAD, "worker thread 0")):
        for kind, workers in backend.both:
            error = error_of(next, iter(kind(Raising([KeyError("a key")]), **workers)))
            assert type(error) is KeyError
            lines = str(error).splitlines()
            expected = where if kind is DataLoader else "worker process 0"
            assert lines[0] == f"Caught KeyError in DataLoader {expected}."
            assert lines[1] == "Original Traceback (most recent call last):"
            assert "KeyError: 'a key'" in lines[-2:]
            assert any("in __getitem__" in line for line in lines)


def test_message_has_the_cause():
    class Chained(Numbers):
        def __getitem__(self, index):
            try:
                return {}["missing"]
            except KeyError as error:
                raise ValueError("no sample") from error

    for backend in (FORK, THREAD):
        for kind, workers in backend.both:
            text = str(error_of(next, iter(kind(Chained(), **workers))))
            assert text.index("'missing'") < text.index("direct cause of the following") < text.index("no sample")


def raises(samples):
    raise ArithmeticError(f"collate {samples}")


class GetItems(Numbers):
    def __getitems__(self, indices):
        raise LookupError(f"getitems {indices}")


class StopsInside(Count):
    def __iter__(self):
        yield 1
        raise OSError("the stream broke")


PLACES = {
    "collate_fn": lambda: (Numbers(3), {"collate_fn": raises}),
    "conversion": lambda: (Numbers(3), {"collate_fn": raises, "batch_size": None}),
    "getitems": lambda: (GetItems(5), {"batch_size": 2}),
    "default collation": lambda: (Raising([[1], [1, 2]]), {"batch_size": 2}),
    "a type that cannot be collated": lambda: (Raising([{"a": None}]), {}),
    "collation of an iterable dataset": lambda: (Count(3), {"collate_fn": raises}),
    "next of an iterable dataset": lambda: (StopsInside(), {"batch_size": 2}),
    "next, without batching": lambda: (StopsInside(), {"batch_size": None}),
    "StopIteration in collate_fn": lambda: (Numbers(4), {"collate_fn": lambda samples: next(iter(()))}),
    "StopIteration in an iterable's collate_fn": lambda: (Count(4), {"collate_fn": lambda samples: next(iter(()))}),
}


@pytest.mark.parametrize("place", PLACES)
def test_error_from_any_place_is_torchs(place):
    assert_alike(PLACES[place], *BREADTH)


def test_stop_iteration_of_a_dataset_ends_a_loop_but_not_the_iterator():
    def make():
        return Raising([0, StopIteration(), 2, 3]), {"collate_fn": as_list}

    actual = assert_alike(make, *EVERY)
    assert actual["epochs"][0].count("end") == 2


@each_of(FORK, THREAD)
def test_errors_of_every_batch_in_a_row(backend):
    for kind, workers in backend.both:
        actual = events(iter(kind(Raising([ValueError(n) for n in range(9)]), **workers)))
        assert [item[2].split()[-1] for item in actual[:9]] == [str(n) for n in range(9)]
        assert actual[9:] == ["end", "end"]


@each_of(FORK, KEPT, THREAD)
@pytest.mark.parametrize("in_order", [True, False])
def test_errors_are_the_same_in_and_out_of_order(backend, in_order):
    def sorted_events(kind, workers):
        loader = kind(every_error(), in_order=in_order, **workers)
        items = [str(item).replace("process 1", "process 0") for item in events(iter(loader), ends=3)]
        close(loader)
        return sorted(items)

    same_for_both(backend, sorted_events)


@each_of(FORK, THREAD)
def test_timeout_is_torchs_and_the_iteration_may_continue(backend):
    class Sleeps(Numbers):
        def __getitem__(self, index):
            time.sleep(0.5)
            return index

    for kind, workers in backend.both:
        loader = kind(Sleeps(1), **{**workers, "num_workers": 1}, timeout=0.1)
        iterator = iter(loader)
        error = error_event(error_of(next, iterator))
        assert error == ("raised", "RuntimeError", "DataLoader timed out after 0.1 seconds")
        actual = events(iterator)
        batches = [item for item in actual if item[0] == "torch.Tensor"]
        assert len(batches) == 1
        assert {item for item in actual if item[0] == "raised"} <= {error}


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["unseeded", "seeded"])
def test_timeout_without_workers_is_refused_when_iterated(seed):
    for (kind, _), more in zip(INLINE.both, ({}, seed), strict=True):
        with pytest.raises(AssertionError, match="timeout == 0"):
            iter(kind(Numbers(), timeout=1, **more))
