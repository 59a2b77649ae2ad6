"""Nested batches: map_nested as torch's page-locking and Lightning's transfer do, whatever they are made of."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities import move_data_to_device
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors

from lit_loader.loader.device import find_pin, moved
from lit_loader.loader.device.nested import NO_LEAF, map_nested
from tests.support.toys import plain

META = torch.device("meta")
Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Fields:
    tensor: Any
    name: str = "name"
    derived: Any = field(default=None, init=False)


@dataclass(frozen=True)
class Frozen:
    tensor: Any


@dataclass
class Cached:
    tensor: Any
    cache: Any = field(init=False, repr=False)


class Moves:
    """Moves as a whole; returns what says so."""

    def __init__(self, where="here"):
        self.where = where

    def to(self, device, **options):
        return Moves(str(device))

    def __eq__(self, other):
        return type(other) is Moves and other.where == self.where

    __hash__ = None


class Forgets(Moves):
    """Its ``to()`` returns nothing, as happens."""

    def to(self, device, **options):
        self.where = str(device)

    def __eq__(self, other):
        return type(other) is Forgets and other.where == self.where

    __hash__ = None


LEAVES = [lambda: torch.ones(2), Moves, Forgets, lambda: 3, lambda: "text", lambda: b"bytes", lambda: None, object]


def nested():
    def extended(inner):
        return st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(OrderedDict),
            inner.map(Fields),
        )

    return st.recursive(st.sampled_from(LEAVES).map(lambda make: make()), extended, max_leaves=8)


def described(data):
    """Return a batch as values that can be compared, types and devices included."""
    if isinstance(data, torch.Tensor):
        return (type(data).__name__, str(data.device), tuple(data.shape))
    if isinstance(data, Fields):
        return ("Fields", described(data.tensor), data.name, described(data.derived))
    if isinstance(data, dict | UserDict):
        return (type(data).__name__, [(key, described(value)) for key, value in data.items()])
    if isinstance(data, list | tuple | UserList | deque):
        return (type(data).__name__, [described(value) for value in data])
    return (type(data).__name__, getattr(data, "where", None))


@given(nested())
def test_only_objects_that_lightning_moves_are_moved(data):
    actual = described(moved(data, META))
    assert actual == described(move_data_to_device(data, META))


@pytest.mark.parametrize(
    "data",
    [
        defaultdict(list, a=torch.ones(1)),
        UserDict(a=torch.ones(1)),
        pack_sequence([torch.ones(2), torch.ones(1)]),
        tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(2, 2)),
        [tv_tensors.Mask(torch.ones(1, 2, 2)), Moves()],
    ],
    ids=lambda data: type(data).__name__,
)
def test_other_containers_move_as_lightning_moves_them(data):
    assert described(moved(data, META)) == described(move_data_to_device(data, META))


def test_lightning_finds_what_was_moved_and_moves_nothing():
    batch = moved({"a": [torch.ones(2)], "b": Pair(torch.ones(1), (torch.zeros(3), "text"))}, META)
    moved_again = move_data_to_device(batch, META)
    assert moved_again["a"][0] is batch["a"][0]
    assert moved_again["b"].a is batch["b"].a
    assert moved_again["b"].b[0] is batch["b"].b[0]
    assert type(moved_again["b"]) is Pair


def test_frozen_dataclasses_are_moved_and_the_given_one_is_left():
    given_one = Frozen(torch.ones(1))
    assert moved(given_one, META).tensor.device == META
    assert given_one.tensor.device.type == "cpu"


def test_fields_that_are_not_set_stay_so():
    actual = moved(Cached(torch.ones(1)), META)
    assert (type(actual), actual.tensor.device, hasattr(actual, "cache")) == (Cached, META, False)


@pytest.mark.parametrize(
    "data",
    [
        MappingProxyType({"a": torch.ones(1)}),
        UserList([torch.ones(1)]),
        deque([torch.ones(1)]),
        range(3),
        "text",
        Fields(torch.ones(1)),
        Cached(torch.ones(1)),
        [],
        {},
    ],
    ids=lambda data: type(data).__name__,
)
def test_containers_are_page_locked_as_torch_does(data, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor + 1)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    ours = find_pin(True, "")(data)
    torchs = pin_memory(data, "cuda")
    assert type(ours) is type(torchs)
    if isinstance(data, Fields | Cached):
        assert ours is torchs is data
    else:
        assert plain(list(ours)) == plain(list(torchs))


def test_a_leaf_that_is_a_container_is_not_opened():
    assert map_nested([(1, 2), 3], lambda data: "pair" if isinstance(data, tuple) else NO_LEAF) == ["pair", 3]
