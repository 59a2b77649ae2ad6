"""A loader's state: when it may be saved, its contents, and that loading it applies once."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import psutil
import pytest
import torch

from lit_loader import DataLoader, RandomSampler
from lit_loader.errors import NotResumableWarning, ResumeWarning
from tests.support.resume_sets import SAMPLERS, Numbers, assert_same, chosen, epochs, make, resumed, stopped


@pytest.mark.parametrize("name", [*SAMPLERS, "custom", "custom with state", "stream", "stream with state"])
def test_state_is_small_plain_json_and_loads_as_weights_only(name):
    loader = make(name)
    state = stopped(loader, 1, 3)
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) < 10_000
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_state_may_be_saved_before_between_within_and_after_epochs():
    loader = make("plain")
    states = [loader.state_dict()]
    iterator = iter(loader)
    states.append(loader.state_dict())  # an iterator that has not begun changes nothing
    next(iterator)
    states += [loader.state_dict(), loader.state_dict()]
    list(iterator)
    states.append(loader.state_dict())
    next(iter(loader))
    states.append(loader.state_dict())  # that loop is gone
    loader.set_epoch(7)
    states.append(loader.state_dict())
    places = [(state["epoch"], state["position"]) for state in states]
    assert places == [(0, 0), (0, 0), (0, 4), (0, 4), (1, 0), (1, 4), (7, 0)]


def test_state_counts_received_batches_and_not_those_made_ahead():
    with make("plain", (2, "fork"), prefetch_factor=3) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (0, 4)
        for _ in range(6):
            next(iterator)
        state = loader.state_dict()  # the next epoch has begun in the workers
        assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("name", ["plain", "custom", "stream"])
def test_neither_saving_nor_loading_starts_a_worker(name):
    children = set(psutil.Process().children())
    with make(name, (2, "fork")) as loader:
        loader.load_state_dict(loader.state_dict())
        loader.state_dict()
        assert set(psutil.Process().children()) == children


def test_a_loaded_state_is_the_state_until_a_batch_is_taken():
    state = stopped(make("plain"), 1, 2)
    loader = make("plain")
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    iterator = iter(loader)
    assert loader.state_dict() == state
    next(iterator)
    assert loader.state_dict()["position"] == state["position"] + 4


def test_state_may_be_loaded_while_an_iterator_is_alive():
    full = epochs(make("plain"), 2)
    state = stopped(make("plain"), 0, 5)
    loader = make("plain")
    alive = iter(loader)
    idle = iter(loader)
    assert_same([[next(alive)]], [full[0][:1]])
    loader.load_state_dict(state)
    assert_same([[next(alive)]], [full[0][1:2]])
    assert_same([list(idle)], [full[0][5:]])  # it had not begun
    assert_same([list(alive)], [full[0][2:]])


def test_epoch_resumed_after_every_batch_is_the_same():
    full = epochs(make("plain"), 1)[0]
    actual = []
    state = make("plain").state_dict()
    for _ in full:
        loader = make("plain")
        loader.load_state_dict(state)
        actual.append(next(iter(loader)))
        state = loader.state_dict()
    assert_same([actual], [full])
    assert (state["epoch"], state["position"]) == (1, 0)


def test_naming_the_same_epoch_again_changes_nothing_and_another_one_begins_it():
    full = epochs(make("plain"), 4)
    loader = make("plain")
    loader.set_epoch(2)
    state = stopped(loader, 0, 3)
    for named, expected in ((2, full[2][3:]), (3, full[3])):
        for tell in (lambda loader, e: loader.set_epoch(e), lambda loader, e: loader.sampler.set_epoch(e)):
            loader = make("plain")
            loader.load_state_dict(state)
            tell(loader, named)
            assert_same([list(loader)], [expected])


def test_state_is_the_same_on_every_rank():
    states = [stopped(make("plain", rank=rank, world_size=3), 1, 1) for rank in range(3)]
    assert states[0] == states[1] == states[2]


def test_held_batches_do_not_count():
    for name in ("plain", "custom", "stream"):
        full = epochs(make(name), 1)[0]
        loader = make(name)
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        for num_held in (0, 1, 3):
            assert_same(resumed(make(name), loader.state_dict(num_held=num_held), 1), [full[4 - num_held :]])
    with pytest.raises(ValueError, match="num_held=5 must be from 0 to 4"):
        loader.state_dict(num_held=5)


class Failing(Numbers):
    def __getitem__(self, index):
        if index == 9:
            raise OSError("no such disk")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_is_tried_again_unless_the_loop_went_on(num_workers):
    arguments = {"batch_size": 4, "seed": 3, "num_workers": num_workers}
    with DataLoader(Failing(), **arguments) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(OSError, match="no such disk"):
            next(iterator)
        assert loader.state_dict()["position"] == 8
        assert next(iterator)[0, 0] == 12
        assert loader.state_dict()["position"] == 16


def test_a_copy_of_a_loader_stands_where_the_loader_will_go_on():
    loader = make("plain")
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict()["epoch"] == 1  # epoch 0 is the iterator's, which stayed behind
    loader.load_state_dict(stopped(make("plain"), 2, 3))
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy.state_dict()["epoch"], copy.state_dict()["position"]) == (2, 12)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"in_order": False, "num_workers": 2, "seed": 1}, "in_order=False"),
        ({"sampler": iter(range(26)), "seed": 1}, "its sampler is an iterator"),
    ],
)
def test_unresumable_state_warns_when_saved_and_when_loaded_and_raises_if_strict(arguments, reason):
    loader = DataLoader(Numbers(), batch_size=4, **arguments)
    with pytest.warns(NotResumableWarning, match=reason):
        state = loader.state_dict()
    assert state["resumable"] is False
    assert reason in state["reason"]
    assert json.loads(json.dumps(state)) == state
    with pytest.raises(ValueError, match=f"cannot be resumed: .*{reason}"):
        make("plain").load_state_dict(state, strict=True)
    with pytest.warns(ResumeWarning, match=f"starts over.*cannot be resumed: .*{reason}"):
        make("plain").load_state_dict(state)
    with pytest.raises(ValueError, match=f"this loader cannot be resumed: .*{reason}"):
        loader.load_state_dict(make("plain").state_dict())


class Remembering(Numbers):
    def __init__(self):
        super().__init__()
        self.offset = 0

    def __getitem__(self, index):
        return super().__getitem__(index) + self.offset

    def state_dict(self):
        return {"offset": self.offset}

    def load_state_dict(self, state):
        self.offset = state["offset"]


def test_a_map_data_set_that_has_a_state_gets_it_back_in_workers_too():
    dataset = Remembering()
    dataset.offset = 100
    state = stopped(DataLoader(dataset, seed=3, **chosen("plain")), 0, 2)
    plain = epochs(make("plain"), 1)[0][2:]
    with DataLoader(Remembering(), seed=3, num_workers=2, persistent_workers=True, **chosen("plain")) as loader:
        list(loader)  # these workers have the dataset before the change
        assert_same(resumed(loader, state, 1), [[batch + 100 for batch in plain]])


def test_a_states_cost_does_not_depend_on_the_position():
    """No order is computed to save one, and none that is not needed to load one."""
    sampler = RandomSampler(10**9)
    loader = DataLoader(range(10**9), batch_size=4, sampler=sampler, seed=0)
    loader.load_state_dict({**loader.state_dict()})
    first = next(iter(loader))
    state = loader.state_dict()
    assert state["position"] == 4
    assert len(first) == 4


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    "odd",
    [lambda: torch.eye(2).to_sparse(), lambda: torch.empty(2, device="meta"), lambda: torch.zeros(1).expand(2**44)],
    ids=["sparse", "meta", "expanded"],
)
def test_tensors_that_hold_no_values_are_not_saved_and_not_loaded(odd, seed):
    class Odd(Remembering):
        def state_dict(self):
            return {"odd": odd()}

    with pytest.warns(NotResumableWarning, match="plain values"):
        assert DataLoader(Odd(), seed=seed).state_dict()["resumable"] is False
    state = DataLoader(Remembering(), seed=seed).state_dict()
    state["dataset_state"] = {"odd": odd()}
    loader = DataLoader(Remembering(), seed=seed)
    if seed is None:
        with pytest.warns(ResumeWarning, match=r"(?s)dataset_state=.*plain values"):
            loader.load_state_dict(state)
    else:
        with pytest.raises(ValueError, match=r"(?s)dataset_state=.*plain values"):
            loader.load_state_dict(state)


def test_lists_that_share_their_parts_are_as_large_as_they_unfold_to():
    nested = [1]
    for _ in range(28):
        nested = [nested, nested]
    state = DataLoader(Numbers(), seed=1).state_dict()
    with pytest.raises(ValueError, match="plain values"):
        DataLoader(Numbers(), seed=1).load_state_dict({**state, "reason": nested})


def test_an_epoch_of_numpys_is_a_plain_number_in_a_state():
    loader = make("plain")
    loader.load_state_dict(make("plain").state_dict())
    loader.set_epoch(np.int64(0))
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    make("plain").load_state_dict(state)
