"""Whatever a batch is made of, what arrives is what torch's loader delivers."""

from __future__ import annotations

import random
from collections import deque
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support.memory_link import Link
from tests.support.random_batches import MODES, STACKABLE, Drawn, Key, assert_same, collate_as_told, draw, tensors_in

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of arrays that cannot be written to

NUMBERS = st.integers(0, 2**40)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


class Named:
    """A batch sampler that gives the indices that were set last."""

    def __init__(self):
        self.batches = []

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)

    def tell(self, structure, values, mode, sizes):
        draw = random.Random(values)
        self.batches = [
            [tuple(Key(structure + n, draw.getrandbits(40), mode)) for _ in range(size)] for n, size in enumerate(sizes)
        ]


def events(loader):
    """Return batches, and an error in the place of a batch that cannot be collated."""
    found = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)


def check_loader(num_examples, *, told, **arguments):
    """Compare many passes of one loader, some batches of which are held for a while, with torch's."""
    named = Named()
    held = deque(maxlen=12)
    seen = {"large": 0, "batches": 0, "errors": 0}
    collate = {"collate_fn": collate_as_told} if told else {}
    torchs = TorchDataLoader(Drawn(told=told), batch_sampler=named, **collate)
    with DataLoader(
        Drawn(told=told), batch_sampler=named, num_workers=2, persistent_workers=True, **collate, **arguments
    ) as loader:

        @settings(max_examples=num_examples, database=None, derandomize=True)
        @given(structure=NUMBERS, values=NUMBERS, mode=st.sampled_from(MODES if told else ["default"]), sizes=SIZES)
        def check(structure, values, mode, sizes):
            named.tell(structure, values, mode, sizes)
            expected = events(torchs)
            found = events(loader)
            assert len(found) == len(expected) == len(sizes)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
                seen["errors"] += isinstance(other, str)
                seen["batches"] += 1
                seen["large"] += any(t.nbytes >= 1 << 14 for t in tensors_in(one))
                if len(held) == held.maxlen:
                    assert_same(*held[0])
                held.append((one, other))

        check()
        for one, other in held:
            assert_same(one, other)
        num_slots = loader._worker_manager.backend._slots._num_slots
    for one, other in held:
        assert_same(one, other)
    assert seen["large"] > seen["batches"] / 5
    assert seen["errors"] < seen["batches"] / 3
    assert 2 <= num_slots < 60


@pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])
def test_default_collation_through_workers_is_torchs(seed):
    check_loader(60, told=False, seed=seed)


def test_any_collation_through_workers_is_torchs():
    check_loader(120, told=True)


def test_torchs_own_workers_deliver_the_same():
    """Where they deliver at all: their shared memory changes or refuses some kinds of tensor."""
    named = Named()
    num_same = 0
    arguments = {"batch_sampler": named, "num_workers": 1, "persistent_workers": True}
    torchs = TorchDataLoader(Drawn(told=False), **arguments)
    with DataLoader(Drawn(told=False), **arguments) as loader:
        for number in range(12):
            named.tell(number * 1000, number, "default", [2, 3])
            for one, other in zip(events(loader), events(torchs), strict=True):
                if not isinstance(other, str):
                    assert_same(one, other)
                    num_same += 1
    torchs._iterator = None
    assert num_same > 12


@given(structure=NUMBERS, values=NUMBERS, stackable=st.booleans())
def test_any_sample_comes_through_a_slot_as_through_a_pipe(structure, values, stackable):
    sample = draw(Key(structure, values, ""), stackable=stackable)
    with closing(Link()) as link:
        for _ in range(2):
            assert_same(link.send(sample), sample)
        for batch in (link.collate([sample, sample], list), link.collate([sample], list)):
            for found in batch:
                assert_same(found, sample)


@given(structure=NUMBERS, values=st.lists(NUMBERS, min_size=4, max_size=4), stackable=st.booleans())
def test_any_samples_come_in_one_batch_as_they_are(structure, values, stackable):
    samples = [draw(Key(structure, value, ""), stackable=stackable) for value in values]
    with closing(Link()) as link:
        for _ in range(2):
            for one, other in zip(link.collate(samples, list), samples, strict=True):
                assert_same(one, other)


def test_the_comparison_fails_where_something_differs():
    """A value, a type, a dtype, a layout, an attribute."""
    tensor = torch.ones(2, 3)
    noted = tensor.clone()
    noted.note = 1
    others = [tensor + 1, tensor.double(), tensor.T.contiguous().T, noted, tensor.numpy(), [tensor], None]
    for other in others:
        with pytest.raises(AssertionError):
            assert_same({"a": (other,)}, {"a": (tensor,)})
    assert_same({"a": (tensor,)}, {"a": (tensor.clone(),)})
    assert set(STACKABLE) < set(MODES)
