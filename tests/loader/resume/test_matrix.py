"""Stop at any batch and go on with other workers: the stream is the unbroken one, augmentation included."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support.resume_sets import (
    CUSTOM,
    INLINE,
    SAMPLERS,
    STREAMS,
    assert_same,
    epochs,
    make,
    rest_of,
    resumed,
    stopped,
)

BACKENDS = [INLINE, *((count, kind) for count in (2, 3) for kind in ("fork", "forkserver", "thread"))]
LAST = 2


@cache
def unbroken(name, num_workers=0):
    with make(name, (num_workers, "fork") if num_workers else INLINE) as loader:
        return epochs(loader, LAST + 3)


def check(name, saving, loading, epoch, stop):
    """Stop in an epoch and compare what comes then, to the end of the next two epochs."""
    full = unbroken(name, saving[0] if name in STREAMS else 0)[: epoch + 3]
    length = len(full[0])
    stop = {"first": 0, "second": 1, "middle": length // 2, "last but one": length - 1, "last": length}[stop]
    with make(name, saving) as loader:
        state = stopped(loader, epoch, stop)
    expected = rest_of(full, epoch, stop)
    with make(name, loading) as loader:
        assert_same(resumed(loader, state, len(expected)), expected)


STOPS = ["first", "second", "middle", "last but one", "last"]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("epoch", [0, LAST])
@pytest.mark.parametrize("name", SAMPLERS + CUSTOM)
def test_any_sampler_goes_on_where_it_was_stopped(name, epoch, stop):
    check(name, INLINE, INLINE, epoch, stop)


@pytest.mark.parametrize(
    ("saving", "loading"), [((2, "fork"), INLINE), (INLINE, (2, "thread")), ((2, "thread"), (3, "fork"))]
)
@pytest.mark.parametrize("name", ["plain", "weighted", "grouped", "custom", "custom with state"])
def test_other_workers_go_on_where_these_stopped(name, saving, loading):
    check(name, saving, loading, 0, "middle")


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("backend", [INLINE, (2, "fork"), (2, "thread")])
@pytest.mark.parametrize("name", list(STREAMS))
def test_a_stream_goes_on_where_it_was_stopped(name, backend, stop):
    check(name, backend, backend, 0, stop)


@pytest.mark.soak
@pytest.mark.parametrize("loading", BACKENDS)
@pytest.mark.parametrize("epoch", [0, LAST])
@pytest.mark.parametrize("name", SAMPLERS + CUSTOM)
def test_the_whole_matrix_of_samplers(name, epoch, loading):
    for stop in STOPS:
        check(name, (2, "fork"), loading, epoch, stop)


@pytest.mark.soak
@pytest.mark.parametrize("loading", BACKENDS)
@pytest.mark.parametrize("epoch", [0, LAST])
@pytest.mark.parametrize("name", list(STREAMS))
def test_the_whole_matrix_of_streams(name, epoch, loading):
    for stop in STOPS:
        check(name, (loading[0], "fork") if loading[0] else INLINE, loading, epoch, stop)
