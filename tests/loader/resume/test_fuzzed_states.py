"""Damaged, edited and invented states: a clear ValueError, never another stream, a crash or a hang."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.resume_sets import INLINE, make, stopped

NAMES = ["plain", "custom", "custom with state", "stream", "stream with state"]
STATES = {name: stopped(make(name), 1, 2) for name in NAMES}
LOADERS = {name: make(name) for name in NAMES}

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**62, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.just(object()),
    st.just(torch.zeros(2)),
    st.recursive(st.integers() | st.booleans(), lambda inner: st.lists(inner, max_size=4), max_leaves=6),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)


@pytest.mark.filterwarnings("ignore::lit_loader.errors.ResumeWarning")
@pytest.mark.parametrize("name", NAMES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_loader_accepts_only_states_that_it_may_have_saved(name, data):
    state = copy.deepcopy(STATES[name])
    for key in data.draw(st.lists(st.sampled_from([*state, "another"]), min_size=1, max_size=2, unique=True)):
        state[key] = data.draw(ODD)
        if data.draw(st.booleans()):
            del state[key]
    try:
        LOADERS[name].load_state_dict(state)
    except ValueError:
        return
    assert set(state) == set(STATES[name])
    for key in ("kind", "seed", "dataset_length"):
        assert state[key] == STATES[name][key]
    assert state["epoch"] >= 0
    assert LOADERS[name].state_dict()["epoch"] in (state["epoch"], state["epoch"] + 1)


@pytest.mark.parametrize("state", [None, [], "state", 7, {}, {"version": True}, {"version": "1"}, {1: 2}])
def test_object_that_is_no_state_raises(state):
    with pytest.raises(ValueError, match="loader's state"):
        make("plain").load_state_dict(state)


def test_state_that_contains_itself_or_is_too_deep_is_refused():
    state = dict(STATES["custom with state"])
    inner = {}
    inner["inner"] = inner
    state["sampler_state"] = inner
    with pytest.raises(ValueError, match=r"sampler_state=.*plain values"):
        make("custom with state").load_state_dict(state)
    nested = []
    for _ in range(100_000):
        nested = [nested]
    state["sampler_state"] = nested
    with pytest.raises(ValueError, match="plain values"):
        make("custom with state").load_state_dict(state)
    while nested:  # or its end would recurse
        nested = nested.pop()


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": [[8, 2, False, None, None]] * 2},
        {"turn": 1},
        {"num_workers": 2},
        {"workers": [[8, 2]]},
        {"workers": [[8, 2, 7, None, None]]},
        {"workers": [[8, 2, False, 7, None]]},
        {"workers": [[8, 2, False, None, 7]]},
    ],
)
def test_workers_that_contradict_each_other_are_refused(fields):
    state = {**STATES["stream"], **fields}
    with pytest.raises(ValueError, match="worker"):
        make("stream", INLINE).load_state_dict(state)
