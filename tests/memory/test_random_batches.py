"""Batches of random structure arrive as torch's loader delivers them."""

from __future__ import annotations

import random
from collections import Counter, deque
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader
from tests.support import outcomes
from tests.support.memory_link import Link
from tests.support.random_batches import MODES, STACKABLE, Drawn, Key, assert_same, collate_by_mode, draw, tensors_in

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch, of arrays that cannot be written to

NUMBERS = st.integers(0, 2**40)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


class SettableBatches:
    """A batch sampler whose batches are set from outside."""

    def __init__(self):
        self.batches = []

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)

    def draw(self, structure, values, mode, sizes):
        generator = random.Random(values)
        self.batches = [
            [tuple(Key(structure + n, generator.getrandbits(40), mode)) for _ in range(size)]
            for n, size in enumerate(sizes)
        ]


def outcomes_of(loader):
    """Return an epoch's batches, with the name of the error instead of each batch that cannot be collated."""
    results = outcomes.outcomes_of(loader)
    return [type(result).__name__ if isinstance(result, Exception) else result for result in results]


def check_loader(num_examples, *, has_modes, **arguments):
    """Compare many passes of one loader, whose last batches stay alive, with torch's."""
    sampler = SettableBatches()
    recent = deque(maxlen=12)
    counts = Counter()
    collate = {"collate_fn": collate_by_mode} if has_modes else {}
    dataset = Drawn(has_mode=has_modes)
    torchs = TorchDataLoader(dataset, batch_sampler=sampler, **collate)
    with DataLoader(
        dataset, batch_sampler=sampler, num_workers=2, persistent_workers=True, **collate, **arguments
    ) as loader:

        @settings(max_examples=num_examples, database=None, derandomize=True)
        @given(
            structure=NUMBERS, values=NUMBERS, mode=st.sampled_from(MODES if has_modes else ["default"]), sizes=SIZES
        )
        def check(structure, values, mode, sizes):
            sampler.draw(structure, values, mode, sizes)
            expected_outcomes = outcomes_of(torchs)
            received = outcomes_of(loader)
            assert len(received) == len(expected_outcomes) == len(sizes)
            for outcome, expected in zip(received, expected_outcomes, strict=True):
                assert_same(outcome, expected)
                counts["errors"] += isinstance(expected, str)
                counts["batches"] += 1
                counts["large"] += any(tensor.nbytes >= 1 << 14 for tensor in tensors_in(outcome))
                if len(recent) == recent.maxlen:
                    assert_same(*recent[0])
                recent.append((outcome, expected))

        check()
        num_slots = loader._worker_manager.backend._slots.num_slots
    # The batches stay valid after the workers have ended.
    for outcome, expected in recent:
        assert_same(outcome, expected)
    assert counts["large"] > counts["batches"] / 5
    assert counts["errors"] < counts["batches"] / 3
    assert 2 <= num_slots < 60


@pytest.mark.parametrize("seed", [None, 1], ids=["unseeded", "seeded"])
def test_default_collation_through_workers_is_torchs(seed):
    check_loader(60, has_modes=False, seed=seed)


def test_any_collation_through_workers_is_torchs():
    check_loader(120, has_modes=True)


def test_torch_workers_deliver_the_same_batches():
    """If they deliver any: torch's shared memory changes or refuses some kinds of tensor."""
    sampler = SettableBatches()
    num_same = 0
    arguments = {"batch_sampler": sampler, "num_workers": 1, "persistent_workers": True}
    torchs = TorchDataLoader(Drawn(has_mode=False), **arguments)
    with DataLoader(Drawn(has_mode=False), **arguments) as loader:
        for number in range(12):
            sampler.draw(number * 1000, number, "default", [2, 3])
            for outcome, expected in zip(outcomes_of(loader), outcomes_of(torchs), strict=True):
                if not isinstance(expected, str):
                    assert_same(outcome, expected)
                    num_same += 1
    torchs._iterator = None
    assert num_same > 12


@given(structure=NUMBERS, values=st.lists(NUMBERS, min_size=1, max_size=4), stackable=st.booleans())
def test_random_samples_pass_a_slot_unchanged(structure, values, stackable):
    samples = [draw(Key(structure, value, ""), stackable=stackable) for value in values]
    with closing(Link()) as link:
        for _ in range(2):
            assert_same(link.send(samples[0]), samples[0])
            assert_same(link.collate(samples, list), samples)
            assert_same(link.collate([samples[0], *samples], list), [samples[0], *samples])


def test_comparison_fails_for_any_difference():
    """In the value, the type, the dtype, the layout or an attribute."""
    tensor = torch.ones(2, 3)
    noted = tensor.clone()
    noted.note = 1
    different = [tensor + 1, tensor.double(), tensor.T.contiguous().T, noted, tensor.numpy(), [tensor], None]
    for value in different:
        with pytest.raises(AssertionError):
            assert_same({"a": (value,)}, {"a": (tensor,)})
    assert_same({"a": (tensor,)}, {"a": (tensor.clone(),)})
    assert set(STACKABLE) < set(MODES)
