"""Other hardware: the same global batch on other ranks is the same stream, another is taken if asked for."""

from __future__ import annotations

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import ResumeError
from tests.support.resume_sets import SIZE, Numbers, assert_same, chosen, epochs, make, resumed, stopped

NAMES = ["plain", "weighted", "class-balanced", "grouped", "weighted grouped"]


def on_ranks(name, world_size, batch_size):
    arguments = {**chosen(name), "batch_size": batch_size}
    return [DataLoader(Numbers(), seed=3, rank=rank, world_size=world_size, **arguments) for rank in range(world_size)]


def together(of_ranks):
    """Return the global batches that the ranks' batches make."""
    return [[torch.cat(batches) for batches in zip(*ranks, strict=True)] for ranks in zip(*of_ranks, strict=True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("saving", "loading"), [((1, 8), (2, 4)), ((2, 4), (1, 8)), ((4, 2), (2, 4)), ((2, 4), (8, 1))]
)
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(name, saving, loading):
    full = epochs(on_ranks(name, 1, 8)[0], 2)
    states = [stopped(loader, 0, 1) for loader in on_ranks(name, *saving)]
    assert all(state == states[0] for state in states)
    actual = together([resumed(loader, states[0], 2) for loader in on_ranks(name, *loading)])
    unbroken = SIZE // 8  # the last, partial one is filled up by ranks
    assert_same([actual[0][: unbroken - 1], actual[1][:unbroken]], [full[0][1:unbroken], full[1][:unbroken]])


@pytest.mark.parametrize("size", [1, 3, 8, 26])
def test_another_batch_size_goes_on_from_the_same_sample_if_asked(size):
    samples = torch.cat(epochs(make("plain"), 1)[0])
    state = stopped(make("plain"), 0, 3)
    with pytest.raises(ResumeError, match=rf"global_batch=4 in the state, {size} here.*pass resume='same_sample'"):
        make("plain", batch_size=size).load_state_dict(state)
    loader = make("plain", batch_size=size, resume="same_sample")
    actual = resumed(loader, state, 2)
    assert [len(batch) for batch in actual[0][:-1]] == [size] * (len(actual[0]) - 1)
    assert torch.equal(torch.cat(actual[0]), samples[12:])
    assert torch.equal(torch.cat(actual[1]), torch.cat(epochs(make("plain"), 2)[1]))


def test_such_a_pass_can_be_stopped_and_gone_on_with_too():
    samples = torch.cat(epochs(make("plain"), 1)[0])
    loader = make("plain", batch_size=5, resume="same_sample")
    loader.load_state_dict(stopped(make("plain"), 0, 3))
    next(iter(loader))
    state = loader.state_dict()
    assert state["position"] == 17
    actual = resumed(make("plain", batch_size=5), state, 1)
    assert torch.equal(torch.cat(actual[0]), samples[17:])


def test_groups_depend_on_the_global_batch_and_are_refused():
    loader = make("grouped", batch_size=3, resume="same_sample")
    with pytest.raises(ValueError, match=r"global_batch=4 in the state, 3 here.*pass resume='restart'"):
        loader.load_state_dict(stopped(make("grouped"), 0, 2))


def test_resume_after_last_full_batch_yields_no_batches():
    state = stopped(make("drop last"), 0, 5)  # 20 of 26
    full = epochs(make("drop last", batch_size=8), 2)
    actual = resumed(make("drop last", batch_size=8, resume="same_sample"), state, 1)
    assert_same(actual, full[1:])
