"""A state that does not fit names the field, both values, and how to start afresh on purpose."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import ResumeError, ResumeWarning
from lit_loader.samplers import RandomSampler, WeightedRandomSampler
from tests.support.resume_sets import (
    Numbers,
    Shuffled,
    StatefulSampler,
    StatefulStream,
    Stream,
    assert_same,
    epochs,
    make,
    resumed,
    stopped,
)

WEIGHTS = np.arange(1.0, 27.0)


@pytest.mark.parametrize(
    ("name", "loader", "names"),
    [
        ("plain", lambda: make("plain", seed=4), "seed=3 in the state, 4 here"),
        ("plain", lambda: DataLoader(Numbers(25), batch_size=4, shuffle=True, seed=3), "dataset_length=26 .*, 25 here"),
        ("plain", lambda: make("weighted"), "sampler='RandomSampler' in the state, 'WeightedRandomSampler' here"),
        ("plain", lambda: make("plain", shuffle=False), "'RandomSampler' in the state, 'SequentialSampler' here"),
        (
            "plain",
            lambda: make("plain", shuffle=None, sampler=RandomSampler(26, seed=9)),
            "sampler_seed=None in the state, 9 here",
        ),
        ("weighted", lambda: make("weighted", sampler=WeightedRandomSampler(WEIGHTS**2)), "fingerprint='"),
        ("plain", lambda: make("plain", batch_size=5), "global_batch=4 in the state, 5 here"),
        ("plain", lambda: make("plain", rank=0, world_size=2), "global_batch=4 in the state, 8 here"),
        ("plain", lambda: make("custom"), "kind='order' in the state, 'replay' here"),
        ("custom", lambda: make("custom with state"), "kind='replay' in the state, 'sampler' here"),
        ("custom", lambda: make("stream"), "kind='replay' in the state, 'stream' here"),
        ("custom", lambda: make("custom", batch_size=5), "global_batch=4 in the state, 5 here"),
        ("stream", lambda: make("stream", (2, "fork")), "num_workers=0 in the state, 2 here"),
        ("stream", lambda: make("stream", rank=0, world_size=2), "world_size=1 in the state, 2 here"),
        ("stream", lambda: make("stream", batch_size=5), "global_batch=4 in the state, 5 here"),
    ],
)
def test_state_of_another_loader_is_refused(name, loader, names):
    state = stopped(make(name), 0, 2)
    other = loader()
    state_before = other.state_dict()
    with pytest.raises(ResumeError, match=names) as error_info:
        other.load_state_dict(state)
    assert "start afresh on purpose" in str(error_info.value)
    assert other.state_dict() == state_before


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"position": -4}, "position=-4 of a loader's state must be an int from 0 to"),
        ({"position": True}, "position=True .* must be an int"),
        ({"epoch": "1"}, "epoch='1' .* must be an int"),
        ({"last_set": 1.0}, "last_set=1.0 .* must be an int .*or None"),
        ({"fingerprint": "x" * 2000}, "fingerprint='x.* must be a str of at most 1,000 characters"),
        ({"seed": object()}, "seed=.* must be made of plain values"),
        ({"check": "0123"}, r"lacks \[\], and has unknown fields \['check'\]"),
        ({"position": 10**15}, "position=1000000000000000 is beyond the 26 of an epoch"),
        ({"version": 3}, r"version=3 .* must be 2; .* newer lit_loader"),
        ({"kind": "count"}, r"lacks \['world_size'\], and has unknown fields .*'fingerprint'"),
    ],
)
def test_edited_state_is_refused(fields, names):
    state = {**stopped(make("plain"), 0, 2), **fields}
    with pytest.raises(ResumeError, match=names) as caught:
        make("plain").load_state_dict(state)
    assert "start afresh on purpose" in str(caught.value)


def test_unknown_resume_policy_is_refused():
    with pytest.raises(
        ValueError, match=re.escape("resume='again' is unknown; it is one of ['exact', 'same_sample', 'restart']")
    ):
        make("plain", resume="again")


def test_restart_leaves_a_state_aside_that_does_not_fit_and_takes_one_that_does():
    full = epochs(make("plain"), 1)[0]
    loader = make("plain", resume="restart")
    with pytest.warns(ResumeWarning, match="a loader's state was ignored, and its epoch starts over. .*seed=4"):
        loader.load_state_dict(stopped(make("plain", seed=4), 0, 2))
    assert_same([list(loader)], [full])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(resumed(make("plain", resume="restart"), stopped(make("plain"), 0, 2), 1), [full[2:]])
    with pytest.raises(ValueError, match="version="):  # a damaged state is always refused
        loader.load_state_dict({})


class Elsewhere(Shuffled):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__(range(26), generator=torch.Generator().manual_seed(5))


def test_a_sampler_that_gives_something_else_is_found_out():
    def loader():
        return DataLoader(Numbers(), batch_size=4, sampler=Elsewhere(), seed=3)

    saving = loader()
    list(saving)
    state = stopped(saving, 0, 3)  # its generator is in its second epoch, and a new one will be in its first
    other = loader()
    with pytest.warns(
        ResumeWarning, match="Elsewhere has no state_dict: it is iterated anew and its first 3 batches of"
    ):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="Elsewhere gave other indices in the first 3 batches of epoch 1"):
        next(iter(other))


class Short(Shuffled):
    def __len__(self):
        return 26

    def __iter__(self):
        return iter(range(6))


def test_a_sampler_that_ends_too_early_is_found_out():
    state = stopped(DataLoader(Numbers(), batch_size=4, sampler=Short(range(26)), seed=3), 0, 1)
    state["position"] = 5
    loader = DataLoader(Numbers(), batch_size=4, sampler=Short(range(26)), seed=3)
    with pytest.warns(ResumeWarning):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="gave 2 batches of epoch 0 and the state was saved after 5"):
        next(iter(loader))


def test_a_sampler_whose_state_is_not_plain_cannot_be_resumed():
    class Odd(StatefulSampler):
        def state_dict(self):
            return {"generator": object()}

    loader = DataLoader(Numbers(), batch_size=4, sampler=Odd(), seed=3)
    with pytest.warns(UserWarning, match="is not made of plain values"):
        assert loader.state_dict()["resumable"] is False


def test_a_stream_without_a_state_says_what_it_costs():
    loader = DataLoader(Stream(), batch_size=4, seed=3)
    state = stopped(loader, 0, 3)
    with pytest.warns(
        ResumeWarning, match="Stream has no state to resume from: its first 12 samples of epoch 0 are made again"
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("settings", [{"num_workers": 2, "worker_method": "thread"}, {"rank": 0, "world_size": 2}])
def test_state_of_a_stream_that_is_not_used_is_named(settings):
    loader = DataLoader(StatefulStream(), batch_size=4, seed=3, **settings)
    state = stopped(loader, 0, 2)
    with pytest.warns(ResumeWarning, match="the state of StatefulStream is not used on several ranks or with several"):
        loader.load_state_dict(state)
    loader.close()


def test_weights_that_change_in_mid_epoch_leave_nothing_to_go_on_with():
    loader = make("weighted")
    iterator = iter(loader)
    next(iterator)
    loader.sampler.set_weights(WEIGHTS[::-1].copy())
    with pytest.warns(UserWarning, match="WeightedRandomSampler was changed in the middle of the epoch"):
        assert loader.state_dict()["resumable"] is False
    list(iterator)
    assert loader.state_dict()["epoch"] == 1
